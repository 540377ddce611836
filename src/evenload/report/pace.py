"""How a run is going, kept up to date at a few additions per event: what a progress bar shows."""

import math
from dataclasses import dataclass, field

from evenload.balance.metrics import imbalance
from evenload.events import (
    Event,
    Idle,
    ItemFailed,
    ItemFinished,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageStarted,
    WorkerStarted,
)

__all__ = ["DevicePace", "Pace", "clock_text", "pace_line"]

# Load and rate forget what is older than about this.
MEMORY_S = 10.0


@dataclass(slots=True)
class DevicePace:
    """The load of a device: ``load`` is the share of the last seconds before the end of its last chunk in
    which it was busy."""

    busy_s: float = 0.0
    load: float = 0.0
    seen_s: float | None = None

    def add(self, start_s: float, stop_s: float, busy_s: float) -> None:
        self.busy_s += busy_s
        since_s = stop_s - (start_s if self.seen_s is None else self.seen_s)
        if since_s > 0:
            keep = math.exp(-since_s / MEMORY_S) if self.seen_s is not None else 0.0
            self.load = keep * self.load + (1 - keep) * min(1.0, busy_s / since_s)
            self.seen_s = stop_s


@dataclass(slots=True)
class Pace:
    """A sink that keeps how far a run is and how fast it goes; read its numbers from any thread."""

    name: str = ""
    stage: str = ""
    total: int | None = None
    n_done: int = 0
    n_failed: int = 0
    began_s: float | None = None
    last_s: float = 0.0
    status: str = ""
    devices: dict[str, DevicePace] = field(default_factory=dict)
    n_restored: int = 0
    _counts_items: bool = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Span):
            self._on_span(event)
        elif isinstance(event, ItemFinished):
            # A pipeline announces each item; until the first, chunks are counted.
            if not self._counts_items and event.stage == self.stage:
                self._counts_items, self.n_done = True, self.n_restored
            self.n_done += event.stage == self.stage
            self.last_s = max(self.last_s, event.t)
        elif isinstance(event, Restored) and event.stage == self.stage:
            self.n_restored += event.n_items
            self.n_done += event.n_items
        elif isinstance(event, ItemFailed):
            self.n_failed += 1
        elif isinstance(event, Idle):
            self.last_s = max(self.last_s, event.stop_s)
        elif isinstance(event, StageStarted):
            self._begin(event.stage, event.total)
        elif isinstance(event, RunStarted):
            self.name, self.total = event.name, event.total
            for device in event.devices:
                self.devices.setdefault(device, DevicePace())
        elif isinstance(event, WorkerStarted):
            self.devices.setdefault(event.device, DevicePace())
        elif isinstance(event, RunFinished):
            self.status, self.last_s = event.status, max(self.last_s, event.t)

    def _begin(self, stage: str, total: int | None) -> None:
        self.stage, self.n_done, self.began_s, self._counts_items = stage, 0, None, False
        self.n_restored = 0
        self.total = total if total is not None else self.total
        self.devices = {device: DevicePace() for device in self.devices}

    def _on_span(self, span: Span) -> None:
        if span.stage != self.stage:
            self._begin(span.stage, None)
        self.began_s = span.start_s if self.began_s is None else min(self.began_s, span.start_s)
        self.last_s = max(self.last_s, span.stop_s)
        span_s = max(0.0, span.stop_s - span.start_s)
        busy_s = min(span.busy_s, span_s) if span.busy_s > 0 else span_s
        self.devices.setdefault(span.device, DevicePace()).add(span.start_s, span.stop_s, busy_s)
        if span.status in ("ok", "failed") and not self._counts_items:
            self.n_done += span.n_items

    @property
    def items_per_s(self) -> float:
        """Over the whole stage: chunks come too unevenly for a shorter view to be steady."""
        elapsed_s = self.last_s - self.began_s if self.began_s is not None else 0.0
        return (self.n_done - self.n_restored) / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        if self.total is None or not self.items_per_s:
            return None
        return max(0, self.total - self.n_done) / self.items_per_s

    @property
    def imbalance(self) -> float:
        return imbalance([device.busy_s for device in list(self.devices.values())])


def pace_line(pace: Pace, max_devices: int = 8) -> str:
    """``restore 412/1000 · 8.1/s · ETA 1:12 | cuda:0 97% cuda:1 64% | imbalance 1.21``"""
    of = f"/{pace.total}" if pace.total is not None else ""
    words = [f"{pace.stage or pace.name or 'run'} {min(pace.n_done, pace.total or pace.n_done)}{of}"]
    if pace.items_per_s:
        words.append(f"{pace.items_per_s:.3g}/s")
    if pace.eta_s is not None and not pace.status:
        words.append(f"ETA {clock_text(pace.eta_s)}")
    if pace.n_failed:
        words.append(f"{pace.n_failed} failed")
    parts = [" · ".join(words)]
    devices = list(pace.devices.items())
    loads = [f"{name} {device.load:.0%}" for name, device in devices[:max_devices]]
    if len(devices) > max_devices:
        loads.append(f"+{len(devices) - max_devices} more")
    if any(device.busy_s for _, device in devices):
        parts += [" ".join(loads), f"imbalance {pace.imbalance:.2f}"]
    return " | ".join(parts)


def clock_text(seconds: float) -> str:
    """``0:07``, ``12:40``, ``3:05:09``"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
