"""What goes between a run and its workers: orders there, outcomes back. Plain values, small when pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.strand import TimeLimit
from evenload.pipeline.plan import Fit
from evenload.pipeline.site import GivenFile, SiteCheck, SiteReport
from evenload.pipeline.stage import Item, StageSetup

LOAD, RUN, KEYS, WAIT, ADOPT, LOOK, GIVE = "load", "run", "keys", "wait", "adopt", "look", "give"


@dataclass(frozen=True, slots=True)
class HostSpec:
    """All that a worker must know, sent to it once.

    ``park_bytes``: host memory that models may wait in while another is on the device; 0 for none.
    """

    stages: tuple[StageSetup, ...]
    n_devices: int = 1
    park_bytes: int = 0


class TaskInputs(NamedTuple):
    """A task with all that its stage is given. ``place`` comes before the item's id in names of files.

    files  places (see ``site.values_in``) of values that are paths, with the files; () where workers have all
    limit  seconds that it may take; on an event loop, only the worker knows when it began
    staged  the number by which its files are named until the run takes them; None: they have their last names
    """

    task: StageTask
    values: Mapping[str, Any]
    item: Item
    place: str = ""
    files: tuple[tuple[tuple[str | int, ...], GivenFile], ...] = ()
    limit: TimeLimit | None = None
    staged: int | None = None


class FilePiece(NamedTuple):
    """A part of a file that a worker has made, where it does not have the run folder.

    output   name of the output; the file has ``n_bytes`` in all
    start    position of ``content``, uint8 [at most 8 MiB]
    """

    task: StageTask
    output: str
    n_bytes: int
    start: int
    content: Any


class Order(NamedTuple):
    """An order to a worker, of one of seven kinds.

    load    make ``stage`` ready
    run     run the tasks of ``inputs`` together (with several lanes: begin them)
    keys    say the key of each task of ``inputs``, and run none
    wait    answer when something that runs is over
    adopt   hold the models for another job from now on, ``spec``
    look    say what of ``check`` is on its machine
    give    keep ``files``, which are not

    keep   stages that may stay beside the one that is loaded
    later  others that will be wanted again, the next one first
    key    what is equal in all tasks that run together
    """

    kind: str
    stage: int = 0
    fit: Fit = Fit()
    keep: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    inputs: tuple[TaskInputs, ...] = ()
    spec: HostSpec | None = None
    check: SiteCheck | None = None
    files: tuple[GivenFile, ...] = ()
    key: str = ""


@dataclass(slots=True)
class OrderOutcome:
    """What became of an order, or of one of its tasks.

    kind          loaded | refused | made (its files are being saved) | done | failed | memory | again (the
                  batch that it was in did not fit) | keyed | lacks (files are not there) | site | piece
    outputs       small values as they are, files as paths relative to the run folder
    files         output -> [bytes, digest]
    reads         what the stage has read for them, see ``stage_reads``; None if nobody knows
    start_s       by ``time.monotonic``, the same clock in all processes of a machine; saving left out
    waited_s      of the seconds of a task, and cpu_s: see ``events.Span``
    peak_bytes    most memory that was ever taken here: of the GPU, or of the process on the CPU
    must_replace  memory did not come back, or a task cannot be ended: this process should not go on
    parked        of a load: stages that wait in host memory here, and the seconds until one is back
    site          what its machine has of the job
    piece         a part of a file that it sends
    can_batch     of a load: the stage takes several items in one call
    n_lanes       of a load: items at once, each of which is told as it is over
    gives_keys    of a load: the stage's class says what must be equal in a batch
    key           of a task that is keyed: what must be equal in its batch; None: it runs alone, and ``error``
                  says why if that was not meant
    told_s        when it answered, by its own ``time.monotonic``
    how           of a load: read | unparked | kept (from the job before); of a task in the batch that was
                  compared with single items: equal | differs | refused
    """

    kind: str
    stage: int
    task: StageTask | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list] = field(default_factory=dict)
    reads: tuple[str, ...] | None = None
    error: tuple[str, str, str] = ("", "", "")
    start_s: float = 0.0
    stop_s: float = 0.0
    waited_s: float = 0.0
    cpu_s: float | None = None
    peak_bytes: int | None = None
    must_replace: bool = False
    parked: dict[int, float] = field(default_factory=dict)
    how: str = ""
    site: SiteReport | None = None
    piece: FilePiece | None = None
    can_batch: bool = True
    n_lanes: int = 1
    gives_keys: bool = False
    key: str | None = None
    told_s: float = 0.0

    def failed(self, error: tuple[str, str, str]) -> "OrderOutcome":
        """Return it as the outcome of a task that failed after it was computed, of ``error``."""
        return replace(self, kind="failed", outputs={}, files={}, reads=None, error=error)


def is_task(one: Any) -> bool:
    """Whether it is a task, whichever; a worker may send anything in its place."""
    is_pair = type(one) is StageTask and len(one) == len(StageTask._fields)
    return is_pair and all(type(number) is int for number in one)


def is_whole(one: Any) -> bool:
    """Whether it is an outcome that has all its fields, of a load or of a task."""
    if type(one) is not OrderOutcome or not all(hasattr(one, name) for name in _FIELDS):
        return False
    return type(one.kind) is str and (one.task is None or is_task(one.task))


_FIELDS = [one.name for one in fields(OrderOutcome)]
