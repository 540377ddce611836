"""What a policy says of a stage: how much a free group takes, what it leaves, and which task it copies. Pure.

A policy sees a stage as it sees a map: groups are its devices, and what one runs and has ahead is a chunk.
Where it is asked for a copy, each task that a group runs is a chunk of one item.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from evenload.balance.partition import split
from evenload.balance.policy import Ask, Copy, Hold, Measured, Policy, Static, Take, policy_from_name
from evenload.balance.policy.base import checked
from evenload.balance.policy.device_state import DeviceState
from evenload.balance.policy.estimate import Cost, CostEstimate
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.strand import StageTask

LAUNCH_S = 0.005  # of an order and its answer: what is late by a few of these is not worth a copy


class StagePolicy:
    """A policy with its state of each stage.

    policy  the policy, or its name
    speeds  device -> relative speed, by which ``Static`` shares out; 1 for others
    """

    def __init__(self, policy: Policy | str, speeds: Mapping[str, float]):
        self._policy, self._speeds = policy_from_name(policy), speeds
        self._states: dict[int, Any] = {}

    @property
    def is_measured(self) -> bool:
        """Whether slow groups leave the last tasks to others, by what was measured."""
        return isinstance(self._policy, Measured)

    def n_left_of_share(self, group: DeviceGroup, all_: Sequence[DeviceGroup], stage: int, n: int) -> int:
        """How many of ``n`` tasks that wait are for ``group``; ``all_``: who shares the stage, it included.

        Shares are of all tasks so far, so that they grow as tasks come.
        """
        if not isinstance(self._policy, Static):
            return n
        assert isinstance(self._policy.partition, str), "a policy with counts has no name"
        # Less than none was taken if what came back had been taken in an earlier plan.
        taken = [max(0, one.n_taken.get(stage, 0)) for one in all_]
        speeds = [sum(self._speeds.get(device, 1.0) for device in one.devices) for one in all_]
        at = all_.index(group)
        return max(0, split(self._policy.partition, n + sum(taken), speeds)[at] - taken[at])

    def n_to_take(
        self, group: DeviceGroup, all_: Sequence[DeviceGroup], stage: int, n: int, now: float, *, is_all: bool
    ) -> int:
        """How many of ``n`` tasks that wait ``group`` takes at once. ``is_all``: no more will come."""
        devices = {one.id: as_device(one, stage) for one in all_}
        for one in all_:
            n_given, began_s = len(one.running) + one.n_unbegun, min(one.running.values(), default=now)
            if n_given:
                chunk = ChunkInFlight(0, one.id, range(n_given), n_given, began_s, n_given)
                devices[one.id].chunks[0] = chunk
        n_mine, n_left = self.n_left_of_share(group, all_, stage, n), n if is_all else None
        answer = self.step(
            Ask(devices[group.id], [*devices.values()], now, n_mine, n_left, n_left, may_repeat=False), stage
        )
        return answer.n if isinstance(answer, Take) else 1

    def step(self, ask: Ask, stage: int) -> Take | Copy | Hold:
        """What the policy answers, in its state of ``stage``."""
        state = self._states.get(stage, self._policy.init())
        self._states[stage], answer = checked(self._policy.step(state, ask), self._policy, ask)
        return answer


def as_device(group: DeviceGroup, stage: int, load_s: float = 0.0) -> DeviceState:
    """What a policy should know of ``group``, as a device for items of ``stage``."""
    item_s = group.item_s.get(stage)
    estimate = CostEstimate(None if item_s is None else Cost(load_s + LAUNCH_S, max(item_s, 1e-12)))
    return DeviceState(group.id, estimate=estimate, is_up=True)


class Copies:
    """The tasks of a run that several groups run at once: the first result counts, the others do not.

    policy   says which task is copied, and when to ask again
    stages   those whose tasks may be copied
    may_run  whether a group may run a task, and the task may run twice
    """

    def __init__(
        self, policy: StagePolicy, stages: Collection[int], may_run: Callable[[DeviceGroup, StageTask], bool]
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
