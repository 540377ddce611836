"""How a run is going, kept up to date at a few additions per event: what a progress bar shows."""

import math
from dataclasses import dataclass, field

from evenload._plain_text import number_text
from evenload.balance.metrics import imbalance
from evenload.events import (
    Counted,
    Event,
    Idle,
    ItemFailed,
    ItemFinished,
    Planned,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageStarted,
    WorkerStarted,
)
from evenload.report.page.planned import is_sound

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
class StageLeft:
    """The work of a stage so far, and as it was planned: items, and seconds that they took one by one."""

    n_done: int = 0
    n_measured: int = 0
    measured_s: float = 0.0
    began_s: float = math.inf
    n_planned: int = 0
    planned_s: float = 0.0

    def add(self, span: Span) -> None:
        self.began_s = min(self.began_s, span.start_s)
        if span.status in ("ok", "failed"):
            self.n_done += span.n_items
            self.n_measured += span.n_items
            self.measured_s += span.length_s

    def item_s(self, scale: float | None) -> float | None:
        """Seconds of an item; as planned, times ``scale``, where none was measured."""
        if self.n_measured:
            return self.measured_s / self.n_measured
        return scale * self.planned_s / self.n_planned if scale and self.n_planned else None


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
    stages: tuple[str, ...] = ()
    _ends: dict[str, int] = field(default_factory=dict)
    _work: dict[str, StageLeft] = field(default_factory=dict)
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
        elif isinstance(event, Restored):
            self._work_of(event.stage).n_done += event.n_items
            if event.stage == self.stage:
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
            named = event.facts.get("stages")
            self.stages = tuple(map(str, named)) if isinstance(named, list | tuple) else ()
            self._work.clear()
            for device in event.devices:
                self.devices.setdefault(device, DevicePace())
        elif isinstance(event, Counted):
            self._ends = dict(event.ends)
        elif isinstance(event, Planned) and is_sound(event):
            for _, stage, kind, start_s, stop_s, n_items in event.slices if event.makespan_s else ():
                if kind == "work":
                    self._work_of(stage).planned_s += stop_s - start_s
                    self._work_of(stage).n_planned += n_items
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
        self._work_of(span.stage).add(span)
        self.devices.setdefault(span.device, DevicePace()).add(span.start_s, span.stop_s, span.task_s)
        if span.status in ("ok", "failed") and not self._counts_items:
            self.n_done += span.n_items

    @property
    def items_per_s(self) -> float:
        """Over the whole stage: chunks come too unevenly for a shorter view to be steady."""
        elapsed_s = self.last_s - self.began_s if self.began_s is not None else 0.0
        return (self.n_done - self.n_restored) / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        n_open = self._ends.get("unfinished") if self.total is None else max(0, self.total - self.n_done)
        return None if n_open is None or not self.items_per_s else n_open / self.items_per_s

    @property
    def run_eta_s(self) -> float | None:
        """Seconds until the last stage is through, as far as each stage's items were measured or planned.

        What is left of each stage, at the pace of all devices together so far.
        """
        if len(self.stages) < 2:
            return self.eta_s
        known = [one for one in list(self._work.values()) if one.n_measured]
        began_s = min((one.began_s for one in known), default=0.0)
        if not known or self.last_s <= began_s or "total" not in self._ends:
            return None
        at_once = sum(one.measured_s for one in known) / (self.last_s - began_s)
        both = [one for one in known if one.n_planned]
        expected_s = sum(one.n_measured * one.planned_s / one.n_planned for one in both)
        scale = sum(one.measured_s for one in both) / expected_s if expected_s > 0 else None
        open_ = self._ends.get("unfinished", 0)
        left_s = 0.0
        for stage in self.stages:
            work = self._work_of(stage)
            n_left, item_s = min(open_, max(0, self._ends["total"] - work.n_done)), work.item_s(scale)
            if n_left and item_s is None:
                return None
            left_s += n_left * (item_s or 0.0)
        return left_s / at_once if at_once > 0 else None

    def _work_of(self, stage: str) -> "StageLeft":
        return self._work.setdefault(stage, StageLeft())

    @property
    def imbalance(self) -> float:
        return imbalance([device.busy_s for device in list(self.devices.values())])


def pace_line(pace: Pace, max_devices: int = 8) -> str:
    """``restore 412/1000 · 8.1/s · ETA 1:12 | cuda:0 97% cuda:1 64% | imbalance 1.21``"""
    of = f"/{pace.total}" if pace.total is not None else ""
    words = [f"{pace.stage or pace.name or 'run'} {min(pace.n_done, pace.total or pace.n_done)}{of}"]
    if pace.items_per_s:
        words.append(f"{number_text(pace.items_per_s)}/s")
    if eta := eta_text(pace):
        words.append(eta)
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


def eta_text(pace: Pace) -> str:
    """``ETA 1:12``; of a run with several stages also ``ETA 1:12, of all stages 5:40``; "" if not known."""
    if pace.eta_s is None or pace.status:
        return ""
    whole = f", of all stages {clock_text(pace.run_eta_s)}" if pace.run_eta_s is not None else ""
    return f"ETA {clock_text(pace.eta_s)}{whole if len(pace.stages) > 1 else ''}"


def clock_text(seconds: float) -> str:
    """``0:07``, ``12:40``, ``3:05:09``"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
