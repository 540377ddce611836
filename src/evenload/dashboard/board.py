"""What the page shows of a run, kept up to date event by event, in bounded memory."""

import base64
import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from evenload._version import __version__
from evenload.events import Event, Moved, Note, Queued, RunStarted
from evenload.report.html import RunView
from evenload.report.pace import Pace
from evenload.report.page.gallery import Gallery, make_thumbnail
from evenload.report.page.timeline import Timeline
from evenload.report.source import read_config

__all__ = ["Board"]

MAX_SLICES = 200_000
# A view of the whole run needs no more; it is made for every frame.
WHOLE_SLICES = 6_000
MAX_PICTURES = 24
MAX_FAILURES = 60
TRACEBACK_CHARS = 8_000
MAX_RECENT = 60
MOST_DEVICES = 1_000
MOST_STAGES = 100
PLAN_BINS = 256
PLAN_EVERY_S = 2.0
# A run that does not say its process counts as running this long after its last event, one that does until it
# is gone; a file that has just grown has a writer, wherever that is.
SILENT_S = 600.0
FRESH_S = 15.0


class Board:
    """The content of the live page of a run; ``add`` takes every event.

    ``sections()`` is the page's state, ``timeline()`` a stretch of it drawn large.
    """

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.view = RunView(MAX_SLICES, MAX_PICTURES, PLAN_BINS)
        self._plan: tuple[float, int, Any] = (-math.inf, -1, None)  # when, of how many events, what
        self.n_events = 0
        self._whole = Timeline(WHOLE_SLICES)
        self._pace = Pace()
        self._pictures = Pictures(folder)
        self._moves: deque[Moved] = deque(maxlen=MAX_RECENT)
        self._notes: deque[Note] = deque(maxlen=MAX_RECENT)
        self._started: RunStarted | None = None
        self._queued: dict[str, Queued] = {}
        self._end_s = 0.0

    def add(self, event: Event) -> None:
        self.n_events += 1
        self.view.add(event)
        self._whole.add(event)
        self._pace(event)
        self._end_s = max(self._end_s, getattr(event, "t", 0.0), getattr(event, "stop_s", 0.0))
        if isinstance(event, Moved):
            self._moves.append(event)
        elif isinstance(event, Note) and event.level != "debug":
            self._notes.append(event)
        elif isinstance(event, Queued):
            if event.stage in self._queued or len(self._queued) < MOST_STAGES:
                self._queued[event.stage] = event
        elif isinstance(event, RunStarted):
            self._started = event

    def picture(self, number: int) -> tuple[str, bytes] | None:
        return self._pictures.get(number)

    @property
    def is_complete(self) -> bool:
        """False while pictures wait for their thumbnails."""
        return self._pictures.is_complete

    def timeline(self, from_s: float | None, to_s: float | None, width: int) -> Mapping[str, Any]:
        """The slices to be seen between two times in ``width`` pixels; of the whole run without times."""
        if from_s is None or to_s is None:
            return self._whole.to_json()
        return self.view.timeline.window(from_s, to_s, max(0.0, to_s - from_s) / width)

    def is_running(self, status: str, changed_s: float) -> bool:
        """Whether somebody still writes these events, last at the Unix time ``changed_s``."""
        age_s = time.time() - changed_s
        if status != "unfinished" or age_s < FRESH_S:
            return status == "unfinished"
        pid = self._started.facts.get("pid") if self._started else None
        return is_alive(pid, self._started.unix_s) if pid and self._started else age_s < SILENT_S

    def sections(self, changed_s: float, reading: float | None, faults: list[str]) -> dict[str, Any]:
        """Everything but the timeline, by name; ``reading`` is the share of a file that is read yet."""
        summary = self.view.tally.summary().to_json()
        failures, slowest = summary.pop("failures"), summary.pop("slowest")
        is_running = self.is_running(summary["status"], changed_s)
        return {
            "run": self._run(summary, is_running, changed_s, reading),
            "summary": summary,
            "failures": [
                {**one, "traceback": one["traceback"][-TRACEBACK_CHARS:]} for one in failures[:MAX_FAILURES]
            ],
            "slowest": slowest,
            "queues": self._queues() if is_running else None,
            "load": self.view.load.to_json(),
            "loads": {name: round(device.load, 3) for name, device in self._pace.devices.items()},
            "moves": [_plain(one, "t", "source", "target", "n_items", "imbalance") for one in self._moves][
                ::-1
            ],
            "notes": [_plain(one, "t", "level", "source", "text") for one in self._notes],
            "gallery": self._pictures.section(self.view.gallery),
            "measures": self.view.measures.to_json(),
            "plan": self._plan_and_run(is_running),
            "config": read_config(self.folder),
            "faults": faults,
            "version": __version__,
        }

    def _plan_and_run(self, is_running: bool) -> Any:
        """Made anew every few seconds: its bars are long, and move little from frame to frame."""
        made_s, n_events, shown = self._plan
        now = time.monotonic()
        if n_events != self.n_events and (not is_running or now - made_s >= PLAN_EVERY_S):
            shown = self.view.plan.to_json()
            self._plan = (now, self.n_events, shown)
        return shown

    def _queues(self) -> dict[str, Any] | None:
        """What each stage has before it, and each device at work and in its own queue; of all stages."""
        if not self._queued:
            return None
        running: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        for one in self._queued.values():
            running.update(_counts(one.running))
            queued.update(_counts(one.queued))
        stages = {
            name: {"waiting": one.waiting, "running": sum(_counts(one.running).values())}
            for name, one in self._queued.items()
        }
        known = [one.waiting for one in self._queued.values() if one.waiting is not None]
        return {
            "waiting": sum(known) if known else None,
            "running": dict(running),
            "queued": dict(queued),
            "stages": stages,
        }

    def _run(
        self, summary: Mapping[str, Any], is_running: bool, changed_s: float, reading: float | None
    ) -> dict[str, Any]:
        # The last event was written when the file changed last.
        quiet_s = max(0.0, time.time() - changed_s) if is_running and reading is None else 0.0
        stage = next((one for one in summary["stages"] if one["stage"] == self._pace.stage), None)
        planned = self._started.facts.get("stages") if self._started else None
        eta_s, run_eta_s = self._pace.eta_s, self._pace.run_eta_s
        return {
            "n_events": self.n_events,
            "is_running": is_running,
            "now_s": round(self._end_s + quiet_s, 1),
            "quiet_s": round(quiet_s),
            "reading": None if reading is None else round(reading, 3),
            "stage": self._pace.stage,
            "stage_done": stage["n_done"] + stage["n_failed"] if stage else 0,
            "stage_total": (stage["total"] if stage else None) or self._pace.total,
            "n_stages": max(len(summary["stages"]), len(planned) if isinstance(planned, list) else 0),
            "items_per_s": round(self._pace.items_per_s, 6),
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "run_eta_s": None if run_eta_s is None else round(run_eta_s, 1),
        }


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(list(counts.items())[:MOST_DEVICES])


def _plain(event: Event, *names: str) -> dict[str, Any]:
    row = {name: getattr(event, name) for name in names}
    return {name: value[:2000] if isinstance(value, str) else value for name, value in row.items()}


def is_alive(pid: Any, began_unix_s: float) -> bool:
    """Is there a process ``pid`` that is as old as the run, not one that has its number now?"""
    try:
        return psutil.Process(int(pid)).create_time() <= began_unix_s + 5.0
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False


PER_STEP = 8
MOST_GONE = 96


class Pictures:
    """The thumbnails of a run that viewers may ask for, by number."""

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._n_made = self._n_left = 0
        self._thumbs: dict[str, dict[str, Any]] = {}
        self._bytes: dict[int, tuple[str, bytes]] = {}
        self._gone: dict[int, tuple[str, bytes]] = {}  # no longer shown; a viewer may be a frame behind
        self._problems: dict[str, str] = {}
        self.is_complete = True

    def get(self, number: int) -> tuple[str, bytes] | None:
        """Media type and content of picture ``number``."""
        return self._bytes.get(number) or self._gone.get(number)

    def section(self, gallery: Gallery) -> dict[str, Any]:
        """What the page shows of ``gallery``; an item appears once its thumbnails are made."""
        wanted = {path for one in gallery.chosen() for _, path in one.ordered()}
        self._drop_all_but(wanted)
        self.is_complete = wanted <= (self._thumbs.keys() | self._problems.keys())
        self._n_left = PER_STEP
        return gallery.shown(self._thumbnail)

    def _thumbnail(self, path: str) -> tuple[dict[str, Any] | None, str]:
        if path not in self._thumbs and path not in self._problems and self._n_left:
            self._n_left -= 1
            self._make(path)
        return self._thumbs.get(path), self._problems.get(path, "")

    def _drop_all_but(self, wanted: set[str]) -> None:
        for gone in [path for path in self._thumbs if path not in wanted]:
            number = self._numbers.pop(gone)
            self._gone[number] = self._bytes.pop(number)
            del self._thumbs[gone]
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._problems = {path: why for path, why in self._problems.items() if path in wanted}

    def _make(self, path: str) -> None:
        thumb, problem = make_thumbnail(self._folder, path)
        if thumb is None:
            self._problems[path] = problem or "cannot be shown"
            return
        head, _, content = thumb.pop("src").partition(",")
        self._n_made += 1
        number = self._numbers[path] = self._n_made
        self._bytes[number] = (head.removeprefix("data:").partition(";")[0], base64.b64decode(content))
        self._thumbs[path] = {**thumb, "src": f"picture/{number}"}
