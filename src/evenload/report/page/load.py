"""Load over time in a fixed number of bins: busy workers, items through, imbalance, memory.

The bins start narrow and double their width, two into one, whenever the run outgrows them.
"""

from typing import Any

from evenload.events import DeviceSample, Event, Queued, RunStarted, Span
from evenload.report.inside_items import InsideItems
from evenload.report.page.bars import FIRST_WIDTH_S, Bins

N_BINS = 240
MAX_STAGES = 24  # whose queues are drawn
BUSY, ITEMS, WAITING, SAMPLES = "busy", "items", "waiting", "samples"


class LoadOverTime:
    """The share of each time bin that a device was busy: ``add`` every event, then ``to_json()``.

    A device with several workers can reach a share above one. Useful and wasted work both count: it is load.
    Waiting that items told, and what is not known, is none; of a chunk these are taken to be spread evenly.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
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
