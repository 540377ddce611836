"""What the dispatcher decides, and what it knows of each group of devices: plain values."""

from dataclasses import dataclass, field

from evenload.pipeline.dispatch.item_flow import Task
from evenload.pipeline.plan import Fit

__all__ = ["Action", "Group", "Load", "Post", "Run", "Start", "Stop"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker for ``group``."""

    group: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker of ``group``: its devices are wanted by another."""

    group: str


@dataclass(frozen=True, slots=True)
class Load:
    """Make ``stage`` ready on ``group``; stages that are not in ``keep`` make room first.

    ``later``: of those, stages that the group will want again, the next one first.
    """

    group: str
    stage: int
    fit: Fit
    keep: tuple[int, ...]
    later: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Run ``tasks`` of one stage, together if they are several."""

    group: str
    tasks: tuple[Task, ...]
    why: str


Action = Start | Stop | Load | Run


@dataclass(frozen=True, slots=True)
class Post:
    """One unit of the plan, seen from its group. ``is_help``: not planned, but better than to stand idle."""

    phase: int
    stage: int
    fit: Fit
    limit: int | None = None
    is_help: bool = False


@dataclass(slots=True)
class Group:
    """One worker with its devices.

    state       off | starting | up | lost
    is_ordered  it has an order that it has not answered
    parked      stages whose model waits in host memory -> seconds until it is back
    running     task -> since when
    saving      tasks that are computed, whose files are on their way to the disk
    batch       stage -> most items in one call, where that is not what the job file says
    item_s      stage -> seconds for an item lately; ``n_timed`` and ``total_s``: of all so far
    lowered     stage -> its fit, where memory ran out with the planned one
    """

    id: str
    devices: tuple[str, ...]
    posts: list[Post] = field(default_factory=list)
    state: str = "off"
    is_ordered: bool = False
    resident: dict[int, Fit] = field(default_factory=dict)
    parked: dict[int, float] = field(default_factory=dict)
    loading: int | None = None
    loading_since_s: float = 0.0
    running: dict[Task, float] = field(default_factory=dict)
    saving: set[Task] = field(default_factory=set)
    batch: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    lowered: dict[int, Fit] = field(default_factory=dict)
    item_s: dict[int, float] = field(default_factory=dict)
    n_timed: dict[int, int] = field(default_factory=dict)
    total_s: dict[int, float] = field(default_factory=dict)
    n_taken: dict[int, int] = field(default_factory=dict)
    n_early_deaths: int = 0
    n_load_deaths: int = 0
    not_before_s: float = 0.0
    why_lost: str = ""
    is_draining: bool = False

    @property
    def is_working(self) -> bool:
        """Something of it is not over yet."""
        return self.is_ordered or bool(self.running) or bool(self.saving)

    def timed(self, stage: int, seconds: float) -> None:
        """It took ``seconds`` for an item."""
        before = self.item_s.get(stage)
        self.item_s[stage] = seconds if before is None else 0.7 * before + 0.3 * seconds
        self.n_timed[stage] = self.n_timed.get(stage, 0) + 1
        self.total_s[stage] = self.total_s.get(stage, 0.0) + seconds

    def free_s(self, stage: int, now: float) -> float:
        """When it may be through with what it runs, at the pace of ``stage``."""
        if not self.running:
            return now
        fit = self.resident.get(stage)
        n_after_another = 1 if fit is not None and fit.in_flight > 1 else len(self.running)
        return max(now, max(self.running.values()) + n_after_another * self.item_s[stage])

    def reset(self) -> None:
        """Its worker is gone, with all that it held."""
        self.running.clear()
        self.saving.clear()
        self.resident.clear()
        self.parked.clear()
        self.loading = None
        self.is_ordered = False
