"""A run's events as Prometheus metrics, through prometheus-client; ``docs/how-to/watch.md`` lists them."""

import threading
from collections.abc import Callable, Iterator
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


class Metrics:
    """A sink that counts. ``registry`` is what Prometheus scrapes; counters count since this sink was
    made."""

    def __init__(self) -> None:
        client: Any = require("prometheus_client", extra="watch", why="serving metrics")
        self.registry = client.CollectorRegistry()
        self._tally = Tally()
        self._lock = threading.Lock()
        self._seen: dict[str, set[str]] = {}

        self._make_counters(client)
        self._make_gauges(client)
        self._n_running: dict[str, dict[str, int]] = {}  # stage -> device -> items
        self._n_queued: dict[str, dict[str, int]] = {}
        self.registry.register(_Summary(self))
        self._handlers: dict[type, Callable[[Any], None]] = {
            Span: self._on_span,
            Idle: self._on_idle,
            ItemFailed: self._on_failed,
            Moved: self._on_moved,
            WorkerStarted: self._on_worker,
            WorkerExited: self._on_exit,
            StageStarted: self._on_stage,
            Queued: self._on_queued,
            DeviceSample: self._on_sample,
            RunStarted: self._on_run,
        }

    def _maker(self, client: Any) -> Callable[..., Any]:
        """A function that makes one measure by its kind, name, text and labels."""

        def make(kind: str, name: str, text: str, *labels: str, **more: Any) -> Any:
            return getattr(client, kind)(f"evenload_{name}", text, labels, registry=self.registry, **more)

        return make

    def _make_counters(self, client: Any) -> None:
        make = self._maker(client)
        self._items = make("Counter", "items", "Items that came back.", "stage", "device", "status")
        self._chunks = make("Counter", "chunks", "Chunks that came back.", "stage", "device", "status")
        self._busy = make("Counter", "busy_seconds", "Seconds inside the task.", "device")
        self._idle = make("Counter", "idle_seconds", "Seconds that the policy left a device idle.", "device")
        self._seconds = make(
            "Histogram", "item_seconds", "Seconds per item.", "stage", "device", buckets=SECONDS
        )
        self._failures = make("Counter", "failures", "Items that failed for good.", "stage", "error")
        self._moved = make("Counter", "moved_items", "Queued items moved.", "source", "target")
        self._lost = make("Counter", "workers_lost", "Workers that died.", "device")
        self._startup = make("Counter", "startup_seconds", "Seconds that workers took to start.", "device")

    def _make_gauges(self, client: Any) -> None:
        make = self._maker(client)
        self._expected = make("Gauge", "items_expected", "Items that a stage expects.", "stage")
        self._waiting = make("Gauge", "items_waiting", "Items that no device has begun.", "stage")
        self._running = make("Gauge", "items_running", "Items in work.", "device")
        self._queued = make("Gauge", "items_queued", "Items in a device's own queue.", "device")
        self._load = make("Gauge", "device_utilization_ratio", "As the driver says, 0..1.", "device")
        self._memory = make("Gauge", "device_memory_bytes", "Memory in use.", "device")
        self._memory_total = make("Gauge", "device_memory_total_bytes", "Memory there is.", "device")
        self._heat = make("Gauge", "device_temperature_celsius", "Temperature.", "device")
        self._info = make("Info", "run", "The run.")

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._tally.add(event)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def summary(self) -> Any:
        with self._lock:
            return self._tally.summary()

    def _name(self, kind: str, name: str) -> str:
        """``name`` as a label; "other" for those beyond the first ``MOST_LABELS``."""
        seen = self._seen.setdefault(kind, set())
        if name not in seen and len(seen) >= MOST_LABELS:
            return "other"
        seen.add(name)
        return name

    def _on_run(self, event: RunStarted) -> None:
        self._info.info({"name": event.name[:200], "version": __version__})

    def _on_stage(self, event: StageStarted) -> None:
        if event.total is not None:
            self._expected.labels(self._name("stage", event.stage)).set(event.total)

    def _on_queued(self, event: Queued) -> None:
        if event.waiting is not None:
            self._waiting.labels(self._name("stage", event.stage)).set(event.waiting)
        for gauge, counts, known in (
            (self._running, event.running, self._n_running),
            (self._queued, event.queued, self._n_queued),
        ):
            stage = known.setdefault(self._name("stage", event.stage), {})
            stage.update(dict.fromkeys(stage, 0))  # who is not named has none
            stage.update({self._name("device", device): n for device, n in counts.items()})
            for device in stage:
                gauge.labels(device).set(sum(one.get(device, 0) for one in known.values()))

    def _on_span(self, span: Span) -> None:
        stage, device = self._name("stage", span.stage), self._name("device", span.device)
        status = span.status if span.status in ("ok", "failed", "lost", "superseded") else "other"
        busy_s = span.task_s
        self._items.labels(stage, device, status).inc(max(0, span.n_items))
        self._chunks.labels(stage, device, status).inc()
        self._busy.labels(device).inc(busy_s)
        if span.status == "ok" and span.n_items > 0:
            self._seconds.labels(stage, device).observe(busy_s / span.n_items)

    def _on_idle(self, event: Idle) -> None:
        self._idle.labels(self._name("device", event.device)).inc(max(0.0, event.stop_s - event.start_s))

    def _on_failed(self, event: ItemFailed) -> None:
        self._failures.labels(self._name("stage", event.stage), self._name("error", event.error)).inc()

    def _on_moved(self, event: Moved) -> None:
        source, target = self._name("device", event.source), self._name("device", event.target)
        self._moved.labels(source, target).inc(max(0, event.n_items))

    def _on_worker(self, event: WorkerStarted) -> None:
        self._startup.labels(self._name("device", event.device)).inc(max(0.0, event.startup_s))

    def _on_exit(self, event: WorkerExited) -> None:
        if event.reason != "closed":
            self._lost.labels(self._name("device", event.device)).inc()

    def _on_sample(self, event: DeviceSample) -> None:
        device = self._name("device", event.device)
        for gauge, value in (
            (self._load, event.utilization),
            (self._memory, event.memory_used_bytes),
            (self._memory_total, event.memory_total_bytes),
            (self._heat, event.temperature_c),
        ):
            if value is not None:
                gauge.labels(device).set(value)


class _Summary:
    """The headline numbers, worked out when they are asked for."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        summary = self._metrics.summary()
        values = {
            "times_best_possible": (summary.ratio, "Time over the bound: 1 is the best possible."),
            "bound_seconds": (summary.bound_s, "No plan could have done the work so far in less."),
            "bound_up_to_seconds": (
                summary.bound_up_to_s,
                "The bound may be as much, for all that is known.",
            ),
            "work_seconds": (summary.work_s, "Time in which chunks ran."),
            "imbalance_ratio": (summary.imbalance, "Busiest device over the mean: 1 is even."),
            "utilization_ratio": (
                summary.utilisation,
                "Share of the work's time inside the task, without waiting there; mean.",
            ),
        }
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
        return []
