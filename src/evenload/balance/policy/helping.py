"""The first item of a helper: a device that is probably far slower than others, as a CPU slot beside GPUs."""

from math import inf

from evenload.balance.policy.base import Ask, Hold, Take

__all__ = ["first_of_a_helper"]

TRY_ITEMS, TRY_ITEMS_ONCE = 16.0, 64.0
"""A helper tries an item if each of the others has so many left. The second: if no item may run twice."""


def first_of_a_helper(ask: Ask) -> Take | Hold:
    """Let one helper try an item while enough is left.

    Its speed is unknown, so a fast device may have to run the item again, or the run may have to wait for it.
    """
    fast = [device for device in ask.devices if not device.is_helper]
    rates = [device.rate for device in fast if device.rate]
    if fast and not rates:
        return Hold("the fast devices have not shown their speed yet")
    trying = next((device for device in ask.devices if device.is_helper and device.chunks), None)
    if trying is not None:
        return Hold(f"{trying.name} tries first")
    left = inf if ask.work_left is None else ask.work_left
    n_rounds = left / ask.item_work / len(rates) if rates else inf
    if n_rounds < (TRY_ITEMS if ask.may_repeat else TRY_ITEMS_ONCE):
        return Hold("too little is left to try how fast it is")
    return Take(1, "first item of a slow device", at_most=ask.item_work)
