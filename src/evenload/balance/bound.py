"""The bound of a run that has happened: the least time any plan could have taken on the devices it had.

    spans (device, busy_s, n_items) ──► StageWork.add ──► StageWork.bound() ──► Bound

Nothing but the spans is known of a run, so devices are compared by what they did:

- what is known of a device's *speed*, beside the device with most chunks, is a range (``speeds_of``): from
  items whose sizes were told, or from many items on each; alike by their sheets, and not shown to differ,
  is equal;
- the *work* of an item is its busy seconds times the speed of the device that it ran on;
- the bound is the larger of "all work over all speeds" and, for j = 1, 2, ..., "the j longest items over the
  j fastest devices": an item cannot be on two devices at once. This is the exact optimum of a plan that may
  interrupt items (Horvath, Lam and Sethi 1977), and so no plan whatever ends sooner;
- of the speeds in their ranges, those count that say least: the bound is true whatever they are;
- seconds in which an item told that it waits are no work: with more items at once, others run meanwhile;
- a device that had several chunks at once has so many *lanes*, each as fast; and of an item that was done
  several times, the first completion is work.

It is never above the busiest device's busy seconds, hence never above the makespan. What it takes as given:
seconds inside the task that do not depend on the items (a launch, a first compilation) count as work; a
device has one speed for the whole run; and where no sizes were told (``cost``), a device that did many items
had a mix of them like the others'. A device that finished nothing has no speed and is left out
(``Bound.unmeasured``), unless it is alike another by its sheet.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from evenload.certificate import by_longest, by_prices, speeds_of, take_sample

__all__ = [
    "Bound",
    "Lanes",
    "StageWork",
    "bound_of_spans",
    "bound_together",
    "least_time",
    "longest_bound",
    "ratio_to",
    "swapped",
    "work_prices",
]

CLOCK_S, MOST_TIMES, MOST_LANES, MOST_LONGEST = 1e-6, 8192, 4096, 64
SOON_S = 1e-12  # before any bound
SHORTEST_S = 0.01  # of a bound that a run is compared with
NOTHING = 1e-6  # of a device's busy seconds: that is no bound


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds for a stage: ``bound_s``, the larger of ``work_s`` (all work over all speeds) and
    ``longest_s`` (longest items).

    ``up_to_s``: it may be as much, at other speeds that the run does not rule out, if a chunk's time (its
    size not told) is that of one item, and if an item that waits keeps its device. ``speeds`` maps each
    measured device to items (or cost) per second of work, of all its lanes; ``unmeasured`` finished nothing.
    """

    bound_s: float
    work_s: float
    longest_s: float
    speeds: Mapping[str, float] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    up_to_s: float = 0.0

    @property
    def limit(self) -> str:
        """What sets the bound: "work" or "longest item"."""
        return "work" if self.work_s >= self.longest_s else "longest item"

    def ratio(self, wall_s: float) -> float | None:
        """``wall_s`` over the bound (1.0 is the best possible); None if next to nothing was measured."""
        return ratio_to(self.bound_s, wall_s)


def ratio_to(bound_s: float, wall_s: float) -> float | None:
    """``wall_s`` over the bound; None where it is so short that messages are what took the time."""
    return wall_s / bound_s if bound_s >= SHORTEST_S else None


@dataclass(slots=True)
class _Device:
    busy_s: float = 0.0
    waited_s: float = 0.0
    chunk_s: float = (
        0.0  # the longest of no told size, which may be one item's; or item that waited, with that
    )
    longest: list[float] = field(default_factory=list)
    bins: dict[int, Any] = field(default_factory=dict)


class Lanes:
    """A count of the chunks that each device had at once: ``add`` each one, then ``n(device)``.

    It is the most at any time, in whatever order the chunks come; of one that comes after thousands of later
    ones of its device, what was before them is left out. Overlaps of up to a microsecond are rounding.
    """

    def __init__(self) -> None:
        self._times: dict[str, list[tuple[float, int]]] = {}  # of a device: a chunk began (1) or ended (-1)
        self._before: dict[str, tuple[float, int, int]] = {}  # a time, chunks then, most until then
        self._n: dict[str, int] = {}

    def add(self, device: str, start_s: float, stop_s: float) -> None:
        """Count a chunk."""
        start_s = max(start_s, self._before.get(device, (-math.inf, 0, 0))[0])
        if not stop_s - CLOCK_S > start_s:
            return
        times = self._times.setdefault(device, [])
        for one in ((start_s, 1), (stop_s - CLOCK_S, -1)):
            if not times or one >= times[-1]:
                times.append(one)
            else:
                insort(times, one)
        self._n.pop(device, None)
        if len(times) > MOST_TIMES:
            gone = times[: MOST_TIMES // 2]
            self._before[device] = (gone[-1][0], *self._sweep(device, gone))
            del times[: MOST_TIMES // 2]

    def n(self, device: str) -> int:
        """Return the lanes of a device, 1 if nothing is known of it."""
        if device not in self._n:
            self._n[device] = max(1, self._sweep(device, self._times.get(device, ()))[1])
        return self._n[device]

    def busy_until(self, device: str, time_s: float) -> float:
        """Return when the last chunk ended that ended before ``time_s``; long ago if none did."""
        times = self._times.get(device, [])
        ends = (
            t for t, change in reversed(times[: bisect_left(times, (time_s - CLOCK_S, -1))]) if change < 0
        )
        return next(ends, -math.inf) + CLOCK_S

    def _sweep(self, device: str, times: Iterable[tuple[float, int]]) -> tuple[int, int]:
        _, n, most = self._before.get(device, (0.0, 0, 0))
        for _, change in times:
            n += change
            most = max(most, n)
        return n, min(most, MOST_LANES)


class StageWork:
    """The spans of one stage, added up in memory that does not grow with them.

    devices  those that were there from the start: one that never finishes anything is reported as unmeasured
    lanes    of devices that do several chunks at once
    likes    device -> what it shares with those that are as fast by their sheets; filled in as they show up
    used     devices that did anything in any stage: others are as fast as those that are alike
    """

    def __init__(
        self,
        devices: Iterable[str] = (),
        lanes: Lanes | None = None,
        likes: Mapping[str, str] | None = None,
        used: set[str] | None = None,
    ):
        self._used: set[str] = set() if used is None else used
        self._lanes, self._likes = Lanes() if lanes is None else lanes, {} if likes is None else likes
        self._devices: dict[str, _Device] = {device: _Device() for device in devices}
        self._n_untold = 0
        self._shared = SharedItems()
        self._found: tuple[Any, Bound] | None = None  # of which state, since a summary asks several times

    def add(
        self, device: str, busy_s: float, n_items: int, *, cost: float | None = None, is_good: bool = True,
        n_needed: int | None = None, waited_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Count a span of ``n_items`` items that took ``busy_s`` seconds, ``waited_s`` of them told as such.

        ``cost`` is the items' size hint in any unit: give it for all spans of a stage or for none.
        ``is_good=False``: the work had to be done but says nothing of the device's speed (the items raised).
        ``n_needed``: so many of the items had not been done before; the others show speed, but are no work.
        Leave out spans of lost workers and superseded duplicates.
        """
        n_needed = n_items if n_needed is None else n_needed
        work_s = busy_s - waited_s
        if n_items <= 0 or work_s < 0:
            return
        self._found = None
        self._used.add(device)
        one = self._devices.setdefault(device, _Device())
        one.busy_s += work_s * n_needed / n_items
        one.waited_s += waited_s * n_needed / n_items
        if is_good and (cost is None or cost > 0):
            self._n_untold += cost is None
            take_sample(one.bins, work_s / (n_items if cost is None else cost), n_items)
        if n_needed > 0 and (cost is None or waited_s):
            one.chunk_s = max(one.chunk_s, busy_s if cost is None else busy_s / n_items)
        _keep_longest(one.longest, work_s / n_items, n_needed, limit=MOST_LONGEST)

    def add_shared(
        self, device: str, items: Hashable, start_s: float, stop_s: float, *, is_done: bool
    ) -> None:
        """Take note of who had which items, and how long; see ``SharedItems``."""
        self._found = None
        self._shared.add(device, items, start_s, stop_s, is_done=is_done)

    def shared(self) -> list[tuple[str, str, float, float]]:
        """Pairs of devices that had the same items, ``(slow, fast, seconds of each)``."""
        return self._shared.pairs(self._lanes.busy_until)

    def to_prove(self) -> dict[str, Any]:
        """Return what bounds are proved from, as ``evenload.certificate`` has it."""
        samples = {name: one.bins for name, one in self._devices.items() if one.bins}
        idle = [name for name in self._devices if name not in self._used] if samples else []
        likes = {name: self._likes.get(name) or name for name in [*samples, *idle]}
        return {
            "rate": speeds_of(samples, likes, not self._n_untold, self.shared()),
            "busy": {name: self._devices[name].busy_s for name in likes},
            "waited": {name: self._devices[name].waited_s for name in likes},
            "load": dict.fromkeys(likes, 0.0),
            "fixed": 0,
        }

    def lanes(self) -> dict[str, int]:
        """The lanes of each device."""
        return {name: self._lanes.n(name) for name in self._devices}

    def work(self) -> tuple[dict[str, float], dict[str, float]]:
        """Speeds (items or cost per second, of all lanes) and work (in that unit) of the measured devices."""
        rate = self.to_prove()["rate"]
        work = {name: self._devices[name].busy_s * speed for name, (_, speed, *_) in rate.items()}
        return {name: self._lanes.n(name) * speed for name, (_, speed, *_) in rate.items()}, work

    def bound(self) -> Bound:
        lanes, n_used = self.lanes(), len(self._used)
        if self._found is None or self._found[0] != (lanes, n_used):
            self._found = (lanes, n_used), self._bound(lanes)
        return self._found[1]

    def _bound(self, lanes: Mapping[str, int]) -> Bound:
        stage = self.to_prove()
        rate = stage["rate"]
        unmeasured = tuple(name for name in self._devices if name not in rate)
        if not rate:
            return Bound(0.0, 0.0, 0.0, {}, unmeasured)
        items = [(size_s, name, 1) for name in rate for size_s in self._devices[name].longest]
        work_s = least_time(partial(by_prices, [stage], [1.0], lanes))
        longest_s, _ = longest_bound(items, rate, lanes)
        most = swapped(stage)
        most_s = least_time(partial(by_prices, [most], [1.0], lanes), SOON_S)
        chunks = [(self._devices[name].chunk_s, name, 1) for name in rate]
        most_s = max(
            most_s, *(longest_bound(some, most["rate"], lanes, SOON_S)[0] for some in (items, chunks))
        )
        bound_s = max(work_s, longest_s)
        if bound_s < NOTHING * max(stage["busy"].values()):  # who did the work could be fast without limit
            bound_s = work_s = longest_s = 0.0
        speeds = {name: lanes[name] * speed for name, (_, speed, *_) in rate.items()}
        return Bound(bound_s, work_s, longest_s, speeds, unmeasured, max(bound_s, most_s))


def _keep_longest(longest: list[float], size_s: float, n_items: int, limit: int) -> None:
    for _ in range(min(n_items, limit)):
        if len(longest) < limit:
            heapq.heappush(longest, size_s)
        elif size_s > longest[0]:
            heapq.heapreplace(longest, size_s)
        else:
            return


def least_time(proof: Callable[[float], tuple[float, float]], start_s: float = math.inf) -> float:
    """Return the time up to which ``proof`` proves; of a time it gives work, and work a second (Newton)."""
    time_s = start_s
    for _ in range(100):
        work, rate = proof(time_s)
        before_s, time_s = time_s, float(work) / float(rate) if rate > 0 else 0.0
        if abs(time_s - before_s) <= 1e-15 * time_s:
            break
    return time_s


def longest_bound(
    items: list[Any], rate: Mapping[Any, Any], lanes: Mapping[Any, int], start_s: float = math.inf
) -> tuple[float, int]:
    """Return the most that the longest of ``items`` prove, and how many of them."""
    sizes = sorted((size * rate[name][1] for size, name, n in items for _ in range(n)), reverse=True)
    fast = sorted((rate[name][1] for name in rate for _ in range(lanes[name])), reverse=True)
    each = (a / b for a, b in zip(accumulate(sizes), accumulate(fast), strict=False))
    best = max(((least_s, n) for n, least_s in enumerate(each, 1)), default=(0.0, 0))
    tried = {1, best[1]} if best[1] else set()
    proofs = ((partial(by_longest, items, rate, n, lanes), n) for n in tried)
    found = ((least_time(proof, start_s), n) for proof, n in proofs)
    return max(found, default=(0.0, 0))


def bound_of_spans(spans: Iterable[tuple[str, float, int]], devices: Iterable[str] = ()) -> Bound:
    """The bound of one stage (or map) of items of one size, from ``(device, busy_s, n_items)`` of its spans.

    >>> bound_of_spans([("fast", 6.0, 6), ("slow", 4.0, 2)]).bound_s  # 8 items at 1 + 0.5 items a second
    5.333333333333333
    """
    stage = StageWork(devices)
    for device, busy_s, n_items in spans:
        stage.add(device, busy_s, n_items, cost=n_items)
    return stage.bound()


def bound_together(stages: Iterable[StageWork]) -> tuple[float, float]:
    """Seconds that no plan could go below for stages that run at the same time, and up to what it may be.

    Any prices of work give a bound (linear-programming duality): all work is worth what it costs, and no
    device earns more in a second than with the work that pays it best. And no stage alone ends sooner than
    its own bound. As in ``Bound``, it is true for all speeds that the run does not rule out.
    """
    stages = list(stages)
    alone = max((stage.bound().bound_s for stage in stages), default=0.0)
    up_to_s = max((stage.bound().up_to_s for stage in stages), default=0.0)
    if len(stages) < 2:
        return alone, up_to_s
    lanes = {name: n for stage in stages for name, n in stage.lanes().items()}
    parts, prices = [stage.to_prove() for stage in stages], work_prices(stages)
    together = least_time(partial(by_prices, parts, prices, lanes))
    most = least_time(partial(by_prices, [swapped(one) for one in parts], prices, lanes), SOON_S)
    return max(alone, together), max(alone, together, up_to_s, most)


def swapped(stage: dict[str, Any]) -> dict[str, Any]:
    """The stage such that of the speeds in their ranges those count that say most of the bound.

    Waiting counts as work, as if no device could do anything else meanwhile.
    """
    rate = {name: (who, speed, high, low) for name, (who, speed, low, high) in stage["rate"].items()}
    busy = {name: seconds + stage["waited"].get(name, 0) for name, seconds in stage["busy"].items()}
    return stage | {"rate": rate, "busy": busy}


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


MOST_KEPT, MOST_PAIRS = 1024, 256


class _Try(NamedTuple):
    """One device's time with some items; it did them if ``is_done``, else it gave them up at ``stop_s``."""

    device: str
    start_s: float
    stop_s: float
    is_done: bool


class SharedItems:
    """Items that several devices had, in whatever order they come: ``add`` each chunk, then ``pairs``.

    Of the last thousand chunks, those with the same items are compared.
    """

    def __init__(self) -> None:
        self._tries: OrderedDict[Hashable, list[_Try]] = OrderedDict()
        self._pairs: list[tuple[_Try, _Try]] = []

    def add(self, device: str, items: Hashable, start_s: float, stop_s: float, *, is_done: bool) -> None:
        """Count a chunk: of one that is done, ``stop_s - start_s`` are the seconds inside the task."""
        new = _Try(device, start_s, stop_s, is_done)
        others = self._tries.setdefault(items, [])
        for one in others:
            both = ((one, new), (new, one)) if one.device != device and len(self._pairs) < MOST_PAIRS else ()
            self._pairs += [(slow, fast) for slow, fast in both if fast.is_done]
        others.append(new)
        if len(self._tries) > MOST_KEPT:
            self._tries.popitem(last=False)

    def pairs(self, busy_until: Callable[[str, float], float]) -> list[tuple[str, str, float, float]]:
        """Return ``(slow, fast, seconds of slow, seconds of fast)``: the first took at least as long.

        busy_until  when a device was done with what it had before, at a time; only then it began
        """
        found = []
        for slow, fast in self._pairs:
            start_s = (
                slow.start_s if slow.is_done else max(slow.start_s, busy_until(slow.device, slow.stop_s))
            )
            if slow.stop_s > start_s and fast.stop_s > fast.start_s:
                found.append((slow.device, fast.device, slow.stop_s - start_s, fast.stop_s - fast.start_s))
        return found
