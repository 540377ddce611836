"""One record of what happened: typed events, where they go, and how they are read back.

Progress bars, reports, traces, the journal's views and tests all read these events and nothing else.
Times are seconds since the run began (``t``, ``start_s``, ``stop_s``); ``RunStarted.unix_s`` says when that
was.

    emit ──► EventLog ──► sinks: a list in memory, events.jsonl, a progress bar, ...
"""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "DeviceSample",
    "Event",
    "EventFile",
    "EventLog",
    "Idle",
    "ItemFailed",
    "ItemFinished",
    "Moved",
    "Note",
    "Planned",
    "Queued",
    "Replanned",
    "Restored",
    "RunFinished",
    "RunStarted",
    "Span",
    "StageFinished",
    "StageStarted",
    "WorkerExited",
    "WorkerStarted",
    "decode",
    "encode",
    "json_text",
    "read_events",
]

SCHEMA = 1
_MOST_DEPTH = 50
_MOST_BITS = 14_280  # 4299 digits: no more are turned into text, or read back


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First event of a run. ``devices`` maps a device id to its facts (name, kind, memory_bytes, ...)."""

    t: float
    name: str
    unix_s: float
    total: int | None = None
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """How a pipeline is going to run, in seconds from now; None and no ``slices`` where no times are known.

    slices  ``(device, stage, kind, start_s, stop_s, n_items)``, ``kind``: load (its model) | work
    """

    t: float
    mode: str
    why: str = ""
    makespan_s: float | None = None
    bound_s: float | None = None
    slices: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage (or the only map) begins; ``total`` items are expected, None if not known."""

    t: float
    stage: str
    total: int | None = None


@dataclass(frozen=True, slots=True)
class StageFinished:
    t: float
    stage: str
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker is ready; it took ``startup_s`` from the decision to start it, constructor included."""

    t: float
    device: str
    worker: str
    pid: int | None = None
    startup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker left. ``reason`` is "closed" for an ordinary end, else what killed it."""

    t: float
    device: str
    worker: str
    reason: str = "closed"


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk ran on one worker from ``start_s`` to ``stop_s``.

    Holds items ``index`` .. ``index + n_items - 1`` (a chunk of one when items are heavy), or ``items`` if
    they do not follow one another; ``cost`` is their size hint, if they have any. ``busy_s`` is the time
    inside the user's function. ``status``: ok | failed (some item raised) | lost (the worker died) |
    superseded (a duplicate elsewhere was faster).
    """

    stage: str
    device: str
    worker: str
    index: int
    n_items: int
    start_s: float
    stop_s: float
    busy_s: float = 0.0
    status: str = "ok"
    why: str = ""
    dealt_s: float | None = None
    duplicate: bool = False
    cost: float | None = None
    items: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """A device was left without work on purpose; ``why`` is the policy's reason."""

    device: str
    start_s: float
    stop_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The load balancer took ``n_items`` queued items from one device and gave them to another."""

    t: float
    source: str
    target: str
    n_items: int
    imbalance: float = 0.0


@dataclass(frozen=True, slots=True)
class Queued:
    """How much waits, now and then while a stage runs.

    waiting  items that no device has begun, None if their number is not known yet
    running  items in work, by device; ``queued``: of those waiting, the ones in a device's own queue
    """

    t: float
    stage: str
    waiting: int | None = None
    running: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemFinished:
    """One item is through all of ``stage``. ``outputs`` are small: numbers, strings, paths in the run folder.

    Emitted by pipelines, where each item matters; a plain ``map`` emits spans only.
    """

    t: float
    stage: str
    index: int
    item: str
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """Items that an earlier run has done: their results come from its journal.

    Those are ``index`` .. ``index + n_items - 1``, or ``items`` if they do not follow one another.
    """

    t: float
    stage: str
    index: int
    n_items: int
    items: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class ItemFailed:
    """One item failed for good. ``error`` is the exception's type, ``message`` its text."""

    t: float
    stage: str
    index: int
    item: str
    error: str
    message: str
    device: str | None = None
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Telemetry of one device. ``utilization`` is a share in 0..1; None where the driver does not say."""

    t: float
    device: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth telling a person. ``level``: debug | info | warning | error."""

    t: float
    level: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Replanned:
    """What is left of a run was planned again, and the new plan is followed.

    why        what had happened: a device joined or left, a stage is over, times are not those planned
    before_s   what is left would have taken so long by the plan before; None: it could not go on
    after_s    what it takes by the new one
    """

    t: float
    why: str
    before_s: float | None
    after_s: float
    mode: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """Last event of a run. ``status``: done | failures | interrupted | failed; ``facts``: its headline."""

    t: float
    status: str
    facts: Mapping[str, Any] = field(default_factory=dict)


Event = (
    RunStarted
    | Planned
    | StageStarted
    | StageFinished
    | WorkerStarted
    | WorkerExited
    | Span
    | Idle
    | Moved
    | Queued
    | ItemFinished
    | Restored
    | ItemFailed
    | DeviceSample
    | Note
    | Replanned
    | RunFinished
)
_TYPES: dict[str, type] = {cls.__name__: cls for cls in Event.__args__}
_FIELDS = {name: frozenset(f.name for f in dataclasses.fields(cls)) for name, cls in _TYPES.items()}


def encode(event: Event) -> str:
    """One line of JSON, without the line end: the event's type under ``event``, then its fields."""
    row = {"event": type(event).__name__}
    row.update((f.name, getattr(event, f.name)) for f in dataclasses.fields(event))
    return json_text(row, separators=(",", ":"))


def json_text(value: Any, **layout: Any) -> str:
    """Strict JSON that any UTF-8 file takes, for any value at all; ``layout`` is that of ``json.dumps``.

    What JSON has no words for is written as near to it as it goes: numbers that are not finite as null,
    halves of surrogate pairs as their escapes, everything else as text.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str, **layout)
    except Exception:  # also what the str() of a stranger's object raises
        text = json.dumps(_nearest_json(value), ensure_ascii=False, allow_nan=False, **layout)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _nearest_json(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() < _MOST_BITS else f"an integer of {value.bit_length()} bits"
    if depth < _MOST_DEPTH and isinstance(value, Mapping):
        return {_str_of(key): _nearest_json(one, depth + 1) for key, one in value.items()}
    if depth < _MOST_DEPTH and isinstance(value, list | tuple):
        return [_nearest_json(one, depth + 1) for one in value]
    return "..." if depth >= _MOST_DEPTH else _str_of(value)


def _str_of(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def decode(line: str) -> Event | None:
    """The event on one line; None for an event type or line this version does not know."""
    try:
        row = json.loads(line)
        name = row.pop("event")
        known = _FIELDS[name]
        return _TYPES[name](**{key: value for key, value in row.items() if key in known})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_events(path: str | Path) -> Iterator[Event]:
    """Stream the events of ``path`` (events.jsonl, or a run folder holding one) in bounded memory.

    Lines that are damaged, half-written or from a newer version are left out, not raised.
    Raises FileNotFoundError if there is no such file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "events.jsonl"
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            event = decode(line)
            if event is not None:
                yield event


class EventLog:
    """Hands every event to its sinks, in order, from any thread. Owns the run's clock.

    A sink is any callable taking one event. A sink that raises is removed and its error is kept in
    ``sink_errors``: watching a run must never stop it.
    """

    def __init__(self, *sinks: Callable[[Event], None], clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._sinks = list(sinks)
        self._lock = threading.Lock()
        self.sink_errors: list[BaseException] = []

    def now(self) -> float:
        """Seconds since this log was made."""
        return self._clock() - self._began

    def subscribe(self, sink: Callable[[Event], None]) -> Callable[[], None]:
        """Add a sink; call the returned function to remove it."""
        with self._lock:
            self._sinks.append(sink)
        return lambda: self._remove(sink)

    def emit(self, event: Event) -> None:
        with self._lock:
            for sink in tuple(self._sinks):
                try:
                    sink(event)
                except Exception as error:
                    self._sinks.remove(sink)
                    self.sink_errors.append(error)

    def _remove(self, sink: Callable[[Event], None]) -> None:
        with self._lock:
            if sink in self._sinks:
                self._sinks.remove(sink)


class EventFile:
    """A sink that appends to ``events.jsonl``; flushed at least every ``flush_s`` and at ``close()``.

    ``error`` is why the file stops early (a full disk), None if all that came is in it.
    """

    def __init__(
        self, path: str | Path, *, flush_s: float = 0.5, clock: Callable[[], float] = time.monotonic
    ):
        self._file = Path(path).open("a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self.error: BaseException | None = None
        self._flush_s = flush_s
        self._clock = clock
        self._flushed = clock()

    def __call__(self, event: Event) -> None:
        try:
            self._file.write(encode(event) + "\n")
            now = self._clock()
            if now - self._flushed >= self._flush_s:
                self._file.flush()
                self._flushed = now
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Flush and close; what cannot be written any more is not raised but noted in ``error``."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
