"""A run's events, of a folder that is whole, damaged, or still written to: what can be read is read.

events.jsonl ──► Follower: sane events on one clock, the rest counted and named ──► summary, timeline, ...
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from evenload._private_files import open_own, open_plain
from evenload.errors import ConfigError, quoted
from evenload.events import Event, RunStarted, decode

_NUMBERS = (int, float)
_LARGEST = 1e15
MOST_NAMES = 100
MOST_LINE = 16 << 20  # bytes


@dataclass
class Sieve:
    """A filter of lines: sane events pass, the others are counted, and named where they have a name."""

    n_events: int = 0
    n_damaged: int = 0
    unknown: Counter[str] = field(default_factory=Counter)

    def take(self, line: str) -> Event | None:
        event = decode(line)
        if event is not None and is_sane(event):
            self.n_events += 1
            return event
        if event is None and (name := _unknown_name(line)):
            # As many names as a person reads; the rest are counted under one.
            self.unknown[name if name in self.unknown or len(self.unknown) < MOST_NAMES else "others"] += 1
        elif line.strip():
            self.n_damaged += 1
        return None

    def faults(self) -> list[str]:
        """What was left out so far, one sentence each."""
        said = []
        if self.n_damaged:
            lines = "line was" if self.n_damaged == 1 else "lines were"
            said.append(f"{self.n_damaged} {lines} damaged or half-written, and left out.")
        for name, n in self.unknown.most_common(5):
            said.append(
                f"{n} × {quoted(name[:40])}: an event that this version does not know; a newer one may."
            )
        return said


@dataclass
class RunEvents:
    """The events of one run, streamed; counted as they are read.

    ``folder`` is where the run's pictures and configuration lie, None for events that came from elsewhere.
    """

    folder: Path | None
    path: Path
    is_missing: bool = False
    sieve: Sieve = field(default_factory=Sieve)

    def __iter__(self) -> Iterator[Event]:
        reader = Follower(self.path)
        self.sieve = reader.sieve
        if not self.is_missing:
            yield from reader.whole()

    @property
    def n_events(self) -> int:
        return self.sieve.n_events

    @property
    def n_damaged(self) -> int:
        return self.sieve.n_damaged

    @property
    def unknown(self) -> Counter[str]:
        return self.sieve.unknown

    def faults(self) -> list[str]:
        """What could not be read, one sentence each; complete once the events were read."""
        said = []
        if self.is_missing:
            said.append(f"{self.path.name} is missing: there is nothing to show but the settings.")
        elif not self.n_events:
            said.append(f"{self.path.name} holds no event that this version can read.")
        return said + self.sieve.faults()


def open_run(path: str | Path) -> RunEvents:
    """The run in ``path``: a run folder, or a file that holds at least one event.

    A folder without events is opened all the same if it has anything of a run in it.
    Raises ConfigError if there is no such run.
    """
    path = Path(path)
    if path.is_file():
        reading = RunEvents(path.parent, path)
        if not any(True for _ in reading) and not reading.unknown:
            hint = "give the run's folder, or its events.jsonl"
            raise ConfigError(f"{quoted(str(path), 200)} is no run: it holds no event", hint=hint)
        return reading
    if not path.is_dir():
        near = path.parent if path.parent.is_dir() else Path()
        runs = sorted(str(found.parent) for found in near.glob("*/events.jsonl"))
        hint = f"runs here: {', '.join(runs[-5:])}" if runs else "give the folder that `evenload run` printed"
        raise ConfigError(f"there is no run at {quoted(str(path), 200)}", hint=hint)
    if (path / "events.jsonl").is_file():
        return RunEvents(path, path / "events.jsonl")
    if any((path / name).is_file() for name in ("summary.json", "results.jsonl", *_CONFIGS)):
        return RunEvents(path, path / "events.jsonl", is_missing=True)
    runs = sorted(str(found.parent) for found in path.glob("*/events.jsonl"))
    hint = f"did you mean {quoted(runs[-1], 200)}?" if runs else "a run folder holds events.jsonl"
    raise ConfigError(f"{quoted(str(path), 200)} is not a run folder: it has no events.jsonl", hint=hint)


_CONFIGS = ("config.yaml", "config.yml", "config.json", "config.toml", "config")


def read_config(folder: Path | None, limit: int = 40_000) -> str:
    """The run's configuration as it was written, "" if there is none; at most ``limit`` characters."""
    for name in _CONFIGS if folder else ():
        path = folder / name  # pyrefly: ignore
        if path.is_file():
            with open(open_plain(path), encoding="utf-8", errors="replace") as text:
                return text.read(limit)
    return ""


class RunClock:
    """A clock that puts the sessions of a resumed run, which each count from zero, one after the other."""

    def __init__(self) -> None:
        self._offset = self._latest = 0.0
        self._n_sessions = 0

    def place(self, event: Event) -> Event:
        """``event`` at its time on the clock of the whole run; events come in order."""
        if isinstance(event, RunStarted):
            self._n_sessions += 1
            self._offset = self._latest if self._n_sessions > 1 else 0.0
        if self._offset:
            event = _shifted(event, self._offset)
        self._latest = max(self._latest, getattr(event, "t", 0.0), getattr(event, "stop_s", 0.0))
        return event


def _shifted(event: Event, offset: float) -> Event:
    times = {
        name: getattr(event, name) + offset
        for name in ("t", "start_s", "stop_s", "dealt_s")
        if getattr(event, name, None) is not None
    }
    return replace(event, **times)


PIECE_BYTES = 1 << 20


class Follower:
    """A reader of an events file that grows: ``read()`` gives the events since the last call, at most about
    ``PIECE_BYTES`` of them.

    ``is_behind``: there is more to read at once. A line without its end is kept until the rest is written.
    Only a plain file is read; with ``only_own`` one of this user's, and none that a link leads to.
    """

    def __init__(self, path: Path, *, only_own: bool = False):
        self.path = path
        self._only_own = only_own
        self.is_behind = False
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._rest = b""
        self._skips = False
        self._clock = RunClock()
        self.size = 0
        self.changed_s = 0.0  # Unix time of the last write
        self.sieve = Sieve()

    @property
    def share(self) -> float:
        """How much of the file was read, 0..1."""
        return self._offset / self.size if self.size else 1.0

    def read(self) -> list[Event] | None:
        """The next events in order, on one clock. None: the file was replaced, what was read is void."""
        self.is_behind = False
        try:
            with open(self._open(), "rb") as file:
                facts = os.fstat(file.fileno())
                file_id = (facts.st_dev, facts.st_ino)
                if self._file_id not in (None, file_id) or facts.st_size < self._offset:
                    self._begin()
                    self.is_behind = True
                    return None
                self._file_id, self.size, self.changed_s = file_id, facts.st_size, facts.st_mtime
                if facts.st_size == self._offset:
                    return []
                file.seek(self._offset)
                piece = file.read(PIECE_BYTES)
        except (OSError, ConfigError):  # not there, or nothing that may be read
            return []
        self._offset += len(piece)
        self.is_behind = self._offset < self.size
        return list(self._events(piece))

    def whole(self) -> Iterator[Event]:
        """Yield all events that are there, the last one also where its line has no end.

        Raises OSError or ConfigError if the file cannot be read.
        """
        with open(self._open(), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield from self._events(piece)
        yield from self._events(b"\n")

    def _open(self) -> int:
        if self._only_own:
            return open_own(self.path, "events of a job", is_trusted=False)
        return open_plain(self.path)

    def faults(self, is_over: bool) -> list[str]:
        """What could not be read; half a line at the end is a fault once the run ``is_over``."""
        said = self.sieve.faults()
        if self.size and not self.sieve.n_events and not self.is_behind:
            said.insert(0, f"{self.path.name} holds no event that this version can read.")
        if is_over and self._rest.strip():
            said.append("The last line is half-written, and left out.")
        return said

    def _events(self, piece: bytes) -> Iterator[Event]:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self._rest) > MOST_LINE:
            # No event is as long: what is left of this line is passed over.
            self.sieve.n_damaged += not self._skips
            self._rest, self._skips = b"", True
        for line in lines:
            event = self.sieve.take(line.decode("utf-8", "replace"))
            if event is not None:
                yield self._clock.place(event)


def _is_map(value: Any, of: Any = object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, of) for one in value.values())


def _are_counts(value: Any) -> bool:
    return _is_map(value, _NUMBERS)


def _are_indices(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(one) is int for one in value)


_COMPOUND: dict[str, Callable[[Any], bool]] = {
    "devices": lambda value: _is_map(value, dict),
    **dict.fromkeys(("facts", "outputs"), _is_map),
    **dict.fromkeys(("running", "queued", "ends", "samples", "parts"), _are_counts),
    **dict.fromkeys(("items", "suspects"), _are_indices),
}


def _checks(cls: type) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of a class's fields that must be numbers, may be numbers or None, must be strings, are others."""
    by_kind: dict[Any, list[str]] = {float: [], float | None: [], str: [], dict: []}
    for one in fields(cls):
        kind = {int: float, int | None: float | None}.get(one.type, one.type)  # pyrefly: ignore
        by_kind.get(dict if one.name in _COMPOUND else kind, []).append(one.name)
    return tuple(by_kind[float]), tuple(by_kind[float | None]), tuple(by_kind[str]), tuple(by_kind[dict])


_CHECKS = {cls: _checks(cls) for cls in get_args(Event)}


def is_sane(event: Event) -> bool:
    """True if every time and count of ``event`` is a finite number and every text a string.

    A line of JSON can be whole and still hold what no run writes.
    """
    numbers, maybe, texts, compound = _CHECKS[type(event)]
    for name in numbers:
        value = getattr(event, name)
        if not isinstance(value, _NUMBERS) or not -_LARGEST < value < _LARGEST:
            return False
    for name in maybe:
        value = getattr(event, name)
        if value is not None and (not isinstance(value, _NUMBERS) or not math.isfinite(value)):
            return False
    for name in compound:
        value = getattr(event, name)
        if value is not None and not _COMPOUND[name](value):
            return False
    return all(isinstance(getattr(event, name), str) for name in texts)


def _unknown_name(line: str) -> str | None:
    """The type of an event that is well formed but not of this version."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = row.get("event") if isinstance(row, dict) else None
    return name if isinstance(name, str) and name not in _KNOWN else None


_KNOWN = {cls.__name__ for cls in get_args(Event)}
