"""What the dispatcher decides: plain values."""

from dataclasses import dataclass

from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.plan import Fit


@dataclass(frozen=True, slots=True)
class StartWorker:
    """An instruction to start a worker for ``group``."""

    group: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """An instruction to end the worker of ``group``: its devices are wanted by another."""

    group: str


@dataclass(frozen=True, slots=True)
class LoadStage:
    """An instruction to make ``stage`` ready on ``group``; stages that are not in ``keep`` make room first.

    ``later``: of those, stages that the group will want again, the next one first.
    """

    group: str
    stage: int
    fit: Fit
    keep: tuple[int, ...]
    later: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunTasks:
    """An instruction to run ``tasks`` of one stage, together if they are several.

    key   what is equal in all of them; None: it is one that runs alone
    most  so many could have been run together there
    asks  do not run them, but say the key of each
    """

    group: str
    tasks: tuple[StageTask, ...]
    why: str
    key: str | None = None
    most: int = 1
    asks: bool = False


Action = StartWorker | StopWorker | LoadStage | RunTasks
