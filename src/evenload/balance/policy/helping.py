"""The first item of a device that is probably far slower than others: a CPU slot beside GPUs."""

from math import inf

from evenload.balance.policy.base import Ask, Hold, Take

__all__ = ["first_of_a_helper"]

TRY_S, TRY_ONCE_S = 16.0, 64.0
"""A helper tries an item if the others need as long for what is left as one of them for so many items."""


def first_of_a_helper(ask: Ask) -> Take | Hold:
    """How much slower it is nobody knows yet: the item may well have to be run again by a fast device, or, if
    that may not be, be waited for. So one helper tries, and not near the end."""
    fast = [lane for lane in ask.lanes if not lane.is_helper]
    rates = [lane.rate for lane in fast if lane.rate]
    if fast and not rates:
        return Hold("the fast devices have not shown their speed yet")
    trying = next((lane for lane in ask.lanes if lane.is_helper and lane.flights), None)
    if trying is not None:
        return Hold(f"{trying.device} tries first")
    left = inf if ask.work_left is None else ask.work_left
    n_rounds = left / ask.item_work / len(rates) if rates else inf
    if n_rounds < (TRY_S if ask.may_repeat else TRY_ONCE_S):
        return Hold("too little is left to try how fast it is")
    return Take(1, "first item of a slow device", at_most=ask.item_work)
