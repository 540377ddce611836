"""A run's events as Prometheus metrics, through prometheus-client; ``docs/how-to/watch.md`` lists them."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from evenload._optional import require
from evenload._version import __version__
from evenload.events import (
    DeviceSample,
    Event,
    Idle,
    ItemFailed,
    Moved,
    Queued,
    RunStarted,
    Span,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)
from evenload.report.tally import Tally

__all__ = ["Metrics"]

# Stages, devices and errors are few; a run that makes up ever new names gets one label for the rest.
MOST_LABELS = 200
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
# name -> kind, text, labels
MEASURES = {
    "items": ("Counter", "Items that came back.", "stage", "device", "status"),
    "chunks": ("Counter", "Chunks that came back.", "stage", "device", "status"),
    "busy_seconds": ("Counter", "Seconds inside the task.", "device"),
    "idle_seconds": ("Counter", "Seconds that the policy left a device idle.", "device"),
    "item_seconds": ("Histogram", "Seconds per item.", "stage", "device"),
    "failures": ("Counter", "Items that failed for good.", "stage", "error"),
    "moved_items": ("Counter", "Queued items moved.", "source", "target"),
    "workers_lost": ("Counter", "Workers that died.", "device"),
    "startup_seconds": ("Counter", "Seconds that workers took to start.", "device"),
    "items_expected": ("Gauge", "Items that a stage expects.", "stage"),
    "items_waiting": ("Gauge", "Items that no device has begun.", "stage"),
    "items_running": ("Gauge", "Items in work.", "device"),
    "items_queued": ("Gauge", "Items in a device's own queue.", "device"),
    "device_utilization_ratio": ("Gauge", "As the driver says, 0..1.", "device"),
    "device_memory_bytes": ("Gauge", "Memory in use.", "device"),
    "device_memory_total_bytes": ("Gauge", "Memory there is.", "device"),
    "device_temperature_celsius": ("Gauge", "Temperature.", "device"),
    "run": ("Info", "The run."),
}
# name -> field of the summary, text
FIGURES = {
    "times_best_possible": ("ratio", "Time over the bound: 1 is the best possible."),
    "bound_seconds": ("bound_s", "No plan could have done the work so far in less."),
    "bound_up_to_seconds": ("bound_up_to_s", "The bound may be as much, for all that is known."),
    "work_seconds": ("work_s", "Time in which chunks ran."),
    "imbalance_ratio": ("imbalance", "Busiest device over the mean: 1 is even."),
    "utilization_ratio": (
        "utilisation",
        "Share of the work's time inside the task, without waiting there; mean.",
    ),
}


class Metrics:
    """A sink that counts. ``registry`` is what Prometheus scrapes; counters count since this sink was
    made."""

    def __init__(self) -> None:
        client: Any = require("prometheus_client", extra="watch", why="serving metrics")
        self.registry = client.CollectorRegistry()
        self._tally = Tally()
        self._lock = threading.Lock()
        self._seen: dict[str, set[str]] = {}
        self._measures: dict[str, Any] = {}
        for name, (kind, text, *labels) in MEASURES.items():
            more = {"buckets": SECONDS} if kind == "Histogram" else {}
            measure = getattr(client, kind)(f"evenload_{name}", text, labels, registry=self.registry, **more)
            self._measures[name] = measure
        self._n_of: dict[tuple[str, str], dict[str, int]] = {}  # gauge, stage -> device -> items
        self.registry.register(self)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._tally.add(event)
        match event:
            case Span():
                self._on_span(event)
            case Idle():
                self._of("idle_seconds", event.device).inc(max(0.0, event.stop_s - event.start_s))
            case ItemFailed():
                self._of("failures", event.stage, event.error).inc()
            case Moved():
                self._of("moved_items", event.source, event.target).inc(max(0, event.n_items))
            case WorkerStarted():
                self._of("startup_seconds", event.device).inc(max(0.0, event.startup_s))
            case WorkerExited() if event.reason != "closed":
                self._of("workers_lost", event.device).inc()
            case StageStarted():
                self._set("items_expected", event.stage, event.total)
            case Queued():
                self._set("items_waiting", event.stage, event.waiting)
                self._spread("items_running", event.stage, event.running)
                self._spread("items_queued", event.stage, event.queued)
            case DeviceSample():
                self._set("device_utilization_ratio", event.device, event.utilization)
                self._set("device_memory_bytes", event.device, event.memory_used_bytes)
                self._set("device_memory_total_bytes", event.device, event.memory_total_bytes)
                self._set("device_temperature_celsius", event.device, event.temperature_c)
            case RunStarted():
                self._measures["run"].info({"name": event.name[:200], "version": __version__})

    def _of(self, name: str, *values: str) -> Any:
        """The measure ``name`` for these values of its labels."""
        return self._measures[name].labels(*map(self._label, MEASURES[name][2:], values))

    def _set(self, name: str, value: str, now: float | None) -> None:
        if now is not None:
            self._of(name, value).set(now)

    def _label(self, kind: str, name: str) -> str:
        """``name`` as a label; "other" for those beyond the first ``MOST_LABELS``."""
        seen = self._seen.setdefault(kind, set())
        if name not in seen and len(seen) >= MOST_LABELS:
            return "other"
        seen.add(name)
        return name

    def _spread(self, name: str, stage: str, counts: Mapping[str, int]) -> None:
        """Set the gauge of each device: what all stages together have there."""
        own = self._n_of.setdefault((name, self._label("stage", stage)), {})
        own.update(dict.fromkeys(own, 0))  # who is not named has none
        own.update({self._label("device", device): n for device, n in counts.items()})
        for device in own:
            n = sum(one.get(device, 0) for (gauge, _), one in self._n_of.items() if gauge == name)
            self._of(name, device).set(n)

    def _on_span(self, span: Span) -> None:
        status = span.status if span.status in ("ok", "failed", "lost", "superseded") else "other"
        self._of("items", span.stage, span.device, status).inc(max(0, span.n_items))
        self._of("chunks", span.stage, span.device, status).inc()
        self._of("busy_seconds", span.device).inc(span.task_s)
        if span.status == "ok" and span.n_items > 0:
            self._of("item_seconds", span.stage, span.device).observe(span.task_s / span.n_items)

    def collect(self) -> Iterator[Any]:
        """Yield the headline numbers, worked out when they are asked for."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            summary = self._tally.summary()
        values = {name: (getattr(summary, one), text) for name, (one, text) in FIGURES.items()}
        factors = summary.factors
        if factors is not None:
            text = "Share of the time waited that was useful work at the devices' speed, 0..1."
            values["useful_ratio"] = (factors.share, text)
        for name, (value, text) in values.items():
            if value is not None:
                yield GaugeMetricFamily(f"evenload_{name}", text, value=value)
        share = GaugeMetricFamily(
            "evenload_factor_ratio", "Factors that multiply to the useful ratio.", labels=["factor"]
        )
        lost = GaugeMetricFamily(
            "evenload_lost_seconds", "Seconds of the run that each factor took.", labels=["factor"]
        )
        for part in factors.parts if factors is not None else ():
            if part.value is not None:
                share.add_metric([part.name], part.value)
                lost.add_metric([part.name], part.lost_s)
        yield from (share, lost)

    def describe(self) -> list[Any]:
        """Name nothing: what is worked out when it is asked for is not known before."""
        return []
