"""Which group of devices does what next: the pure part of running a plan, without clock, process or file.

    add(tasks) ──► decide(now) ──► actions ──► up | loaded | ended | refused | lost ──► decide ...

A group is one worker with one or more devices of its own. It works off the phases of the plan in their order
and goes on to the next as soon as nothing is left for it in this one: no device waits for the slowest. What
it needs next it loads while it would wait. Tasks of a stage are dealt by priority, or longest first. A
decision costs O(groups x units).
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from evenload.balance.policy import Policy
from evenload.pipeline.dispatch.device_group import (
    Action,
    Assignment,
    DeviceGroup,
    RunTasks,
    StartWorker,
    StopWorker,
)
from evenload.pipeline.dispatch.hang_watch import EndWorker
from evenload.pipeline.dispatch.stage_policy import Copies, StagePolicy
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.dispatch.waiting import BatchRule, Lead, Suspects, Waiting
from evenload.pipeline.dispatch.work_chooser import WorkChooser
from evenload.pipeline.plan import Fit, Phase
from evenload.pipeline.stage_graph import StageGraph


class GroupScheduler(WorkChooser):
    """The dealer of tasks to the groups of devices that ``phases`` make.

    stages    their names, in order
    queue     most tasks that wait for a stage beside the one before it
    policy    by which tasks are shared out, left to others, and copied; or its name
    speeds    device -> relative speed, by which a policy may share out tasks
    copyable  stages whose tasks two groups may run at once
    fits      ways to hold each stage that may be tried when memory runs out, in their order
    oom       what is tried then: smaller_in_flight, next_fit, other_device
    free      device -> bytes that it may use, where that is known
    item_s    stage -> seconds for an item and to load, as far as known before
    load_s
    batch     stage -> which of its tasks run in one call; without one, none do
    barred    device -> stages that may not run on it
    once      stages whose tasks may be run once only
    graph     what each stage needs; by default the one before it
    priority_of  strand -> number, the highest goes first; by default the longest does
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        stages: Sequence[str],
        *,
        queue: int = 8,
        policy: Policy | str = "measured",
        speeds: Mapping[str, float] | None = None,
        copyable: Collection[int] = (),
        fits: Mapping[str, Sequence[str]] | None = None,
        oom: Sequence[str] = (),
        free: Mapping[str, int] | None = None,
        item_s: Mapping[int, float] | None = None,
        load_s: Mapping[int, float] | None = None,
        batch: Mapping[int, BatchRule] | None = None,
        barred: Mapping[str, Collection[int]] | None = None,
        once: Collection[int] = (),
        graph: StageGraph | None = None,
        priority_of: Callable[[int], float] | None = None,
    ):
        self._suspects = Suspects(once)
        self.is_once_only = self._suspects.is_once_only
        waiting = Waiting(len(stages), priority_of, batch, self._suspects.is_single)
        super().__init__(stages, waiting, item_s or {}, load_s or {}, free or {}, barred or {}, graph)
        self.queue, self.policy = queue, StagePolicy(policy, speeds or {})
        self.is_measured = self.policy.is_measured
        self.copies = Copies(self.policy, copyable, self._may_run_copy)
        self._fits, self._oom = fits or {}, tuple(oom)
        self.follow(phases)

    # --- tasks ------------------------------------------------------------------------------------

    def add(self, tasks: Iterable[StageTask], costs: Mapping[int, float] | None = None) -> None:
        """Take in tasks that may run now. ``costs``: strand -> size in any unit; kept for later stages."""
        self.waiting.add(tasks, costs)

    def go_on(self, tasks: Iterable[StageTask]) -> None:
        """Take in the tasks that follow from all that has ended; they may run now."""
        self.leaving.clear()
        self.add(tasks)

    def withdraw(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands`` that wait, and return them."""
        for group in self.groups.values():
            self._put_back(group, group.recall())
        return [*self.waiting.remove(strands), *self._suspects.remove(strands)]

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, now: float, *, deals: bool = True) -> list[Action]:
        """What is to be done now. With ``deals`` False nothing new is begun."""
        is_any_idle = any(group.state == "up" and not group.is_working for group in self.groups.values())
        if not deals or (self.is_measured and is_any_idle and not len(self.waiting)):
            for group in self.groups.values():
                self._put_back(group, group.recall())
        if not deals:
            return []
        if not len(self.waiting) and not any(group.saving for group in self.groups.values()):
            self.add(self._suspects.release())
        self.waiting.stamp(now)
        self.copies.forget_wake()
        actions = self._deal(now)
        if not actions and len(self.waiting) and not any(one.is_busy for one in self.groups.values()):
            self.may_leave = False  # to others who do not take it
            actions = self._deal(now)
            self.may_leave = True
        return actions

    def _deal(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for group in sorted(self.groups.values(), key=lambda group: group.mean_item_s):
            if group.state == "up" and not group.is_draining:
                action = None if group.is_ordered or group.share else self._order(group, now)
                actions += group.send(now) if action is None else [action]
        for group in self.groups.values():
            if group.may_start(now):
                actions += self._activate(group, now)
        return actions

    def wake_s(self, now: float) -> float | None:
        """Seconds until a worker's back-off ends, or a batch has waited long enough; None if neither does."""
        due = [group.back_off.not_before_s - now for group in self.groups.values() if group.state == "off"]
        due += [self.waiting.wait_s(now) or 0.0, self.copies.wake_s(now) or 0.0]
        return min((seconds for seconds in due if seconds > 0), default=None)

    def _order(self, group: DeviceGroup, now: float) -> Action | None:
        """Have ``group`` load a stage, or take a share of its tasks."""
        assignment = self._work(group, now)
        if assignment is None and (action := self._copy(group, now)) is not None:
            return action
        assignment = assignment or self.ahead(group, now) or self.choose(group, now)
        if assignment is None:
            return None
        if group.resident.get(assignment.stage) != assignment.fit:
            may_load = self.may_load(group, assignment)
            return self.load(group, assignment, now) if may_load else None
        lead, n_free = self.lead(group, assignment, now), self.n_free(group, assignment)
        if lead is None or n_free < 1:
            return None
        if group.running and any(map(self._suspects.is_single, (lead.task, *group.running))):
            return None
        n_left, most = 0, self.batch_of(group.id, assignment.stage)
        if self._runs_in_turn(assignment, lead):
            n_left = self.n_to_take(group, assignment, now)
        while True:
            tasks = tuple(self.take(group, assignment, lead, n_free))
            group.take(RunTasks(group.id, tasks, self.waiting.order, lead.key, most, lead.asks))
            n_left -= len(tasks)
            lead = self.lead(group, assignment, now) if n_left > 0 else None
            if lead is None or not self._runs_in_turn(assignment, lead):
                return None

    def _runs_in_turn(self, assignment: Assignment, lead: Lead) -> bool:
        """Whether a worker may have tasks behind that of ``lead``, or have it behind others, none begun."""
        is_alone = lead.asks or self._suspects.is_single(lead.task) or self.is_once_only(lead.task)
        is_next_known = not (self.is_measured and self.waiting.is_by_priority)  # a higher one may come
        is_any_for_all = not self.waiting.avoid  # else each look is at all that waits
        return assignment.fit.in_flight == 1 and is_next_known and is_any_for_all and not is_alone

    def _copy(self, group: DeviceGroup, now: float) -> Action | None:
        """Have ``group``, which has nothing to do, run a task that another runs, if the policy says so."""
        for assignment in group.assignments if self.copies.stages and not group.running else ():
            stage, others = assignment.stage, self.running_only(assignment.stage)
            if not others or stage not in self.copies.stages or assignment.fit.in_flight > 1:
                continue
            if self.has_more(stage):
                continue
            is_there = group.resident.get(stage) == assignment.fit
            load_s = 0.0 if is_there else self.load_s_of(group, stage)
            task = self.copies.choose(group, others, stage, load_s, now)
            if task is None:
                continue
            if not is_there:
                return self.load(group, assignment, now)
            self.copies.begin(task, group, others)
            group.take(RunTasks(group.id, (task,), "a copy: its device needs long"))
            return group.send(now)[0]
        return None

    def _may_run_copy(self, group: DeviceGroup, task: StageTask) -> bool:
        is_made = any(task in one.saving for one in self.groups.values())
        return not (is_made or self._suspects.is_single(task)) and self.could_run(group, task)

    def _activate(self, group: DeviceGroup, now: float) -> list[Action]:
        """Start ``group`` if it has something to do and its devices are its own, or can be."""
        mine = set(group.devices)
        owners = [g for g in self.groups.values() if g.state in ("up", "starting") and mine & set(g.devices)]
        if not self._is_due(group, now) and (owners or not self.is_next(group, now)):
            return []
        for owner in owners:
            if owner.state == "starting" or owner.is_working or self.choose(owner, now) is not None:
                return []
        if self._work(group, now) is None and any(self._is_due(owner, now) for owner in owners):
            return []  # each would end the other's worker for ever, while nothing comes
        actions: list[Action] = []
        for owner in owners:
            owner.reset()
            owner.state = "off"
            actions.append(StopWorker(owner.id))
        group.state = "starting"
        return [*actions, StartWorker(group.id)]

    def _work(self, group: DeviceGroup, now: float) -> Assignment | None:
        """What waits for ``group``, and not rather for others."""
        found = self.choose(group, now)
        return None if found is None or self.is_left_to_others(group, found, now) else found

    def _is_due(self, group: DeviceGroup, now: float) -> bool:
        return any(self.is_due(group, assignment, now) for assignment in group.assignments)

    def running_on(self, group_id: str) -> dict[StageTask, float]:
        """Tasks that run there, and since when."""
        return dict(self.groups[group_id].running)

    def is_waiting(self, group_id: str, stage: int) -> bool:
        """Whether items of ``stage`` wait there, many at a time."""
        fit = self.groups[group_id].resident.get(stage)
        return fit is not None and fit.is_waiting

    # --- what became of it ------------------------------------------------------------------------

    def awaits_lanes(self, group_id: str) -> bool:
        """Is something under way in an idle worker's lanes? Then it is asked for what is over next."""
        group = self.groups[group_id]
        group.is_ordered = bool(group.running or group.saving)
        return group.is_ordered

    def up(self, group_id: str) -> None:
        """Note that the worker of a group is ready for orders."""
        self.groups[group_id].state = "up"

    def answered(self, group_id: str, now: float) -> None:
        """Note that its worker has answered an order, and begins the next one that it has."""
        self.groups[group_id].go_on(now)

    def loaded(
        self,
        group_id: str,
        stage: int,
        fit: Fit,
        seconds: float | None = None,
        parked: Mapping[int, float] | None = None,
        *,
        gives_keys: bool = False,
        n_lanes: int = 1,
    ) -> None:
        """``seconds`` it took, if it was read; ``parked``: as in ``DeviceGroup``, from now on;
        ``gives_keys``: the stage's class says what must be equal in a batch; ``n_lanes``: items at once.
        """
        group = self.groups[group_id]
        if seconds is not None:
            self.load_s[stage] = seconds
        group.resident[stage], group.parked = fit, dict(parked or {})
        (group.with_lanes.add if n_lanes > 1 else group.with_lanes.discard)(stage)
        if n_lanes < fit.in_flight:
            group.lower_in_flight(stage, n_lanes)
        group.loading = None
        if gives_keys:
            self.waiting[stage].ask_keys()

    def keyed(self, group_id: str, task: StageTask, key: str | None) -> None:
        """What must be equal in its batch, as its stage's class says; None: the task runs alone."""
        self.waiting[task.stage].learn(task, key)
        self.again(group_id, task)

    def refused(self, group_id: str, stage: int, why: str) -> None:
        """``stage`` cannot be built there."""
        group = self.groups[group_id]
        group.loading = None
        group.refused[stage] = why

    def made(self, group_id: str, task: StageTask, seconds: float | None = None) -> None:
        """The task is computed; its files are on their way to the disk, and the group can go on."""
        group = self.groups[group_id]
        self._computed(group, task, seconds)
        group.saving.add(task)

    def ended(
        self, group_id: str, task: StageTask, seconds: float | None = None, *, is_done: bool = True
    ) -> bool:
        """The task is over there, well or not; ``seconds`` it took if that says how fast the group is.

        Returns whether the task is over with that, see ``Copies.ended``.
        """
        group = self.groups[group_id]
        self._computed(group, task, seconds)
        group.saving.discard(task)
        group.back_off.forgive()
        return self.copies.ended(group, task, is_done=is_done)

    def _computed(self, group: DeviceGroup, task: StageTask, seconds: float | None) -> None:
        group.running.pop(task, None)
        self.leaving.add(task.stage)
        if seconds is not None:
            group.timed(task.stage, seconds)

    def again(self, group_id: str, task: StageTask) -> None:
        """The task was not run after all."""
        self._put_back(self.groups[group_id], [task])

    def one_by_one(self, group_id: str, stage: int) -> None:
        """No batches of ``stage`` there."""
        self.groups[group_id].batch[stage] = 1

    def out_of_memory(self, group_id: str, task: StageTask) -> str | None:
        """The task did not fit there. What is tried now, in words; None if nothing is left to try."""
        group = self.groups[group_id]
        self._put_back(group, group.recall())
        fit = group.resident.get(task.stage)
        if fit is not None and fit != group.lowered.get(task.stage, fit):
            self.again(group_id, task)
            return "what is tried already"  # the worker had it before that
        stage, fits = task.stage, self._fits.get(self.stages[task.stage], ())
        ways = {
            "smaller_in_flight": functools.partial(group.fewer_in_flight, stage),
            "next_fit": functools.partial(group.next_fit, stage, fits),
            "other_device": functools.partial(self._elsewhere, group, task),
        }
        said = group.fewer_together(stage, self.batch_of(group_id, stage))  # whatever the job allows
        for step in self._oom:
            said = said or ways[step]()
        if said is not None:
            self.again(group_id, task)
        return said

    def _elsewhere(self, group: DeviceGroup, task: StageTask) -> str | None:
        avoided = self.waiting.avoid.setdefault(task, set())
        avoided.add(group.id)
        if any(self.could_run(other, task) for other in self.groups.values()):
            return "another device"
        self.waiting.avoid.pop(task)
        return None

    def lost(
        self, group_id: str, now: float, how: str, said: str = "", *, blames: bool = True
    ) -> list[StageTask]:
        """Note that a worker is gone. Returns the tasks that are given up; the others will be dealt again.

        how     in words that fit after "its worker"; ``said``: its last words, to go on a sentence with
        blames  what ran there may have ended it; False: its machine was lost
        """
        group = self.groups[group_id]
        again, given_up = self._suspects.after_loss(group.running, group.saving, blames=blames)
        stage = group.loading
        is_early = not group.running
        self._put_back(group, [*again, *group.unbegun])
        if is_early and group.back_off.died(how, now, said=said, building=stage):
            assert stage is not None
            group.refused[stage] = f"its worker {how} while it loaded the model{said}"
        given_up = self._without_copies(group, given_up)
        group.reset()
        group.state = "lost" if group.back_off.why_given_up else "off"
        return given_up

    def _put_back(self, group: DeviceGroup, tasks: Collection[StageTask]) -> None:
        group.give_back(tasks)
        self.add(self._without_copies(group, tasks))

    def _without_copies(self, group: DeviceGroup, tasks: Iterable[StageTask]) -> list[StageTask]:
        """Tasks that ended without a result in ``group``, and that no other group has or runs."""
        return [task for task in tasks if self.copies.ended(group, task, is_done=False)]

    def smaller_fit(self, group_id: str, stage: int) -> str | None:
        """The model did not even load there: another fit, in words, or None."""
        self.groups[group_id].loading = None
        if "next_fit" not in self._oom:
            return None
        return self.groups[group_id].next_fit(stage, self._fits.get(self.stages[stage], ()))

    def restart(self, group_id: str, failed: Collection[StageTask] = ()) -> list[StageTask]:
        """Note that a worker is ended from outside, and replaced. Returns the tasks that are given up.

        failed  of its tasks, those that are over with that
        """
        group = self.groups[group_id]
        again, given_up = self._suspects.after_end((*group.running, *group.saving))
        self._put_back(group, [*again, *(task for task in group.unbegun if task not in failed)])
        given_up = self._without_copies(group, given_up)
        group.reset()
        group.state = "off"
        return given_up

    def end_slow(self, group_id: str, order: EndWorker) -> tuple[list[StageTask], list[StageTask]]:
        """End a worker that took too long. Other tasks than ``order`` blames go on as in ``restart``.

        Returns those that fail because of that, and those that are given up.
        """
        group = self.groups[group_id]
        failed = self._without_copies(group, order.failed)
        for task in order.failed:
            group.running.pop(task, None)
        group.give_back(order.later)
        self._suspects.hold(self._without_copies(group, order.later))
        self._suspects.separate(order.alone)
        return failed, self.restart(group_id, order.failed)

    def drain(self, device: str) -> None:
        super().drain(device)
        for group in self.groups.values():
            if group.is_draining:
                self._put_back(group, group.recall())
