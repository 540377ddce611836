"""A run's events as OpenTelemetry spans, through the official library: the run, its stages, their chunks.

Where they go is OpenTelemetry's own configuration (``OTEL_EXPORTER_OTLP_ENDPOINT`` and its like); they are
sent from a thread of the library's, from a queue of bounded length.
"""

import time
from typing import Any

from evenload._closing import Closing
from evenload._optional import require
from evenload._version import __version__
from evenload.events import (
    Event,
    ItemFailed,
    Moved,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
)

__all__ = ["SpanSink", "exporting_provider"]


def exporting_provider() -> Any:
    """A provider that sends spans over OTLP/HTTP. Raises MissingExtra without the library."""
    trace: Any = require("opentelemetry.sdk.trace", extra="watch", why="sending spans")
    export: Any = require("opentelemetry.sdk.trace.export", extra="watch", why="sending spans")
    otlp: Any = require(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", extra="watch", why="sending spans"
    )
    resources: Any = require("opentelemetry.sdk.resources", extra="watch", why="sending spans")

    resource = resources.Resource.create({"service.name": "evenload", "service.version": __version__})
    provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider


class SpanSink(Closing):
    """A sink with ``close()``. ``provider`` is a TracerProvider; the default one sends over OTLP."""

    def __init__(self, provider: Any = None) -> None:
        require("opentelemetry.sdk.trace", extra="watch", why="sending spans")
        self._provider = exporting_provider() if provider is None else provider
        self._tracer = self._provider.get_tracer("evenload", __version__)
        self._began_ns = time.time_ns()
        self._end_s = 0.0
        self._run: Any = None
        self._stages: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        self._end_s = max(self._end_s, getattr(event, "t", 0.0), getattr(event, "stop_s", 0.0))
        match event:
            case RunStarted():
                self._began_ns = int((event.unix_s - event.t) * 1e9) if event.unix_s > 0 else self._began_ns
                attributes = {"evenload.items": event.total or 0, "evenload.devices": len(event.devices)}
                self._run = self._start(f"run {event.name}", event.t, None, attributes)
            case StageStarted():
                self._stage(event.stage, event.t).set_attribute("evenload.items", event.total or 0)
            case Span():
                self._on_span(event)
            case ItemFailed():
                error = {"exception.type": event.error, "exception.message": event.message[:2000]}
                error |= {"exception.stacktrace": event.traceback[-8000:], "evenload.item": event.item}
                self._stage(event.stage, event.t).add_event("exception", error, self._ns(event.t))
            case Moved():
                moved = {"evenload.source": event.source, "evenload.target": event.target}
                moved["evenload.items"] = event.n_items  # pyrefly: ignore
                if self._run is not None:
                    self._run.add_event("moved", moved, self._ns(event.t))
            case StageFinished():
                stage = self._stages.pop(event.stage, None)
                if stage is not None:
                    stage.set_attribute("evenload.bound_s", event.bound_s or 0.0)
                    stage.end(self._ns(event.t))
            case RunFinished():
                self._finish(event.status)

    def close(self) -> None:
        """End what is open and send what waits, for as long as the library's own time-out says."""
        self._finish("")
        self._provider.shutdown()

    def _on_span(self, span: Span) -> None:
        attributes = {
            "evenload.stage": span.stage,
            "evenload.device": span.device,
            "evenload.worker": span.worker,
            "evenload.index": span.index,
            "evenload.items": span.n_items,
            "evenload.busy_s": span.busy_s,
            "evenload.status": span.status,
            "evenload.why": span.why,
            "evenload.duplicate": span.duplicate,
        }
        made = self._start(span.stage, span.start_s, self._stage(span.stage, span.start_s), attributes)
        if span.status in ("failed", "lost"):
            from opentelemetry.trace import StatusCode

            made.set_status(StatusCode.ERROR, span.status)
        made.end(self._ns(max(span.start_s, span.stop_s)))

    def _stage(self, stage: str, t: float) -> Any:
        if stage not in self._stages:
            self._stages[stage] = self._start(f"stage {stage}", t, self._run, {"evenload.stage": stage})
        return self._stages[stage]

    def _start(self, name: str, t: float, parent: Any, attributes: dict[str, Any]) -> Any:
        from opentelemetry import trace

        context = trace.set_span_in_context(parent) if parent is not None else None
        return self._tracer.start_span(name, context=context, start_time=self._ns(t), attributes=attributes)

    def _finish(self, status: str) -> None:
        for stage in self._stages.values():
            stage.end(self._ns(self._end_s))
        self._stages.clear()
        if self._run is not None:
            if status:
                self._run.set_attribute("evenload.status", status)
            self._run.end(self._ns(self._end_s))
            self._run = None

    def _ns(self, t: float) -> int:
        return self._began_ns + int(max(0.0, t) * 1e9)
