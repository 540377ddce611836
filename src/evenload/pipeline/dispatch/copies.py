"""Copies of tasks that run: which a policy asks for, and which attempt of a task counts. Pure.

    choose(group, stage, now) ──► the task that an idle group runs, too ──► ended(group, task) ──► is it over?

Each task that a group runs is a chunk of one item to the policy, which is only asked here.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from evenload.balance.policy import Ask, Copy, Hold
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.pipeline.dispatch.course.strand import StageTask
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.stage_policy import StagePolicy, as_device


class Copies:
    """The tasks of a run that several groups run at once: the first result counts, the others do not.

    policy   says which task is copied, and when to ask again
    stages   those whose tasks may be copied
    may_run  whether a group may run a task, and the task may run twice
    """

    def __init__(
        self,
        policy: StagePolicy,
        stages: Collection[int],
        may_run: Callable[[DeviceGroup, StageTask], bool],
    ):
        self.stages = frozenset(stages)
        self._policy, self._may_run = policy, may_run
        self._running: dict[StageTask, dict[str, DeviceGroup]] = {}  # of those with a copy: who runs them
        self._given: set[tuple[str, StageTask]] = set()
        self._until_s: list[float] = []

    def choose(
        self, group: DeviceGroup, others: Sequence[DeviceGroup], stage: int, load_s: float, now: float
    ) -> StageTask | None:
        """The task of ``stage`` that ``group``, which is idle, should run a copy of. Nothing of it waits.

        others  those that run one task of it, and nothing else
        load_s  seconds until ``group`` has the model
        """
        devices, first = [as_device(group, stage, load_s)], dict[StageTask, ChunkInFlight]()
        tasks: list[StageTask] = []
        for one in sorted(others, key=lambda one: next(iter(one.running.values()))):
            device = as_device(one, stage)
            devices.append(device)
            ((task, since_s),) = one.running.items()
            if self.is_done_elsewhere(one, task):
                continue
            number = len(tasks)
            chunk = ChunkInFlight(number, one.id, range(number, number + 1), 1.0, since_s, 1, first.get(task))
            chunk.is_struck = not self._may_run(group, task)
            device.chunks[number] = chunk
            tasks.append(task)
            if chunk.original is not None:
                chunk.original.copies.append(chunk)
                chunk.original.n_times_copied += 1
            first.setdefault(task, chunk)
        if not tasks:
            return None
        ask = Ask(devices[0], devices, now, 0, 0, 0.0, n_in_flight=len(tasks), is_all_dealt=True)
        answer = self._policy.step(ask, stage)
        if isinstance(answer, Copy):
            return tasks[answer.chunk.number]
        if isinstance(answer, Hold) and answer.until is not None:
            self._until_s.append(answer.until)
        return None

    def begin(self, task: StageTask, group: DeviceGroup, others: Iterable[DeviceGroup]) -> None:
        """``group`` runs the task as well, which some of ``others`` run already."""
        runs = self._running.setdefault(task, {one.id: one for one in others if task in one.running})
        runs[group.id] = group
        group.extra.add(task)
        self._given.add((group.id, task))

    def ended(self, group: DeviceGroup, task: StageTask, *, is_done: bool) -> bool:
        """Note the end of an attempt of ``group``; returns whether that is the end of the task.

        It is not if the task is done elsewhere, nor if this attempt has no result and another goes on.
        """
        self._given.discard((group.id, task))
        is_first = task not in group.extra
        group.extra.discard(task)
        runs = self._running.get(task, {})
        if group.id not in runs:
            return is_first
        del runs[group.id]
        if is_done:
            for other in runs.values():
                other.extra.add(task)
        elif is_first:
            next(iter(runs.values())).extra.discard(task)
        if is_done or len(runs) == 1:
            del self._running[task]
        return is_done

    def is_copy(self, group: str, task: StageTask) -> bool:
        """Whether ``group`` was given the task while another ran it."""
        return (group, task) in self._given

    def is_done_elsewhere(self, group: DeviceGroup, task: StageTask) -> bool:
        """Whether an attempt of ``group`` that goes on counts no more."""
        return task in group.extra and group.id not in self._running.get(task, ())

    def wake_s(self, now: float) -> float | None:
        """Seconds until the policy wants to be asked again; None if it waits for news."""
        return min((until_s - now for until_s in self._until_s if until_s > now), default=None)

    def forget_wake(self) -> None:
        """All idle groups are about to ask again."""
        self._until_s.clear()
