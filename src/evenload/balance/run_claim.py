"""``claim_run``: the certificate of a run from its chunks, in nanoseconds.

    chunks of each stage ──► lanes, speeds ──► what proves the bound of each stretch ──► document

All sums are made anew, in whole numbers, from what the document says.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from evenload.balance.bound import NOTHING, SOON_S, least_time, longest_bound, swapped
from evenload.balance.claim import claim, exact
from evenload.certificate import by_longest, by_prices, long_items, speeds_of, take_sample
from evenload.errors import ConfigError

__all__ = ["StageChunks", "Stretch", "best_witness", "claim_run", "runs_of", "settle", "up_to"]

CLOCK_NS = 1000  # chunks of one worker that overlap by less do so by rounding


@dataclass(slots=True)
class StageChunks:
    """The chunks of a stage, as written: ``[device, start, stop, busy, items, again, cost, is good]``."""

    name: str
    rows: list[list[Any]] = field(default_factory=list)
    n_of: list[tuple[int, int]] = field(default_factory=list)
    speeds: dict[int, tuple[Any, float, float, float]] = field(default_factory=dict)
    shared: list[list[int]] = field(
        default_factory=list
    )  # devices with the same items, and their nanoseconds
    waited: list[int] = field(
        default_factory=list
    )  # nanoseconds of each chunk that were told; no proof needs them

    def add(
        self, device: int, start: int, stop: int, busy: int, items: list[int], n_all: int,
        cost: float | None, is_good: bool, waited: int = 0,
    ) -> None:  # fmt: skip
        """Add a chunk; times in nanoseconds, of at least 0; ``busy``: without those that it told it waited.

        items  those that nobody had done before, ``[first, how many, ...]``; ``n_all``: with those done again
        """
        stop, n = max(start, stop), sum(items[1::2])
        cost = cost if cost is not None and cost > 0 else None
        self.rows.append([device, start, stop, min(busy, stop - start), items, n_all - n, cost, is_good])
        self.n_of.append((n, n_all))
        self.waited.append(waited)

    def share(self, pairs: Iterable[tuple[str, str, float, float]], names: list[str]) -> None:
        """Take note of devices that had the same items, as ``StageWork.shared`` has them; names by number."""
        number = {name: at for at, name in enumerate(names)}
        for slow, fast, *seconds in pairs:
            if slow in number and fast in number:
                self.shared.append(
                    [number[slow], number[fast], *(max(1, round(one * 1e9)) for one in seconds)]
                )

    def measure(self, likes: Sequence[str], idle: Collection[int] = ()) -> None:
        """Take what is known of the speed of each device from its chunks.

        likes  what each device shares with those that are as fast by their sheets
        idle   devices that did nothing in any stage
        """
        samples: dict[int, Any] = {}
        good = [(row, n_all) for row, (_, n_all) in zip(self.rows, self.n_of, strict=True) if row[7]]
        for (device, _, _, busy, _, _, cost, _), n_all in good:
            size = n_all if cost is None else exact(cost)
            take_sample(samples.setdefault(device, {}), float(busy / size) / 1e9, n_all)
        is_told = all(row[6] is not None for row, _ in good)
        known = {d: like for d, like in enumerate(likes) if d in samples or d in idle}
        self.speeds = speeds_of(samples, known, is_told, self.shared)

    def to_prove(self, number: Callable[[float], Any] = float) -> dict[str, Any]:
        """Return what bounds are proved from, as ``evenload.certificate`` has it, with such numbers."""
        busy, waits = dict.fromkeys(self.speeds, 0), dict.fromkeys(self.speeds, 0)
        for row, (n, n_all), waited in zip(self.rows, self.n_of, self.waited, strict=True):
            busy[row[0]] = busy.get(row[0], 0) + row[3] * n // n_all
            waits[row[0]] = waits.get(row[0], 0) + waited * n // n_all
        rate = {d: (who, *map(number, some)) for d, (who, *some) in self.speeds.items()}
        found = {"rate": rate, "busy": busy, "waited": waits, "load": dict.fromkeys(rate, 0), "fixed": 0}
        return found | {"chunks": self.rows}

    def to_json(self, n_devices: int) -> dict[str, Any]:
        """Return the stage as it is written, with the speeds of ``n_devices``."""
        return {
            "name": self.name,
            "items": sum(n for n, _ in self.n_of),
            "speeds": [[*self.speeds[d][1:]] if d in self.speeds else None for d in range(n_devices)],
            "load": [0] * n_devices,
            "loads": [],
            "needs": [],
            "chunks": self.rows,
            "shared": self.shared,
            "waited": self.waited if any(self.waited) else [],
        }


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which stages overlapped, in nanoseconds; ``prices`` to try, of each stage's work."""

    start: int
    stop: int
    stages: Sequence[StageChunks]
    prices: Sequence[float]


def claim_run(
    name: str,
    stages: Sequence[StageChunks],
    lanes: Mapping[str, int],
    stretches: Iterable[Stretch],
    likes: Mapping[str, str],
) -> dict[str, Any]:
    """Return the certificate of a run, for ``json.dumps``; ``evenload.certificate`` checks it.

    lanes  of each device, in the order of their numbers
    likes  device -> what it shares with those that are as fast by their sheets, if there are any

    Raises ConfigError if nothing was measured, or the numbers prove nothing.
    """
    alike = [likes.get(one) or one for one in lanes]
    used = {row[0] for stage in stages for row in stage.rows}
    for stage in stages:
        stage.measure(alike, set(range(len(alike))) - used)
    order = {id(stage): number for number, stage in enumerate(stages)}
    parts, achieved, bound = [], 0, 0
    for one in stretches:
        times = [t for stage in one.stages for row in stage.rows for t in row[1:3]]
        start, stop = min([one.start, *times]), max([one.stop, *times])
        witness = best_witness(list(one.stages), list(one.prices), list(lanes.values()))
        members = [order[id(stage)] for stage in witness.stages]
        part = {"start": start, "stop": stop, "stages": members, "bound": witness.bound}
        parts.append(part | {"prices": witness.prices, "longest": witness.longest})
        achieved, bound = achieved + stop - start, bound + witness.bound
    devices = ({"name": one, "lanes": n, "parts": []} for one, n in lanes.items())
    evidence = {
        "devices": [one | {"like": like} for one, like in zip(devices, alike, strict=True)],
        "stages": [stage.to_json(len(lanes)) for stage in stages],
        "stretches": parts,
    }
    if not bound:
        raise ConfigError(
            "this run cannot be certified: nothing was measured", hint="certify a run that has done items"
        )
    return claim("run", name, achieved, bound, evidence)


def runs_of(items: Iterable[int]) -> list[int]:
    """Return items as ``[first, how many, first, how many, ...]``."""
    found: list[int] = []
    for item in items:
        if found and item == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += [item, 1]
    return found


def settle(rows: list[list[Any]]) -> int:
    """Have chunks begin when the one before has ended, if the clock is at fault. Return the lanes needed."""
    running: list[int] = []
    lanes = 1
    for row in sorted(rows, key=lambda row: row[1:3]):
        while running and running[0] <= row[1]:
            heappop(running)
        if running and running[0] - row[1] <= CLOCK_NS and running[0] <= row[2]:
            row[1] = running[0]
            row[3] = min(row[3], row[2] - row[1])
            while running and running[0] <= row[1]:
                heappop(running)
        heappush(running, row[2])
        lanes = max(lanes, len(running))
    return lanes


@dataclass(frozen=True, slots=True)
class Witness:
    """A proof of a bound: prices of the work of ``stages``, or a number of the first one's longest items."""

    bound: int
    stages: list[StageChunks]
    prices: list[float]
    longest: int = 0


def best_witness(stages: list[StageChunks], prices: list[float], lanes: list[int]) -> Witness:
    """Return what proves most: ``prices`` of all stages together, one stage, or its longest items."""
    if not stages:
        return Witness(0, [], [])
    alone = [[float(one is stage) for one in stages] for stage in stages] if len(stages) > 1 else []
    tried = [_by_prices(stages, some, lanes) for some in (prices, *alone)]
    for at, stage in enumerate(stages):
        tried.append(_by_longest([stage, *stages[:at], *stages[at + 1 :]], lanes))
    best = max(tried, key=lambda one: one.bound)
    busy = max((busy for stage in stages for busy in stage.to_prove()["busy"].values()), default=0)
    return best if best.bound >= NOTHING * busy else Witness(0, stages, [])


def up_to(stages: list[StageChunks], prices: list[float], lanes: list[int]) -> float:
    """Return up to how many nanoseconds the bound of a stretch may be, at speeds that its chunks allow."""
    parts, each = [swapped(one.to_prove()) for one in stages], dict(enumerate(lanes))
    alone = [[float(one is stage) for one in stages] for stage in stages]
    found = [least_time(partial(by_prices, parts, some, lanes), SOON_S) for some in (prices, *alone)]
    for stage, one in zip(stages, parts, strict=True):
        held = ((row, row[3] + waited, waited) for row, waited in zip(stage.rows, stage.waited, strict=True))
        new = ((row, s, waited) for row, s, waited in held if row[4] and row[0] in one["rate"])
        chunks = [
            (s if row[6] is None else s // (sum(row[4][1::2]) + row[5]), row[0], 1)
            for row, s, waited in new
            if row[6] is None or waited
        ]
        both = long_items(one, sum(lanes)), chunks
        found += [longest_bound(some, one["rate"], each, SOON_S)[0] for some in both]
    return max(found, default=0.0)


def _by_prices(stages: list[StageChunks], prices: list[float], lanes: list[int]) -> Witness:
    least = least_time(partial(by_prices, [one.to_prove() for one in stages], prices, lanes))
    parts, exactly = [one.to_prove(exact) for one in stages], [exact(price) for price in prices]
    return Witness(_proved(least, partial(by_prices, parts, exactly, lanes)), stages, prices)


def _by_longest(stages: list[StageChunks], lanes: list[int]) -> Witness:
    about, part, most = stages[0].to_prove(), stages[0].to_prove(exact), sum(lanes)
    least, n = longest_bound(long_items(about, most), about["rate"], dict(enumerate(lanes)))
    items = long_items(part, n)
    return Witness(_proved(least, partial(by_longest, items, part["rate"], n, lanes)), stages, [], n)


def _proved(least: float, proof: Callable[[int], tuple[Any, Any]]) -> int:
    """Return the most whole nanoseconds near ``least``, of floats, that are proved exactly; 0 if none are."""
    for bound in (math.floor(least), math.floor(least * (1 - 1e-12)), math.floor(least * (1 - 1e-9))):
        work, rate = proof(bound) if bound > 0 else (0, 0)
        if 0 < work >= rate * bound:
            return bound
    return 0
