"""The events of a run: what happened, as immutable values.

Times are seconds since the run began (``t``, ``start_s``, ``stop_s``); ``RunStarted.unix_s`` says when that
was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Batched",
    "Counted",
    "DeviceSample",
    "Event",
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
]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event of a run. ``devices``: by id, what is known of each (name, kind, memory_bytes, ...)."""

    t: float
    name: str
    unix_s: float
    total: int | None = None
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a pipeline, in seconds from now; without times (None, no ``slices``) where none are known.

    slices  ``(device, stage, kind, start_s, stop_s, n_items)``; ``kind``: load (a model) | work
    """

    t: float
    mode: str
    why: str = ""
    makespan_s: float | None = None
    bound_s: float | None = None
    slices: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The start of a stage (or of the only map). ``total``: items expected, None if not known."""

    t: float
    stage: str
    total: int | None = None


@dataclass(frozen=True, slots=True)
class StageFinished:
    """The end of a stage. ``bound_s``: the least seconds that any plan could have taken for its work.

    ``result_bytes``: what its workers have sent back; None if nobody counted. ``learned`` says what its
    items' times go by, if that was found: "time grows with the length of the item".
    """

    t: float
    stage: str
    bound_s: float | None = None
    learned: str = ""
    result_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker that is ready, ``startup_s`` after the decision to start it.

    ``build_s``: seconds of these in which it built its task, as in a constructor; None if not known.
    """

    t: float
    device: str
    worker: str
    pid: int | None = None
    startup_s: float = 0.0
    build_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The end of a worker. ``reason``: "closed" for an ordinary end, else what killed it."""

    t: float
    device: str
    worker: str
    reason: str = "closed"


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk that ran on one worker from ``start_s`` to ``stop_s``.

    It has items ``index`` .. ``index + n_items - 1`` (a chunk of one when items are heavy), or ``items`` if
    they do not follow one another; ``cost`` is the sum of their size hints, if there are any. ``busy_s``:
    seconds inside the task; of these, ``waited_s`` in which it said that it waits (``evenload.waiting``).
    ``cpu_s``: seconds of processors that the worker's process took for them; None if not known.
    ``status``: ok | failed (some item raised) | lost (the worker died) | superseded (none of its results
    counted). ``suspects``: items of it that are tried again one by one, as they raised, could not be read,
    or may have ended a worker; None if there are none.
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
    waited_s: float = 0.0
    cpu_s: float | None = None
    suspects: Sequence[int] | None = None

    @property
    def length_s(self) -> float:
        return max(0.0, self.stop_s - self.start_s)

    @property
    def task_s(self) -> float:
        """Seconds inside the task: ``busy_s``, at most the chunk's length, and that where it is not told."""
        return min(self.busy_s, self.length_s) if self.busy_s > 0 else self.length_s


@dataclass(frozen=True, slots=True)
class Batched:
    """One call of a pipeline's stage for ``n_items`` items together, of ``most`` that it could have taken."""

    t: float
    stage: str
    device: str
    n_items: int
    most: int


@dataclass(frozen=True, slots=True)
class Idle:
    """A time in which a device was left without work on purpose; ``why`` is the policy's reason."""

    device: str
    start_s: float
    stop_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A decision of the load balancer: ``n_items`` queued items went from one device to another."""

    t: float
    source: str
    target: str
    n_items: int
    imbalance: float = 0.0


@dataclass(frozen=True, slots=True)
class Queued:
    """The number of items that wait and run; emitted now and then while a stage runs.

    waiting  items that no device has begun; None if their number is not known yet
    running  items that run, by device
    queued   those of the waiting items that are in a device's own queue, by device
    """

    t: float
    stage: str
    waiting: int | None = None
    running: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemFinished:
    """One item that is done with ``stage``. ``outputs`` are small: numbers, strings, paths in the run folder.

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
    """One item that was given up. ``error`` is the exception's type, ``message`` its text."""

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
    """One reading of a device's load. ``utilization`` is a share, 0..1; None: the driver does not say."""

    t: float
    device: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for a person. ``level``: debug | info | warning | error."""

    t: float
    level: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Replanned:
    """A new plan for the rest of a run, which is followed from now on.

    why        what happened: a device joined or left, a stage ended, times differ from the planned ones
    before_s   seconds that the rest would take by the old plan; None if that plan cannot go on
    after_s    seconds that it takes by the new one
    """

    t: float
    why: str
    before_s: float | None
    after_s: float
    mode: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """A count of a pipeline's items, of the samples of those with several, and of parts, by how they ended.

    ``total`` and, of each, how many are done, filtered, failed, unfinished, skipped; samples also not_chosen.
    """

    t: float
    ends: Mapping[str, int]
    samples: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last event of a run. ``status``: done | failures | interrupted | failed; ``facts``: figures.

    ``exit_code``: of the error that ended it, None without one.
    """

    t: float
    status: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


Event = (
    RunStarted
    | Planned
    | StageStarted
    | StageFinished
    | WorkerStarted
    | WorkerExited
    | Span
    | Batched
    | Idle
    | Moved
    | Queued
    | Counted
    | ItemFinished
    | Restored
    | ItemFailed
    | DeviceSample
    | Note
    | Replanned
    | RunFinished
)
