"""The certificate of a run, from its events: chunks, speeds, and what proves the bound.

    events ──► chunks of each stage, in nanoseconds ──► lanes, speeds, witnesses ──► document

All sums are made anew, in whole numbers, from what the document says; the summary's bound shows which prices
and how many longest items to try.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush, nlargest
from itertools import accumulate
from typing import Any

from evenload.balance.bound import StageWork, work_prices
from evenload.balance.claim import claim, exact
from evenload.certificate import speed_of
from evenload.errors import ConfigError
from evenload.events import Event, RunStarted, Span, WorkerExited, WorkerStarted
from evenload.report.items import NeededItems
from evenload.report.tally import Tally
from evenload.report.worker_tracks import WorkerTracks

__all__ = ["run_certificate"]

CLOCK_NS = 1000  # chunks of one worker that overlap by less do so by rounding


def run_certificate(events: Iterable[Event]) -> dict[str, Any]:
    """Return the certificate of a run from its events, as an object for ``json.dumps``.

    It claims the time of the work (``work_s`` of the summary, in nanoseconds) and its bound, and has every
    chunk that counted: which device did which items when. ``evenload.certificate`` checks it.

    Raises ConfigError if nothing was measured, or the log is damaged such that its numbers prove nothing.
    """
    tally, chunks, name = Tally(), ChunkRows(), ""
    for event in events:
        tally.add(event)
        chunks.add(event)
        if isinstance(event, RunStarted):
            name = name or event.name
    stretches = tally.stretches()
    stages, lanes = chunks.stages(), chunks.lanes()
    order = {stage.name: number for number, stage in enumerate(stages)}
    lanes = {track: max(n, tally.lanes.n(track)) for track, n in lanes.items()}  # of a log out of order
    parts, achieved, bound = [], 0, 0
    for start_s, stop_s, works in stretches:
        some = [stages[order[one]] for one in works if one in order]
        times = [t for stage in some for row in stage.rows for t in row[1:3]]
        start = min([chunks.time(start_s), *times])
        stop = max([chunks.time(stop_s), *times])
        done = {one: work for one, work in works.items() if one in order}
        witness = _best_witness(some, done, list(lanes.values()))
        members = [order[one.name] for one in witness.stages]
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
    return claim("run", name or next(iter(order), "run"), achieved, bound, evidence)


@dataclass(slots=True)
class _Stage:
    """The chunks of a stage, as written: ``[device, start, stop, busy, items, again, cost, is good]``.

    items  that nobody had done before; ``n_of``: how many, and with those done again
    """

    name: str
    rows: list[list[Any]] = field(default_factory=list)
    n_of: list[tuple[int, int]] = field(default_factory=list)
    speeds: dict[int, float] = field(default_factory=dict)

    def measure(self) -> None:
        samples: dict[int, list[tuple[float, int]]] = {}
        for (device, _, _, busy, _, _, cost, is_good), (_, n_all) in zip(self.rows, self.n_of, strict=True):
            if is_good:
                size = n_all if cost is None else exact(cost)
                samples.setdefault(device, []).append((float(busy / size) / 1e9, n_all))
        self.speeds = {device: speed_of(some) for device, some in samples.items()}

    @property
    def work(self) -> Fraction:
        busy: dict[int, int] = {}
        for row, (n, n_all) in zip(self.rows, self.n_of, strict=True):
            busy[row[0]] = busy.get(row[0], 0) + row[3] * n // n_all
        return sum((busy.get(d, 0) * exact(speed) for d, speed in self.speeds.items()), Fraction(0))

    def to_json(self, n_devices: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "items": sum(n for n, _ in self.n_of),
            "speeds": [self.speeds.get(device) for device in range(n_devices)],
            "load": [0] * n_devices,
            "loads": [],
            "needs": [],
            "chunks": self.rows,
        }


class ChunkRows:
    """The chunks of a run that count as work, by stage; ``add`` every event.

    Chunks of one worker follow one another. Where a log has them at the same time, the worker has lanes: the
    bound counts it that often.
    """

    def __init__(self) -> None:
        self._tracks = WorkerTracks()
        self._numbers: dict[str, int] = {}
        self._stages: dict[str, _Stage] = {}
        self._needed = NeededItems()
        self._shift = 0

    def time(self, t: float) -> int:
        """Return nanoseconds on the document's clock, which begins at 0."""
        return round(t * 1e9) + self._shift

    def add(self, event: Event) -> None:
        if isinstance(event, (WorkerStarted, WorkerExited)):
            self._tracks.see(event)
        self._needed.add(event)
        if not isinstance(event, Span):
            return
        track = self._tracks.key(event.device, event.worker)
        length_s = max(0.0, event.stop_s - event.start_s)
        busy_s = min(event.busy_s, length_s) if event.busy_s > 0 else length_s
        if event.status in ("superseded", "lost") or event.n_items <= 0:
            return
        first = event.index if event.items is None else min(event.items, default=0)
        n_all = event.n_items if event.items is None else len(event.items)
        if first < 0 or n_all != event.n_items:
            raise ConfigError(
                f"this run cannot be certified: its log is damaged, a chunk has {event.n_items} items from"
                f" {first}", hint="`evenload report` shows what can be read of it",
            )  # fmt: skip
        items = self._needed.runs(event)
        n = sum(items[1::2])
        start = round(event.start_s * 1e9)
        stop = max(start, round(event.stop_s * 1e9))
        cost = event.cost if event.cost is not None and event.cost > 0 else None
        is_good = event.status == "ok" and (event.cost is None or event.cost > 0)
        stage = self._stages.setdefault(event.stage, _Stage(event.stage))
        device = self._numbers.setdefault(track, len(self._numbers))
        busy = min(round(busy_s * 1e9), stop - start)
        stage.rows.append([device, start, stop, busy, items, n_all - n, cost, is_good])
        stage.n_of.append((n, n_all))

    def lanes(self) -> dict[str, int]:
        """Return for each worker's track how many chunks it had at once, most of all 1; evens out clocks."""
        rows: list[list[list[Any]]] = [[] for _ in self._numbers]
        for stage in self._stages.values():
            for row in stage.rows:
                rows[row[0]].append(row)
        found = {track: _settle(rows[number]) for track, number in self._numbers.items()}
        for stage in self._stages.values():
            stage.measure()
        return found

    def stages(self) -> list[_Stage]:
        """Return the stages that did anything, their times from 0 on."""
        first = min((row[1] for stage in self._stages.values() for row in stage.rows), default=0)
        if first < 0 and not self._shift:
            self._shift = -first
            for stage in self._stages.values():
                stage.rows = [[row[0], row[1] - first, row[2] - first, *row[3:]] for row in stage.rows]
        return list(self._stages.values())


def _settle(rows: list[list[Any]]) -> int:
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
class _Witness:
    """What proves a bound: prices of the work of ``stages``, or a number of the first one's longest items."""

    bound: int
    stages: list[_Stage]
    prices: list[float]
    longest: int = 0


def _best_witness(stages: list[_Stage], works: Mapping[str, StageWork], lanes: list[int]) -> _Witness:
    if not stages:
        return _Witness(0, [], [])
    together = work_prices(works.values())
    alone = [[float(one is stage) for one in stages] for stage in stages] if len(stages) > 1 else []
    tried = [_by_prices(stages, prices, lanes) for prices in (together, *alone)]
    for at, stage in enumerate(stages):
        tried.append(_by_longest([stage, *stages[:at], *stages[at + 1 :]], lanes))
    return max(tried, key=lambda one: one.bound)


def _by_prices(stages: list[_Stage], prices: list[float], lanes: list[int]) -> _Witness:
    earned = [Fraction(0)] * len(lanes)
    for stage, price in zip(stages, prices, strict=True):
        for device, speed in stage.speeds.items():
            earned[device] = max(earned[device], lanes[device] * exact(speed) * exact(price))
    worth = sum(one.work * exact(price) for one, price in zip(stages, prices, strict=True))
    return _Witness(math.floor(worth / sum(earned)) if sum(earned) else 0, stages, prices)


def _by_longest(stages: list[_Stage], lanes: list[int]) -> _Witness:
    stage = stages[0]
    speeds = {device: exact(speed) for device, speed in stage.speeds.items()}
    fast = sorted((speed for device, speed in speeds.items() for _ in range(lanes[device])), reverse=True)
    if not fast:
        return _Witness(0, stages, [])
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
    return _Witness(bound, stages, [], n)
