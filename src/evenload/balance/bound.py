"""The bound of a run that has happened: the least time any plan could have taken on the devices it had.

    spans (device, busy_s, n_items) ──► StageWork.add ──► StageWork.bound() ──► Bound

Nothing but the spans is known of a run, so devices are compared by what they did:

- the *speed* of a device is items per busy second over the middle half of its items (the mean of their
  logarithms), so that one very long item does not make its device look slow;
- the *work* of an item is its busy seconds times the speed of the device that it ran on;
- the bound is the larger of "all work over all speeds" and, for j = 1, 2, ..., "the j longest items over the
  j fastest devices": an item cannot be on two devices at once. This is the exact optimum of a plan that may
  interrupt items (Horvath, Lam and Sethi 1977), and so no plan whatever ends sooner;
- a device that had several chunks at once has so many *lanes*, each as fast; and of an item that was done
  several times, the first completion is work.

Whatever the speeds, it is never above the busiest device's busy seconds, hence never above the makespan.
What it takes as given: seconds inside the task that do not depend on the items (a launch, a first
compilation) count as work; a device has one speed for the whole run; and without size hints (``cost``)
every device had a like mix of items, so it is only an estimate when large items went to some devices on
purpose. A device that finished nothing has no speed and is left out (``Bound.unmeasured``).
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evenload.balance.metrics import sorted_prefix_bound

__all__ = ["Bound", "Lanes", "StageWork", "bound_of_spans", "bound_together", "work_prices"]


CLOCK_S, MOST_LANES, MOST_LONGEST = 1e-6, 4096, 64


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds for a stage: ``bound_s``, the larger of ``work_s`` (all work over all speeds) and
    ``longest_s`` (longest items).

    ``speeds`` maps each measured device to items (or cost) per busy second, of all its lanes; ``unmeasured``
    finished nothing.
    """

    bound_s: float
    work_s: float
    longest_s: float
    speeds: Mapping[str, float] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()

    @property
    def limit(self) -> str:
        """What sets the bound: "work" or "longest item"."""
        return "work" if self.work_s >= self.longest_s else "longest item"

    def ratio(self, wall_s: float) -> float | None:
        """``wall_s`` over the bound (1.0 is the best possible); None if nothing was measured."""
        return wall_s / self.bound_s if self.bound_s > 0 else None


@dataclass(slots=True)
class _Device:
    busy_s: float = 0.0
    longest: list[float] = field(default_factory=list)
    # Histogram of log(seconds per item) in steps of 1/50: bin -> (items, sum of the logarithms).
    bins: dict[int, tuple[float, float]] = field(default_factory=dict)

    def rate(self, seconds: float, n_items: int) -> None:
        log_s = math.log(max(seconds, 1e-9))
        n, total = self.bins.get(math.floor(log_s * 50), (0.0, 0.0))
        self.bins[math.floor(log_s * 50)] = (n + n_items, total + n_items * log_s)

    @property
    def speed(self) -> float | None:
        """Items per second over the middle half of the items; None if there are none."""
        everything = sum(n for n, _ in self.bins.values())
        if not everything:
            return None
        low, high, seen, weight, total = everything / 4, everything * 3 / 4, 0.0, 0.0, 0.0
        for _, (n, log_sum) in sorted(self.bins.items()):
            inside = max(0.0, min(seen + n, high) - max(seen, low))
            seen, weight, total = seen + n, weight + inside, total + inside * log_sum / n
        return math.exp(-total / weight)


class Lanes:
    """A count of the chunks that each device had at once: ``add`` each one when it ends, then ``n(device)``.

    It is the least number if chunks come in the order of their ends, else at least that. Overlaps of up to a
    microsecond are rounding.
    """

    def __init__(self) -> None:
        self._ends: dict[str, list[float]] = {}

    def add(self, device: str, start_s: float, stop_s: float) -> None:
        """Give a chunk to the lane that became free last before it (Faigle and Nawijn 1995)."""
        ends = self._ends.setdefault(device, [])
        at = bisect_right(ends, start_s + CLOCK_S)
        if at:
            del ends[at - 1]
        elif len(ends) >= MOST_LANES:
            return
        ends.insert(bisect_right(ends, stop_s), max(start_s, stop_s))

    def n(self, device: str) -> int:
        """Return the lanes of a device, 1 if nothing is known of it."""
        return max(1, len(self._ends.get(device, ())))


class StageWork:
    """The spans of one stage, added up in O(devices²) memory however many there are.

    ``devices`` names those that were there from the start (one that never finishes anything is reported as
    unmeasured); others are added as they show up. ``lanes``: of devices that do several chunks at once.
    """

    def __init__(self, devices: Iterable[str] = (), lanes: Lanes | None = None):
        self._lanes = Lanes() if lanes is None else lanes
        self._devices: dict[str, _Device] = {device: _Device() for device in devices}

    def add(
        self, device: str, busy_s: float, n_items: int, *, cost: float | None = None, is_good: bool = True,
        n_needed: int | None = None,
    ) -> None:  # fmt: skip
        """Count a span of ``n_items`` items that took ``busy_s`` seconds.

        ``cost`` is the items' size hint in any unit: give it for all spans of a stage or for none.
        ``is_good=False``: the work had to be done but says nothing of the device's speed (the items raised).
        ``n_needed``: so many of the items had not been done before; the others show speed, but are no work.
        Leave out spans of lost workers and superseded duplicates.
        """
        n_needed = n_items if n_needed is None else n_needed
        if n_items <= 0 or busy_s < 0:
            return
        one = self._devices.setdefault(device, _Device())
        one.busy_s += busy_s * n_needed / n_items
        if is_good and (cost is None or cost > 0):
            one.rate(busy_s / (n_items if cost is None else cost), n_items)
        limit = max(MOST_LONGEST, len(self._devices) - 1 + self._lanes.n(device))
        _keep_longest(one.longest, busy_s / n_items, n_needed, limit=limit)

    def work(self) -> tuple[dict[str, float], dict[str, float]]:
        """Speeds (items or cost per second, of all lanes) and work (in that unit) of the measured devices."""
        speeds = self._lane_speeds()
        work = {name: self._devices[name].busy_s * speed for name, speed in speeds.items()}
        return {name: self._lanes.n(name) * speed for name, speed in speeds.items()}, work

    def _lane_speeds(self) -> dict[str, float]:
        rated = ((name, one.speed) for name, one in self._devices.items())
        return {name: speed for name, speed in rated if speed is not None}

    def bound(self) -> Bound:
        speeds, work = self.work()
        unmeasured = tuple(name for name in self._devices if name not in speeds)
        if not speeds:
            return Bound(0.0, 0.0, 0.0, {}, unmeasured)
        work_s = sum(work.values()) / sum(speeds.values())
        each = self._lane_speeds()
        items = (size_s * speed for name, speed in each.items() for size_s in self._devices[name].longest)
        lanes = [speed for name, speed in each.items() for _ in range(self._lanes.n(name))]
        longest_s = sorted_prefix_bound(heapq.nlargest(len(lanes), items), lanes)
        return Bound(max(work_s, longest_s), work_s, longest_s, speeds, unmeasured)


def _keep_longest(longest: list[float], size_s: float, n_items: int, limit: int) -> None:
    for _ in range(min(n_items, limit)):
        if len(longest) < limit:
            heapq.heappush(longest, size_s)
        elif size_s > longest[0]:
            heapq.heapreplace(longest, size_s)
        else:
            return


def bound_of_spans(spans: Iterable[tuple[str, float, int]], devices: Iterable[str] = ()) -> Bound:
    """The bound of one stage (or map) from ``(device, busy_s, n_items)`` of its good spans.

    >>> bound_of_spans([("fast", 6.0, 6), ("slow", 4.0, 2)]).bound_s  # 8 items at 1 + 0.5 items a second
    5.333333333333333
    """
    stage = StageWork(devices)
    for device, busy_s, n_items in spans:
        stage.add(device, busy_s, n_items)
    return stage.bound()


def bound_together(stages: Iterable[StageWork]) -> float:
    """Seconds that no plan could go below for stages that run at the same time, on shared devices.

    Any prices of work give a bound (linear-programming duality): all work is worth what it costs, and no
    device earns more in a second than with the work that pays it best. And no stage alone ends sooner than
    its own bound.
    """
    stages = list(stages)
    alone = max((stage.bound().bound_s for stage in stages), default=0.0)
    loads, prices = [stage.work() for stage in stages], work_prices(stages)
    earned: dict[str, float] = {}
    for (speeds, _), price in zip(loads, prices, strict=True):
        for name, speed in speeds.items():
            earned[name] = max(earned.get(name, 0.0), price * speed)
    worth = sum(price * sum(work.values()) for (_, work), price in zip(loads, prices, strict=True))
    return max(alone, worth / sum(earned.values())) if worth > 0 else alone


def work_prices(stages: Iterable[StageWork]) -> list[float]:
    """The price of a unit of each stage's work at which ``bound_together`` proves its bound.

    A second of a device costs its share of the work of a balanced run, and work what it costs where that is
    cheapest: exact when the devices' speed ratios are the same in all stages. 0 where nothing was measured.
    """
    loads = [stage.work() for stage in stages]
    price: dict[str, float] = {}
    for speeds, work in loads:
        whole_s = sum(work.values()) / sum(speeds.values()) if speeds else 0.0
        for name, speed in speeds.items():
            price[name] = price.get(name, 0.0) + whole_s * speed / sum(speeds.values())
    total = sum(price.values()) or 1.0
    seconds = {name: share / total for name, share in price.items()}
    return [min((seconds[d] / speed for d, speed in speeds.items()), default=0.0) for speeds, _ in loads]
