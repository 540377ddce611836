"""When things would end if all went as estimated: what ``Measured`` looks at before it decides."""

from collections.abc import Iterable
from math import inf

from evenload.balance.policy.base import Ask
from evenload.balance.policy.device_state import OVERDUE, Lane
from evenload.balance.policy.estimate import Cost

__all__ = ["common_end", "ends_first", "free_in", "helps", "overdue_at", "overdue_devices"]


def common_end(ask: Ask, lanes: Iterable[Lane], work: float) -> float:
    """Seconds from now at which ``lanes`` would end together if they shared ``work`` freely (water-filling).

    Each starts once through with what it runs and its launch. Lanes that are overdue get nothing; a lane
    without a result is taken for as fast, by its prior, as those that have one.
    """
    speeds = ask.speeds()
    starts: list[tuple[float, float]] = []
    for lane in lanes:
        cost = lane.estimate.cost
        rate = speeds[lane.device]
        if not rate:
            continue
        start = 0.0 if cost is None else cost.launch_s
        if lane is not ask.lane:
            if lane.is_overdue(ask.now):
                continue
            start += free_in(lane, ask.now, cost or Cost(0.0, 1.0 / rate))
        starts.append((start, rate))
    speed = filled = 0.0
    end_s = inf
    for start, rate in sorted(starts):
        if start >= end_s:
            break
        speed += rate
        filled += start * rate
        if speed > 0:
            end_s = (work + filled) / speed
    return end_s


def overdue_devices(ask: Ask) -> set[str]:
    """Devices that may be lost to items that hang: what they run takes long, there or where else it runs."""
    overdue: set[str] = set()
    for lane in ask.lanes:
        cost = lane.estimate.cost
        for flight in lane.flights.values():
            if cost is None or ask.now - flight.began_s > OVERDUE * cost.seconds(flight.work):
                # Parts of a chunk share its fate only in part: at most one of them holds the item that hangs.
                family = flight.family or (flight,)
                overdue.update(other.device for other in family if len(other) >= len(flight))
    return overdue


def ends_first(ask: Ask, item: float) -> bool:
    """Would an item of this size end nowhere sooner than here, if begun as soon as each device is free?"""

    def end_s(lane: Lane) -> float:
        cost = lane.estimate.cost
        return inf if cost is None else free_in(lane, ask.now, cost) + cost.seconds(item)

    mine = end_s(ask.lane)
    others = (lane for lane in ask.lanes if lane is not ask.lane and lane.held_version != ask.version)
    return all(mine <= end_s(lane) for lane in others if not lane.is_overdue(ask.now))


def free_in(lane: Lane, now: float, cost: Cost) -> float:
    """Seconds until the lane is through with what it runs, if that costs ``cost``."""
    return sum(max(0.0, cost.seconds(f.work) - (now - f.began_s)) for f in lane.flights.values())


def helps(lane: Lane, ask: Ask) -> bool:
    """Can ``lane`` be counted on? Not if it is overdue, or was offered this very work and refused."""
    if lane.flights:
        return not lane.is_overdue(ask.now)
    return lane.is_up and lane.held_version != ask.version


def overdue_at(lane: Lane) -> float:
    """When it can no longer be counted on, if it has not answered by then."""
    cost = lane.estimate.cost
    if cost is None:
        return inf
    return min(flight.began_s + OVERDUE * cost.seconds(flight.work) for flight in lane.flights.values())
