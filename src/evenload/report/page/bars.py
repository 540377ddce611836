"""Bins of a run that are drawn: what each row did when, the load over time, how long items took.

Memory is bounded: bins double their width, two into one, whenever the run outgrows them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenload.events import DeviceSample, Event, Queued, RunStarted, Span
from evenload.report.inside_items import InsideItems

N_BINS = 1024
FIRST_WIDTH_S = 1e-3
LEAST_SHARE = 0.5  # of a bin; with less in it the row was at rest


class Bins:
    """Rows of ``n`` bins from 0 to ``end``, which double their ``width``, two into one, to reach further.

    sums   row's key -> what was added to each bin
    peaks  row's key -> the largest value seen in each bin, None where there was none
    """

    def __init__(self, n: int, width: float) -> None:
        self.n, self.width, self.end = n, width, 0.0
        self.sums: dict[Any, list[float]] = {}
        self.peaks: dict[Any, list[float | None]] = {}

    def at(self, t: float) -> int:
        """The bin that holds ``t``, which is not below 0."""
        self.end = max(self.end, t)
        while t >= self.n * self.width:
            self.width *= 2
            self.sums = {key: _halved(row, sum, 0) for key, row in self.sums.items()}
            self.peaks = {key: _halved(row, _largest, None) for key, row in self.peaks.items()}
        return min(self.n - 1, int(t / self.width))

    def row(self, key: Any) -> list[float]:
        """The sums of ``key``, with nothing in them at first."""
        return self.sums.setdefault(key, [0] * self.n)  # pyrefly: ignore

    def add(self, key: Any, t: float, amount: float) -> None:
        at = self.at(t)
        self.row(key)[at] += amount

    def spread(self, key: Any, start: float, stop: float, share: float = 1.0) -> None:
        """Add ``share`` of the time between the two to the bins that it lies in."""
        last, first = self.at(stop), self.at(start)
        row = self.row(key)
        for at in range(first, last + 1):
            row[at] += share * (min(stop, (at + 1) * self.width) - max(start, at * self.width))

    def peak(self, key: Any, t: float, value: float) -> None:
        at = self.at(t)
        row = self.peaks.setdefault(key, [None] * self.n)  # pyrefly: ignore
        row[at] = _largest((row[at], value))


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of ``kind`` from ``start_s`` to ``stop_s``; ``n_items`` in it, by their middle."""

    kind: str
    start_s: float
    stop_s: float
    n_items: int


class Bars:
    """A timeline's bars, merged from pieces of work: ``add`` pieces in any order, ``rows()`` gives the bars.

    Memory is bounded by the number of rows and kinds. A bar's ends are right to 1/512 of the whole.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self._seconds, self._items = Bins(n_bins, FIRST_WIDTH_S), Bins(n_bins, FIRST_WIDTH_S)
        self._kinds: dict[str, dict[str, None]] = {}

    def add(self, row: str, kind: str, start_s: float, stop_s: float, n_items: int = 0) -> None:
        """What began before 0 is cut there."""
        start_s = max(0.0, start_s)
        if not start_s <= stop_s < float("inf"):
            return
        self._kinds.setdefault(row, {}).setdefault(kind)
        self._seconds.spread((row, kind), start_s, stop_s)
        self._items.at(stop_s)  # as wide as those of the seconds
        self._items.add((row, kind), (start_s + stop_s) / 2, n_items)

    def rows(self) -> dict[str, list[Bar]]:
        return {row: self._bars(row) for row in self._kinds}

    def _bars(self, row: str) -> list[Bar]:
        width_s, end_s = self._seconds.width, self._seconds.end
        bars: list[Bar] = []
        n = self._seconds.at(end_s) + 1
        before: str | None = None
        begin = n_items = 0
        for at in range(n + 1):
            now = self._kind_at(row, at) if at < n else None
            if now != before or at == n:
                if before is not None:
                    bars.append(Bar(before, begin * width_s, min(at * width_s, end_s), n_items))
                before, begin, n_items = now, at, 0
            if now is not None:
                n_items += int(self._items.sums[row, now][at])
        return bars

    def _kind_at(self, row: str, at: int) -> str | None:
        bins = self._seconds
        seconds = {kind: bins.sums[row, kind][at] for kind in self._kinds[row]}
        most = max(seconds, key=lambda kind: seconds[kind])
        width_s = min(bins.width, bins.end - at * bins.width) or bins.width
        is_busy = sum(seconds.values()) >= LEAST_SHARE * width_s
        return most if is_busy and seconds[most] > 0 else None


def _halved(row: list[Any], merge: Callable[[Any], Any], empty: Any) -> list[Any]:
    merged = [merge(row[at : at + 2]) for at in range(0, len(row), 2)]
    return merged + [empty] * (len(row) - len(merged))


def _largest(values: Any) -> float | None:
    return max((one for one in values if one is not None), default=None)


N_LOAD_BINS = 240
MAX_STAGES = 24  # whose queues are drawn
BUSY, ITEMS, WAITING, SAMPLES = "busy", "items", "waiting", "samples"


class LoadOverTime:
    """The share of each time bin that a device was busy: ``add`` every event, then ``to_json()``.

    A device with several workers can reach a share above one. Useful and wasted work both count: it is load.
    Waiting that items told, and what is not known, is none; of a chunk these are taken to be spread evenly.
    """

    def __init__(self, n_bins: int = N_LOAD_BINS) -> None:
        self._bins = Bins(n_bins, FIRST_WIDTH_S)
        self._bins.row(ITEMS)
        self._stages: set[str] = set()
        self._sampled: dict[str, None] = {}
        self._inside = InsideItems()

    @property
    def width_s(self) -> float:
        return self._bins.width

    def add(self, event: Event) -> None:
        self._inside.add(event)
        if isinstance(event, Span):
            self._add_span(event)
        elif isinstance(event, DeviceSample):
            self._add_sample(event)
        elif isinstance(event, Queued):
            self._add_queued(event)
        elif isinstance(event, RunStarted):
            for device in event.devices:
                self._bins.row((BUSY, device))

    def _add_span(self, span: Span) -> None:
        start_s, stop_s = max(0.0, span.start_s), max(0.0, span.start_s, span.stop_s)
        self._bins.add(ITEMS, stop_s, span.n_items if span.status in ("ok", "failed") else 0)
        if stop_s > start_s:
            share = (span.task_s - sum(self._inside.seconds(span, span.task_s))) / span.length_s
            self._bins.spread((BUSY, span.device), start_s, stop_s, share)

    def _add_sample(self, sample: DeviceSample) -> None:
        if sample.t < 0:
            return
        self._bins.at(sample.t)
        self._sampled.setdefault(sample.device)
        values = {
            "utilization": sample.utilization,
            "memory_bytes": sample.memory_used_bytes,
            "temperature_c": sample.temperature_c,
        }
        for name, value in values.items():
            if value is not None:
                self._bins.peak((SAMPLES, sample.device, name), sample.t, value)

    def _add_queued(self, event: Queued) -> None:
        if event.t < 0 or event.waiting is None:
            return
        if event.stage in self._stages or len(self._stages) < MAX_STAGES:
            self._stages.add(event.stage)
            self._bins.peak((WAITING, event.stage), event.t, event.waiting)

    def to_json(self) -> dict[str, Any]:
        bins = self._bins
        n = bins.at(bins.end) + 1
        # The last bin is only as wide as the run reached into it.
        widths = [bins.width] * (n - 1) + [max(1e-9, bins.end - (n - 1) * bins.width)]
        rates = {
            key: [round(one / width, 4) for one, width in zip(row[:n], widths, strict=True)]
            for key, row in bins.sums.items()
        }
        busy = {key[1]: row[:n] for key, row in bins.sums.items() if key != ITEMS}
        samples: dict[str, dict[str, list[float | None]]] = {device: {} for device in self._sampled}
        waiting = {}
        for (what, name, *more), row in bins.peaks.items():
            if what == WAITING:
                waiting[name] = row[:n]
            else:
                samples[name][more[0]] = row[:n]
        return {
            "width_s": self.width_s,
            "n": n,
            "busy": {device: rates[BUSY, device] for device in busy},
            "items_per_s": rates[ITEMS],
            "waiting": waiting,
            "imbalance": [_imbalance([row[i] for row in busy.values()]) for i in range(n)],
            "samples": samples,
        }


def _imbalance(loads: list[float]) -> float | None:
    """max/mean of one bin; None where nothing ran."""
    total = sum(loads)
    return round(max(loads) * len(loads) / total, 4) if total > 0 else None


PER_DECADE = 10
LOWEST_S = 1e-9


class Durations:
    """Counts of items by the seconds that they took; ``add`` every event.

    ``bins(stage)`` are ``(from_s, to_s, n_items)``, empty ones between full ones too.

    A chunk of several items counts as that many of its mean.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}

    @property
    def stages(self) -> list[str]:
        return list(self._counts)

    def add(self, event: Event) -> None:
        if not isinstance(event, Span) or event.status != "ok" or event.n_items <= 0:
            return
        at = math.floor(math.log10(max(LOWEST_S, event.task_s / event.n_items)) * PER_DECADE)
        counts = self._counts.setdefault(event.stage, {})
        counts[at] = counts.get(at, 0) + event.n_items

    def bins(self, stage: str, most: int = 24) -> list[tuple[float, float, int]]:
        """At most about ``most`` bins: neighbours are put together until they are so few."""
        counts = self._counts.get(stage, {})
        if not counts:
            return []
        low, high = min(counts), max(counts) + 1
        step = max(1, -(-(high - low) // most))
        edges = range(low, high, step)
        return [
            (_edge(at), _edge(at + step), sum(counts.get(i, 0) for i in range(at, at + step))) for at in edges
        ]


def _edge(at: int) -> float:
    return 10 ** (at / PER_DECADE)
