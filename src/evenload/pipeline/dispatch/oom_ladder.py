"""What is tried when memory runs out: fewer items at once, another way to hold the model, another device."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.plan import Fit

__all__ = ["next_fit", "try_less"]


def try_less(
    group: DeviceGroup,
    stage: int,
    n_together: int,
    steps: Sequence[str],
    fits: Sequence[str],
    elsewhere: Callable[[], str | None],
) -> str | None:
    """What is tried now that an item of ``stage`` did not fit, in words; None if nothing is left to try.

    n_together  items in one call so far; fewer are tried first, whatever the job allows
    steps       what the job allows, in its order: smaller_in_flight, next_fit, other_device
    fits        ways to hold the model that the job allows
    elsewhere   has the item run on another device, if there is one
    """
    said = fewer_together(group, stage, n_together)
    for step in steps if said is None else ():
        if step == "smaller_in_flight":
            said = smaller_in_flight(group, stage)
        elif step == "next_fit":
            said = next_fit(group, stage, fits)
        elif step == "other_device":
            said = elsewhere()
        if said is not None:
            break
    return said


def fewer_together(group: DeviceGroup, stage: int, n_now: int) -> str | None:
    """Half as many items in one call; None if it is one already."""
    if n_now < 2:
        return None
    group.batch[stage] = n_now // 2
    return f"batches of {n_now // 2}"


def smaller_in_flight(group: DeviceGroup, stage: int) -> str | None:
    """Half as many items in flight over a layer group; nothing is built anew for that."""
    for at, assignment in enumerate(group.assignments):
        if assignment.stage == stage and assignment.fit.in_flight > 1:
            fewer = assignment.fit.in_flight // 2
            group.assignments[at] = replace(assignment, fit=replace(assignment.fit, in_flight=fewer))
            group.lowered[stage] = group.assignments[at].fit
            if stage in group.resident:
                group.resident[stage] = group.assignments[at].fit
            return f"{fewer} in flight"
    return None


def next_fit(group: DeviceGroup, stage: int, fits: Sequence[str]) -> str | None:
    """The next way to hold the model on one device that ``fits`` allows."""
    ladder = [name for name in fits if name != "layer_split"]
    for at, assignment in enumerate(group.assignments):
        if assignment.stage != stage or len(group.devices) > 1 or assignment.fit.name not in ladder:
            continue
        lower = ladder[ladder.index(assignment.fit.name) + 1 :]
        if lower:
            n_resident = 0 if lower[0] == "resident_stream" else None
            group.assignments[at] = replace(assignment, fit=Fit(lower[0], resident_blocks=n_resident))
            group.lowered[stage] = group.assignments[at].fit
            return f"fit {lower[0]}"
    return None
