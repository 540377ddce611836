"""``claim_run``: the certificate of a run from its chunks, in nanoseconds.

    chunks of each stage ──► lanes, speeds ──► what proves the bound of each stretch ──► document

All sums are made anew, in whole numbers, from what the document says.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush, nlargest
from itertools import accumulate
from typing import Any

from evenload.balance.claim import claim, exact
from evenload.certificate import speed_of
from evenload.errors import ConfigError

__all__ = ["StageChunks", "Stretch", "claim_run", "runs_of", "settle"]

CLOCK_NS = 1000  # chunks of one worker that overlap by less do so by rounding


@dataclass(slots=True)
class StageChunks:
    """The chunks of a stage, as written: ``[device, start, stop, busy, items, again, cost, is good]``."""

    name: str
    rows: list[list[Any]] = field(default_factory=list)
    n_of: list[tuple[int, int]] = field(default_factory=list)
    speeds: dict[int, float] = field(default_factory=dict)

    def add(
        self, device: int, start: int, stop: int, busy: int, items: list[int], n_all: int,
        cost: float | None, is_good: bool,
    ) -> None:  # fmt: skip
        """Add a chunk; times in nanoseconds, of at least 0.

        items  those that nobody had done before, ``[first, how many, ...]``; ``n_all``: with those done again
        """
        stop, n = max(start, stop), sum(items[1::2])
        cost = cost if cost is not None and cost > 0 else None
        self.rows.append([device, start, stop, min(busy, stop - start), items, n_all - n, cost, is_good])
        self.n_of.append((n, n_all))

    def measure(self) -> None:
        """Take the speed of each device from its chunks."""
        samples: dict[int, list[tuple[float, int]]] = {}
        for (device, _, _, busy, _, _, cost, is_good), (_, n_all) in zip(self.rows, self.n_of, strict=True):
            if is_good:
                size = n_all if cost is None else exact(cost)
                samples.setdefault(device, []).append((float(busy / size) / 1e9, n_all))
        self.speeds = {device: speed_of(some) for device, some in samples.items()}

    @property
    def work(self) -> Fraction:
        """Nanoseconds of needed work, each times its device's speed."""
        busy: dict[int, int] = {}
        for row, (n, n_all) in zip(self.rows, self.n_of, strict=True):
            busy[row[0]] = busy.get(row[0], 0) + row[3] * n // n_all
        return sum((busy.get(d, 0) * exact(speed) for d, speed in self.speeds.items()), Fraction(0))

    def to_json(self, n_devices: int) -> dict[str, Any]:
        """Return the stage as it is written, with the speeds of ``n_devices``."""
        return {
            "name": self.name,
            "items": sum(n for n, _ in self.n_of),
            "speeds": [self.speeds.get(device) for device in range(n_devices)],
            "load": [0] * n_devices,
            "loads": [],
            "needs": [],
            "chunks": self.rows,
        }


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which stages overlapped, in nanoseconds; ``prices`` to try, of each stage's work."""

    start: int
    stop: int
    stages: Sequence[StageChunks]
    prices: Sequence[float]


def claim_run(
    name: str, stages: Sequence[StageChunks], lanes: Mapping[str, int], stretches: Iterable[Stretch]
) -> dict[str, Any]:
    """Return the certificate of a run, for ``json.dumps``; ``evenload.certificate`` checks it.

    stages  measured; ``lanes``: of each device, in the order of their numbers

    Raises ConfigError if nothing was measured, or the numbers prove nothing.
    """
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
    evidence = {
        "devices": [{"name": one, "lanes": n, "parts": []} for one, n in lanes.items()],
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
    return max(tried, key=lambda one: one.bound)


def _by_prices(stages: list[StageChunks], prices: list[float], lanes: list[int]) -> Witness:
    earned = [Fraction(0)] * len(lanes)
    for stage, price in zip(stages, prices, strict=True):
        for device, speed in stage.speeds.items():
            earned[device] = max(earned[device], lanes[device] * exact(speed) * exact(price))
    worth = sum(one.work * exact(price) for one, price in zip(stages, prices, strict=True))
    return Witness(math.floor(worth / sum(earned)) if sum(earned) else 0, stages, prices)


def _by_longest(stages: list[StageChunks], lanes: list[int]) -> Witness:
    stage = stages[0]
    speeds = {device: exact(speed) for device, speed in stage.speeds.items()}
    fast = sorted((speed for device, speed in speeds.items() for _ in range(lanes[device])), reverse=True)
    if not fast:
        return Witness(0, stages, [])
    sizes = (
        (math.floor(row[3] * speeds[row[0]] / n_all / fast[0]), n)
        for row, (n, n_all) in zip(stage.rows, stage.n_of, strict=True)
        if row[0] in speeds
    )
    longest = nlargest(len(fast), (size for size, n in sizes for _ in range(min(n, len(fast)))))
    found = [
        (math.floor(size * fast[0] / speed), n)
        for n, (size, speed) in enumerate(zip(accumulate(longest), accumulate(fast), strict=False), 1)
    ]
    bound, n = max(found, default=(0, 0))
    return Witness(bound, stages, [], n)
