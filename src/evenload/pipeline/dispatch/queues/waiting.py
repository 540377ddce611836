"""Tasks that may run now, by priority and longest first, and the groups that should not run them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from evenload.executor.decide.attempts import Losses
from evenload.pipeline.dispatch.course.strand import StageTask
from evenload.pipeline.dispatch.queues.stage_queue import BatchRule, Lead, StageQueue


class Suspects:
    """The tasks of a run that are run alone, last or no more, because of what they did to a worker.

    once  stages whose tasks may be run once only
    """

    def __init__(self, once: Collection[int] = ()) -> None:
        self._once = frozenset(once)
        self._losses = Losses()
        self._alone: set[StageTask] = set()
        self._held: list[StageTask] = []

    def after_loss(
        self, running: Iterable[StageTask], saving: Iterable[StageTask], *, blames: bool = True
    ) -> tuple[list[StageTask], list[StageTask]]:
        """Count a worker that ended while it ran ``running``; returns the tasks to run again, and the others.

        saving  tasks that were computed there, and lost before their files were on disk
        blames  False: its machine was lost, which says little against what ran there

        Of several that ran together, one may have ended it: nothing is counted, and each runs alone next.
        """
        running = list(running)
        if blames and len(running) > 1:
            self.separate(running)
            return self.after_end((*saving, *running))
        again, given_up = self.after_end(saving)
        for task in running:
            is_over = self._losses.blame(task) if blames else not self._losses.excuse([task])
            (given_up if is_over or self.is_once_only(task) else again).append(task)
        return again, given_up

    def after_end(self, tasks: Iterable[StageTask]) -> tuple[list[StageTask], list[StageTask]]:
        """Return those of a worker that was ended from outside that may run again, and the others."""
        tasks = list(tasks)
        given_up = [task for task in tasks if self.is_once_only(task)]
        return [task for task in tasks if not self.is_once_only(task)], given_up

    def is_once_only(self, task: StageTask) -> bool:
        """Whether it may not be run a second time."""
        return task.stage in self._once

    def separate(self, tasks: Iterable[StageTask]) -> None:
        """Run each of these alone in its worker from now on."""
        self._alone.update(tasks)

    def is_single(self, task: StageTask) -> bool:
        """Whether nothing else may run in its worker."""
        return self._losses.is_suspect(task) or task in self._alone

    def hold(self, tasks: Iterable[StageTask]) -> None:
        """Keep these until nothing else waits."""
        self._held += tasks

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands`` that were held, and return them."""
        gone = [task for task in self._held if task.strand in strands]
        self._held = [task for task in self._held if task.strand not in strands]
        return gone

    def release(self) -> list[StageTask]:
        """What was held; it may run now."""
        held, self._held = self._held, []
        return held


class Waiting:
    """The tasks that may run now: a queue for each stage.

    rules        stage -> which of its tasks go together; without one, none do
    avoid        task -> groups where it did not fit
    priority_of  strand -> number; the highest goes first, the longest of equals, then in order
    is_single    tasks that run alone
    """

    def __init__(
        self,
        n_stages: int,
        priority_of: Callable[[int], float] | None = None,
        rules: Mapping[int, BatchRule] | None = None,
        is_single: Callable[[StageTask], bool] = lambda task: False,
    ):
        self.avoid: dict[StageTask, set[str]] = {}
        self._priority_of = priority_of
        given = rules or {}
        self._queues = [StageQueue(given.get(stage, BatchRule()), is_single) for stage in range(n_stages)]
        self._costs: dict[int, float] = {}

    def add(self, tasks: Iterable[StageTask], costs: Mapping[int, float] | None = None) -> None:
        """``costs``: strand -> size in any unit; kept for its later stages."""
        self._costs.update(costs or {})
        for task in tasks:
            first = -self._priority_of(task.strand) if self._priority_of is not None else 0.0
            self._queues[task.stage].add((first, -self._costs.get(task.strand, 0.0), task.strand, task))

    def __getitem__(self, stage: int) -> StageQueue:
        """The tasks of ``stage``."""
        return self._queues[stage]

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[StageTask]:
        return (task for queue in self._queues for task in queue)

    def has_for(self, group: str, stage: int) -> bool:
        """Does a task of ``stage`` wait that ``group`` may run?"""
        return any(group not in self.avoid.get(task, ()) for task in self._queues[stage])

    @property
    def is_by_priority(self) -> bool:
        return self._priority_of is not None

    @property
    def order(self) -> str:
        """What comes first, in words."""
        if self.is_by_priority:
            return "highest priority first"
        return "longest first" if self._costs else "next in line"

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands``, and return them."""
        gone = [task for task in self if task.strand in strands]
        for task in gone:
            self._queues[task.stage].discard([task])
        return gone

    # --- what goes together -----------------------------------------------------------------------

    def stamp(self, now: float) -> None:
        """Say when those that came since the last time began to wait."""
        for queue in self._queues:
            queue.stamp(now)

    def wait_s(self, now: float) -> float | None:
        """Seconds until some task has waited long enough for others; None if none does."""
        return min((s for queue in self._queues if (s := queue.wait_s(now)) is not None), default=None)

    def lead(
        self, group: str, stage: int, now: float, most: int, *, is_growing: bool, may_ask: bool
    ) -> Lead | None:
        """What ``group`` should begin a batch of ``stage`` with; see ``StageQueue.lead``."""
        return self._queue(group, stage).lead(now, most, is_growing=is_growing, may_ask=may_ask)

    def take(self, group: str, stage: int, lead: Lead, n_most: int) -> list[StageTask]:
        """Take out a batch that ``group`` may run, and that begins with ``lead``."""
        queue = self._queue(group, stage)
        tasks = queue.take(lead, n_most)
        self._queues[stage].discard(tasks, runs=not lead.asks)
        return tasks

    def _queue(self, group: str, stage: int) -> StageQueue:
        """Return the tasks of ``stage`` that ``group`` may run."""
        if not self.avoid:
            return self._queues[stage]
        return self._queues[stage].only(lambda task: group not in self.avoid.get(task, ()))
