"""RunEvents a run folder, whole or damaged: what can be read is read, the rest is counted and named.

events.jsonl ──► sane events on one clock ──► summary, timeline, trace, ...
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from evenload._private_files import open_plain
from evenload.errors import ConfigError, quoted
from evenload.events import Event, RunStarted, decode

_NUMBERS = (int, float)
_LARGEST = 1e15
MOST_NAMES = 100
MOST_LINE = 16 << 20  # characters


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
        self.sieve = Sieve()
        yield from one_clock(self._sane_events())

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

    def _sane_events(self) -> Iterator[Event]:
        if self.is_missing:
            return
        for line in _lines_of(self.path):
            event = self.sieve.take(line)
            if event is not None:
                yield event


def _lines_of(path: Path) -> Iterator[str]:
    """Lines in bounded memory: of one that is longer than any event, only pieces are ever held."""
    with open(open_plain(path), encoding="utf-8", errors="replace") as file:
        while line := file.readline(MOST_LINE):
            if len(line) == MOST_LINE and not line.endswith("\n"):
                while (rest := file.readline(MOST_LINE)) and not rest.endswith("\n"):
                    pass
            yield line


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


def one_clock(events: Iterable[Event]) -> Iterator[Event]:
    """``events``, those of later sessions behind those of earlier ones."""
    return map(RunClock().place, events)


def _shifted(event: Event, offset: float) -> Event:
    times = {
        name: getattr(event, name) + offset
        for name in ("t", "start_s", "stop_s", "dealt_s")
        if getattr(event, name, None) is not None
    }
    return replace(event, **times)


def _checks(cls: type) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of a class's fields that must be numbers, may be numbers or None, and must be strings."""
    by_kind: dict[Any, list[str]] = {float: [], float | None: [], str: []}
    for one in fields(cls):
        kind = {int: float, int | None: float | None}.get(one.type, one.type)  # pyrefly: ignore
        by_kind.get(kind, []).append(one.name)
    return tuple(by_kind[float]), tuple(by_kind[float | None]), tuple(by_kind[str])


_CHECKS = {cls: _checks(cls) for cls in get_args(Event)}


def is_sane(event: Event) -> bool:
    """True if every time and count of ``event`` is a finite number and every text a string.

    A line of JSON can be whole and still hold what no run writes.
    """
    numbers, maybe, texts = _CHECKS[type(event)]
    for name in numbers:
        value = getattr(event, name)
        if not isinstance(value, _NUMBERS) or not -_LARGEST < value < _LARGEST:
            return False
    for name in maybe:
        value = getattr(event, name)
        if value is not None and (not isinstance(value, _NUMBERS) or not math.isfinite(value)):
            return False
    return all(isinstance(getattr(event, name), str) for name in texts) and _are_maps(event)


def _are_maps(event: Event) -> bool:
    for name in ("devices", "facts", "outputs"):
        value = getattr(event, name, None)
        if value is not None and not isinstance(value, dict):
            return False
    for name in ("running", "queued", "ends", "samples", "parts"):
        counts = getattr(event, name, None)
        if counts is not None and not (
            isinstance(counts, dict) and all(isinstance(n, _NUMBERS) for n in counts.values())
        ):
            return False
    for name in ("items", "suspects"):
        items = getattr(event, name, None)
        if items is not None and not (
            isinstance(items, (list, tuple)) and all(type(one) is int for one in items)
        ):
            return False
    devices = getattr(event, "devices", None)
    return not devices or all(isinstance(facts, dict) for facts in devices.values())


def _unknown_name(line: str) -> str | None:
    """The type of an event that is well formed but not of this version."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = row.get("event") if isinstance(row, dict) else None
    return name if isinstance(name, str) and name not in _KNOWN else None


_KNOWN = {cls.__name__ for cls in get_args(Event)}
