"""A group of devices with one worker, as the dispatcher sees it, and what it is told to do: plain values."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from evenload.executor.supervisor.back_off import BackOff
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.plan import Fit

# Orders that a worker has beside the one that it works at, so that it need not wait for the next, if each of
# them takes no longer than that: what takes longer is better to be had back.
AHEAD, SHORT_S = 3, 0.1


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


@dataclass(frozen=True, slots=True)
class Assignment:
    """A stage that a group is to work at: a unit of the plan, or (``is_help``) better than to stand idle."""

    phase: int
    stage: int
    fit: Fit
    limit: int | None = None
    is_help: bool = False


@dataclass(slots=True)
class DeviceGroup:
    """The state of one worker and its devices, as the dispatcher knows it.

    state       off | starting | up | lost
    is_ordered  it has an order that it has not answered
    with_lanes  stages whose tasks may be over long after the order that began them
    parked      stages whose model waits in host memory -> seconds until it is back
    running     task -> since when
    ahead       orders that its worker has and begins one after the other, once it has answered this one
    share       orders that it is given after those, as they are part of what it took at once
    n_unbegun   tasks of both
    saving      tasks that are computed, whose files are on their way to the disk
    extra       of both, those that count for nothing else: another group runs them as well, or has done them
    batch       stage -> most items in one call, where that is not what the job file says
    item_s      stage -> seconds for an item lately; ``n_timed`` and ``total_s``: of all so far
    lowered     stage -> its fit, where memory ran out with the planned one
    refused     stage -> why it cannot be built here
    n_taken     stage -> tasks that were taken since the plan was made, and did not come back
    barred      stages that may not run here
    """

    id: str
    devices: tuple[str, ...]
    assignments: list[Assignment] = field(default_factory=list)
    state: str = "off"
    is_ordered: bool = False
    resident: dict[int, Fit] = field(default_factory=dict)
    with_lanes: set[int] = field(default_factory=set)
    parked: dict[int, float] = field(default_factory=dict)
    loading: int | None = None
    loading_since_s: float = 0.0
    running: dict[StageTask, float] = field(default_factory=dict)
    ahead: deque[RunTasks] = field(default_factory=deque)
    share: deque[RunTasks] = field(default_factory=deque)
    n_unbegun: int = 0
    saving: set[StageTask] = field(default_factory=set)
    extra: set[StageTask] = field(default_factory=set)
    batch: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    lowered: dict[int, Fit] = field(default_factory=dict)
    item_s: dict[int, float] = field(default_factory=dict)
    n_timed: dict[int, int] = field(default_factory=dict)
    total_s: dict[int, float] = field(default_factory=dict)
    n_taken: dict[int, int] = field(default_factory=dict)
    back_off: BackOff = field(default_factory=BackOff)
    is_draining: bool = False
    barred: frozenset[int] = frozenset()

    @property
    def is_usable(self) -> bool:
        """Whether the group is not lost, and refuses no stage."""
        return self.state != "lost" and not self.refused

    def is_meant_for(self, stage: int) -> bool:
        """Whether the plan has it work at ``stage``, more than to help."""
        return any(one.stage == stage and not one.is_help for one in self.assignments)

    @property
    def is_working(self) -> bool:
        """Something of it is not over yet."""
        return self.is_ordered or bool(self.running) or bool(self.saving)

    @property
    def is_busy(self) -> bool:
        """Something of it is not over yet, or its worker is about to come."""
        return self.is_working or self.state == "starting"

    @property
    def mean_item_s(self) -> float:
        """Seconds for an item lately, the mean over stages; 0 if it has done none."""
        return sum(self.item_s.values()) / max(1, len(self.item_s))

    def may_start(self, now: float) -> bool:
        return self.state == "off" and not self.is_draining and now >= self.back_off.not_before_s

    @property
    def unbegun(self) -> list[StageTask]:
        """The tasks of orders that its worker has not begun: all of one stage, and there may be many."""
        return [task for order in (*self.ahead, *self.share) for task in order.tasks]

    def take(self, order: RunTasks) -> None:
        """Note that the tasks of ``order`` are its own from now on."""
        self.share.append(order)
        self.n_unbegun += len(order.tasks)
        self._count(order.tasks, 1)

    def recall(self) -> list[StageTask]:
        """Take back what its worker does not have, and return it."""
        tasks = [task for order in self.share for task in order.tasks]
        self.share.clear()
        self.n_unbegun -= len(tasks)
        return tasks

    def send(self, now: float) -> list[RunTasks]:
        """Note that its worker gets what is due of its share: one order to begin, and some ahead."""
        sent = list[RunTasks]()
        while self.share and (not self.is_ordered or len(self.ahead) < self._n_ahead(self.share[0])):
            order = self.share.popleft()
            self.ahead.append(order)
            if not self.is_ordered:
                self.go_on(now)
            sent.append(order)
        return sent

    def _n_ahead(self, order: RunTasks) -> int:
        item_s = self.item_s.get(order.tasks[0].stage)
        return AHEAD if item_s is not None and item_s * len(order.tasks) <= SHORT_S else 0

    def go_on(self, now: float) -> None:
        """Note that its worker has answered, and begins what it has ahead."""
        self.is_ordered = bool(self.ahead)
        if self.ahead:
            order = self.ahead.popleft()
            self.running.update(dict.fromkeys(order.tasks, now))
            self.n_unbegun -= len(order.tasks)

    def give_back(self, tasks: Collection[StageTask]) -> None:
        """Note that ``tasks`` wait again: they are no part of its share of the plan that is done."""
        for task in tasks:
            self.running.pop(task, None)
        self._count(tasks, -1)

    def _count(self, tasks: Collection[StageTask], by: int) -> None:
        for task in tasks:
            self.n_taken[task.stage] = self.n_taken.get(task.stage, 0) + by

    def timed(self, stage: int, seconds: float) -> None:
        """Note that an item took ``seconds`` here."""
        before = self.item_s.get(stage)
        self.item_s[stage] = seconds if before is None else 0.7 * before + 0.3 * seconds
        self.n_timed[stage] = self.n_timed.get(stage, 0) + 1
        self.total_s[stage] = self.total_s.get(stage, 0.0) + seconds

    @property
    def n_computing(self) -> int:
        """How many tasks it runs of stages whose items do not wait."""
        waiting = {stage for stage, fit in self.resident.items() if fit.is_waiting}
        return sum(task.stage not in waiting for task in self.running)

    def running_of(self, stage: int) -> int:
        """How many tasks of ``stage`` it runs."""
        return sum(task.stage == stage for task in self.running)

    def unbegun_of(self, stage: int) -> int:
        """How many tasks of ``stage`` it has and has not begun."""
        first = next(iter(self.ahead or self.share), None)
        return self.n_unbegun if first is not None and first.tasks[0].stage == stage else 0

    def free_s(self, stage: int, now: float) -> float:
        """When it may be through with what it runs, at the pace of ``stage``."""
        if not self.running:
            return now
        fit, n_all = self.resident.get(stage), len(self.running) + self.n_unbegun
        n_after_another = 1 if fit is not None and fit.in_flight > 1 else n_all
        return max(now, max(self.running.values()) + n_after_another * self.item_s[stage])

    def has(self, task: StageTask | None) -> bool:
        """Whether its worker has begun ``task``, and may still say what came of it."""
        return task in self.running or task in self.saving

    def reset(self) -> None:
        """Forget what the worker of the group held: it is gone."""
        tasks = (self.running, self.ahead, self.share, self.saving, self.extra)
        for held in (*tasks, self.resident, self.with_lanes, self.parked):
            held.clear()
        self.loading = None
        self.is_ordered, self.n_unbegun = False, 0

    # --- where memory runs out --------------------------------------------------------------------

    def fewer_together(self, stage: int, n_now: int) -> str | None:
        """Run half as many items in one call, and say so; None if it is one already."""
        if n_now < 2:
            return None
        self.batch[stage] = n_now // 2
        return f"batches of {n_now // 2}"

    def fewer_in_flight(self, stage: int) -> str | None:
        """Have half as many items in flight, and say so; nothing is built anew for that."""
        for assignment in self.assignments:
            if assignment.stage == stage and assignment.fit.in_flight > 1:
                self.lower_in_flight(stage, fewer := assignment.fit.in_flight // 2)
                return f"{fewer} in flight"
        return None

    def lower_in_flight(self, stage: int, fewer: int) -> None:
        """Have at most ``fewer`` items of ``stage`` in flight from now on."""
        for at, assignment in enumerate(self.assignments):
            if assignment.stage == stage and assignment.fit.in_flight > fewer:
                self._lower(at, replace(assignment.fit, in_flight=fewer))
        if stage in self.resident:
            self.resident[stage] = replace(self.resident[stage], in_flight=fewer)

    def next_fit(self, stage: int, fits: Sequence[str]) -> str | None:
        """Hold the model in the next way on one device that ``fits`` allows, and say so."""
        ladder = [name for name in fits if name != "layer_split"]
        for at, assignment in enumerate(self.assignments):
            if assignment.stage != stage or len(self.devices) > 1 or assignment.fit.name not in ladder:
                continue
            lower = ladder[ladder.index(assignment.fit.name) + 1 :]
            if lower:
                n_resident = 0 if lower[0] == "resident_stream" else None
                self._lower(at, Fit(lower[0], assignment.fit.in_flight, resident_blocks=n_resident))
                return f"fit {lower[0]}"
        return None

    def _lower(self, at: int, fit: Fit) -> None:
        self.assignments[at] = replace(self.assignments[at], fit=fit)
        self.lowered[self.assignments[at].stage] = fit
