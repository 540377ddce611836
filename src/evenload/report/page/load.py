"""Load over time in a fixed number of bins: busy workers, items through, imbalance, memory.

The bins start narrow and double their width, two into one, whenever the run outgrows them.
"""

from typing import Any

from evenload.events import DeviceSample, Event, Queued, RunStarted, Span
from evenload.report.inside_items import InsideItems

N_BINS = 240
FIRST_WIDTH_S = 1e-3
MAX_STAGES = 24  # whose queues are drawn


class LoadOverTime:
    """The share of each time bin that a device was busy: ``add`` every event, then ``to_json()``.

    A device with several workers can reach a share above one. Useful and wasted work both count: it is load.
    Waiting that items told, and what is not known, is none; of a chunk these are taken to be spread evenly.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = n_bins
        self.width_s = FIRST_WIDTH_S
        self._busy: dict[str, list[float]] = {}
        self._items = [0.0] * n_bins
        self._samples: dict[str, dict[str, list[float | None]]] = {}
        self._waiting: dict[str, list[float | None]] = {}
        self._end_s = 0.0
        self._inside = InsideItems()

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
                self._busy.setdefault(device, [0.0] * self.n_bins)

    def _add_span(self, span: Span) -> None:
        start_s, stop_s = max(0.0, span.start_s), max(0.0, span.start_s, span.stop_s)
        self._reach(stop_s)
        if span.status in ("ok", "failed"):
            self._items[self._bin(stop_s)] += span.n_items
        length_s = stop_s - start_s
        if length_s <= 0:
            return
        busy_s = min(span.busy_s, length_s) if span.busy_s > 0 else length_s
        share = (busy_s - sum(self._inside.seconds(span, busy_s))) / length_s
        row = self._busy.setdefault(span.device, [0.0] * self.n_bins)
        first, last = self._bin(start_s), self._bin(stop_s)
        if first == last:
            row[first] += share * length_s
            return
        row[first] += share * ((first + 1) * self.width_s - start_s)
        for i in range(first + 1, last):
            row[i] += share * self.width_s
        row[last] += share * (stop_s - last * self.width_s)

    def _add_sample(self, sample: DeviceSample) -> None:
        if sample.t < 0:
            return
        self._reach(sample.t)
        rows = self._samples.setdefault(sample.device, {})
        values = {
            "utilization": sample.utilization,
            "memory_bytes": sample.memory_used_bytes,
            "temperature_c": sample.temperature_c,
        }
        for name, value in values.items():
            if value is not None:
                row = rows.setdefault(name, [None] * self.n_bins)  # pyrefly: ignore
                now = row[self._bin(sample.t)]
                row[self._bin(sample.t)] = value if now is None else max(now, value)

    def _add_queued(self, event: Queued) -> None:
        if event.t < 0 or event.waiting is None:
            return
        if event.stage not in self._waiting and len(self._waiting) == MAX_STAGES:
            return
        self._reach(event.t)
        row = self._waiting.setdefault(event.stage, [None] * self.n_bins)  # pyrefly: ignore
        at = self._bin(event.t)
        now = row[at]
        row[at] = event.waiting if now is None else max(now, event.waiting)

    def _bin(self, t: float) -> int:
        return min(self.n_bins - 1, int(t / self.width_s))

    def _reach(self, t: float) -> None:
        self._end_s = max(self._end_s, t)
        while t >= self.n_bins * self.width_s:
            self.width_s *= 2
            self._items = _halved(self._items)
            self._waiting = {stage: _halved_samples(row) for stage, row in self._waiting.items()}
            self._busy = {name: _halved(row) for name, row in self._busy.items()}
            for rows in self._samples.values():
                for name, row in rows.items():
                    rows[name] = _halved_samples(row)

    def to_json(self) -> dict[str, Any]:
        n = min(self.n_bins, int(self._end_s / self.width_s) + 1)
        # The last bin is only as wide as the run reached into it.
        widths = [self.width_s] * (n - 1) + [max(1e-9, self._end_s - (n - 1) * self.width_s)]
        busy = {name: row[:n] for name, row in self._busy.items()}
        return {
            "width_s": self.width_s,
            "n": n,
            "busy": {
                name: [round(one / width, 4) for one, width in zip(row, widths, strict=True)]
                for name, row in busy.items()
            },
            "items_per_s": [
                round(one / width, 4) for one, width in zip(self._items[:n], widths, strict=True)
            ],
            "waiting": {stage: row[:n] for stage, row in self._waiting.items()},
            "imbalance": [_imbalance([row[i] for row in busy.values()]) for i in range(n)],
            "samples": {
                device: {name: row[:n] for name, row in rows.items()}
                for device, rows in self._samples.items()
            },
        }


def _imbalance(loads: list[float]) -> float | None:
    """max/mean of one bin; None where nothing ran."""
    total = sum(loads)
    return round(max(loads) * len(loads) / total, 4) if total > 0 else None


def _halved(row: list[float]) -> list[float]:
    merged = [row[i] + row[i + 1] for i in range(0, len(row) - 1, 2)]
    return merged + [0.0] * (len(row) - len(merged))


def _halved_samples(row: list[float | None]) -> list[float | None]:
    merged = [
        max((x for x in row[i : i + 2] if x is not None), default=None) for i in range(0, len(row) - 1, 2)
    ]
    return merged + [None] * (len(row) - len(merged))
