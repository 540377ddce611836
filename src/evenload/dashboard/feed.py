"""Keeps a board up to date from its file, in a thread of its own, and makes frames of it for viewers."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload.dashboard.board import Board
from evenload.dashboard.panel import Panel
from evenload.events import Event
from evenload.report.html import page
from evenload.report.source import Follower

POLL_S = 0.2
# Without news a frame is made as often as this, for the clocks on the page.
HEARTBEAT_S = 2.0
MAX_CACHED = 32


class Feed:
    """A run at ``path`` (its events file) for any number of viewers. ``start()`` it, ``stop()`` it.

    every_s    least time between two frames
    sinks      get every event as well
    panel      what the page may tell the run, None for nothing
    """

    def __init__(
        self,
        path: Path,
        *,
        every_s: float = 0.5,
        sinks: Sequence[Callable[[Event], None]] = (),
        panel: Panel | None = None,
    ):
        self.panel = panel
        self._sinks = sinks
        self.frames = Frames()
        self.every_s = every_s
        self.n_viewers = 0
        self.error: BaseException | None = None
        self._follower = Follower(path)
        self._board = Board(path.parent)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenload-dash-feed", daemon=True)
        self._cache: OrderedDict[tuple, bytes] = OrderedDict()
        self._published_s = -1e9
        self._n_published = -1

    @property
    def is_over(self) -> bool:
        """Whether the newest frame shows a run that has ended."""
        with self._lock:
            status = self._board.view.tally.summary().status
            return not self._board.is_running(status, self._follower.changed_s) and not self._is_behind()

    def start(self) -> None:
        if self.panel is not None:
            self.panel.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self.panel is not None:
            self.panel.stop()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def timeline(self, from_s: float | None, to_s: float | None, width: int) -> bytes:
        """JSON of ``Board.timeline``; the same question about the same state is answered once."""
        with self._lock:
            key = (self._board.n_events, from_s, to_s, width if from_s is not None else 0)
            if key not in self._cache:
                shown = self._board.timeline(from_s, to_s, width)
                self._cache[key] = json.dumps(shown, separators=(",", ":")).encode()
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
            return self._cache[key]

    def picture(self, number: int) -> tuple[str, bytes] | None:
        with self._lock:
            return self._board.picture(number)

    def report(self) -> str:
        """The run as it is now, as a report in one file."""
        with self._lock:
            return page(self._board.view.to_json(self._board.folder, self._follower.faults(False)))

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                is_behind = self._step()
                if not is_behind:
                    self._stop.wait(POLL_S)
        except BaseException as error:
            self.error = error
            self.frames.put({"faults": [f"The page stopped reading: {type(error).__name__}: {error}"]})
            raise

    def _step(self) -> bool:
        with self._lock:
            events = self._follower.read()
            if events is None:
                self._board, events = Board(self._board.folder), []
                self._cache.clear()
            for event in events:
                self._board.add(event)
                for sink in self._sinks:
                    sink(event)
        now_s = time.monotonic()
        is_new = self._board.n_events != self._n_published or not self._board.is_complete
        if (is_new and now_s - self._published_s >= self.every_s) or now_s - self._published_s >= HEARTBEAT_S:
            self.publish()
        return self._is_behind()

    def publish(self) -> None:
        """Make a frame of what is known now."""
        with self._lock:
            board, follower = self._board, self._follower
            reading = follower.share if follower.is_behind else None
            status = board.view.tally.summary().status
            is_over = not board.is_running(status, follower.changed_s)
            sections = board.sections(follower.changed_s, reading, follower.faults(is_over))
            sections["control"] = self.panel.state if self.panel and not is_over else None
            self._n_published = board.n_events
        self._published_s = time.monotonic()
        self.frames.put(sections)

    def _is_behind(self) -> bool:
        return self._follower.is_behind


class Frames:
    """The sections of a page, each with the version of its value.

    ``put`` new values; ``since(version)`` is what changed after ``version``, as JSON bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sections: dict[str, tuple[int, bytes]] = {}
        self.version = 0

    def put(self, sections: Mapping[str, Any]) -> None:
        encoded = {
            name: json.dumps(value, separators=(",", ":"), default=str).encode()
            for name, value in sections.items()
        }
        with self._lock:
            old = self._sections
            new = {name: text for name, text in encoded.items() if name not in old or old[name][1] != text}
            self.version += bool(new)
            old.update({name: (self.version, text) for name, text in new.items()})

    def since(self, version: int) -> tuple[int, bytes | None]:
        """The newest version, and one JSON object of the sections that came after ``version``, if any."""
        with self._lock:
            parts = [
                json.dumps(name).encode() + b":" + text
                for name, (changed, text) in self._sections.items()
                if changed > version
            ]
            return self.version, b"{" + b",".join(parts) + b"}" if parts else None
