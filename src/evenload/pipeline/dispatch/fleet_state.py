"""The groups of devices and the tasks that wait, and what follows from them: what is left, who is quicker."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from evenload.pipeline.dispatch.device_group import Assignment, DeviceGroup, LoadStage
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.dispatch.waiting import Lead, Waiting
from evenload.pipeline.plan import Phase
from evenload.pipeline.stage_graph import StageGraph, chain


class FleetState:
    """The devices of a run in their groups, by name, and the tasks that wait; the dispatcher changes them.

    item_s, load_s  stage -> seconds for an item and to load, as far as known before
    free            device -> bytes that it may use, where that is known
    barred          device -> stages that may not run on it
    drained         devices that are to take nothing more
    left            devices that are gone -> why: no group that has one works, however it was made
    n_phases        phases of the plan
    streams         (phase, stage) whose results other groups take meanwhile
    graph           what each stage needs; by default the one before it
    leaving         stages with tasks that are over, and what follows from them is not known yet
    """

    def __init__(
        self,
        stages: Sequence[str],
        waiting: Waiting,
        item_s: Mapping[int, float],
        load_s: Mapping[int, float],
        free: Mapping[str, int],
        barred: Mapping[str, Collection[int]],
        graph: StageGraph | None,
    ):
        self.graph = graph or chain(len(stages))
        self.stages = tuple(stages)
        self.groups: dict[str, DeviceGroup] = {}
        self.waiting = waiting
        self.drained: set[str] = set()
        self.left: dict[str, str] = {}
        self.n_phases = 0
        self.streams: set[tuple[int, int]] = set()
        self.leaving: set[int] = set()
        self.load_s = dict(load_s)
        self._item_s, self._free, self._barred = item_s, free, dict(barred)

    # --- the plan ---------------------------------------------------------------------------------

    def follow(self, phases: Sequence[Phase], taken: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """From now on these are the plan. What is loaded stays so, what runs goes on.

        taken   what each group had taken of each stage when the plan was made: limits count from there
        """
        self.n_phases = len(phases)
        self.streams = {(at, stage) for at, phase in enumerate(phases) for stage in self._streamed(phase)}
        before = {group.id: tuple(group.assignments) for group in self.groups.values()}
        for group in self.groups.values():
            group.assignments.clear()
            was = (taken or {}).get(group.id, group.n_taken)
            group.n_taken = {stage: n - was.get(stage, 0) for stage, n in group.n_taken.items()}
        for at, phase in enumerate(phases):
            for unit in phase.units:
                group, stage = self._group_of(unit.devices), self.stages.index(unit.stage)
                fit = group.lowered.get(stage, unit.fit)
                group.assignments.append(Assignment(at, stage, fit, unit.limit))
        self._keep_unplanned(before)
        self._add_help()

    def _streamed(self, phase: Phase) -> Iterator[int]:
        """Stages of ``phase`` whose results are taken by other groups: their number in wait is bounded."""
        holders = {
            name: {unit.devices for unit in phase.units if unit.stage == name} for name in phase.stages
        }
        for name in phase.stages:
            number = self.stages.index(name)
            after = [holders.get(self.stages[later]) for later in self.graph.next[number]]
            if any(taking and holders[name] - taking for taking in after):
                yield number

    def _keep_unplanned(self, before: Mapping[str, Sequence[Assignment]]) -> None:
        """Let groups keep what they had of stages that a new plan leaves out, as help; others may help, too.

        A plan counts what runs as done: it has no place for the last tasks of a stage, which come back if
        their worker ends. Each stage has a phase of its own, so that no models are held together.

        before  what each group was to do
        """
        planned = {assignment.stage for group in self.groups.values() for assignment in group.assignments}
        for name, assignments in before.items():
            left_out = {assignment.stage: assignment for assignment in assignments}
            for stage in left_out.keys() - planned:
                phase = 2 * self.n_phases + 1 + stage
                kept = replace(left_out[stage], phase=phase, limit=None, is_help=True)
                self.groups[name].assignments.append(kept)

    def _add_help(self) -> None:
        """Let groups of one device help with stages planned on others of one device, if the model fits.

        Help counts as a phase behind all of the plan; what is kept beside the plan has its own.
        """
        turn = 2 * self.n_phases
        alone = [group for group in self.groups.values() if len(group.devices) == 1]
        first: dict[int, Assignment] = {}
        for group in alone:
            for assignment in group.assignments:
                first.setdefault(assignment.stage, assignment)
        at_work = [one for one in self.groups.values() if any(a.phase < turn for a in one.assignments)]
        planned = {device for group in at_work for device in group.devices}
        for group in alone:
            if not group.assignments and planned.intersection(group.devices):
                continue  # its device is meant to work in another group
            has, room = {one.stage for one in group.assignments}, self._free.get(group.devices[0])
            for stage, one in first.items():
                needed = one.fit.device2bytes[0] if one.fit.device2bytes else 0
                if stage not in has | group.barred and (room is None or needed <= room):
                    fit = group.lowered.get(stage, one.fit)
                    group.assignments.append(Assignment(max(turn, one.phase), stage, fit, is_help=True))

    # --- devices that come and go -----------------------------------------------------------------

    def leave(self, device: str, why: str) -> None:
        """``device`` is there no more, until it joins."""
        self.left[device] = why
        self._look_at(device)

    def drain(self, device: str) -> None:
        """``device`` is to take nothing more; what it runs may be finished."""
        self.drained.add(device)
        self._look_at(device)

    def join(self, device: str, barred: Collection[int] = ()) -> None:
        """``device`` comes back after a drain, or is new: then it does what others of one device do."""
        self.drained.discard(device)
        self.left.pop(device, None)
        known = [group for group in self.groups.values() if device in group.devices]
        for group in known:
            if group.state == "lost":
                group.state = "off"
                group.back_off.forgive()
        self._look_at(device)
        if not known:
            self._barred[device] = barred
            self._group_of((device,))
            self._add_help()

    def _group_of(self, devices: tuple[str, ...]) -> DeviceGroup:
        """Return the group of ``devices``, a new one if there was none."""
        name = "+".join(devices)
        if name not in self.groups:
            barred = frozenset[int]().union(*(self._barred.get(one, ()) for one in devices))
            self.groups[name] = DeviceGroup(name, devices, barred=barred)
            self._look_at(*devices)
        return self.groups[name]

    def _look_at(self, *devices: str) -> None:
        """Let groups with one of ``devices`` know which of their devices are drained or gone."""
        for group in self.groups.values():
            if set(devices).isdisjoint(group.devices):
                continue
            group.is_draining = not self.drained.isdisjoint(group.devices)
            gone = [device for device in group.devices if device in self.left]
            if gone:
                group.state, group.back_off.why_given_up = "lost", self.left[gone[0]]

    def active_devices(self) -> set[str]:
        """Devices that take work."""
        groups = [group for group in self.groups.values() if group.state != "lost" and not group.is_draining]
        return {device for group in groups for device in group.devices}

    def lost_devices(self) -> set[str]:
        """Devices that left, and those of groups whose workers died again and again."""
        lost = [group.devices for group in self.groups.values() if group.state == "lost"]
        died = [devices for devices in lost if self.left.keys().isdisjoint(devices)]
        return set(self.left).union(*died)

    def draining(self, *, with_work: bool) -> list[str]:
        """Groups that take nothing more, and (unless ``with_work``) have nothing left."""
        draining = [group for group in self.groups.values() if group.is_draining]
        return [group.id for group in draining if with_work or not group.is_working]

    # --- what there is ----------------------------------------------------------------------------

    @property
    def over(self) -> frozenset[int]:
        """Stages of which nothing is left, nor will come."""
        return frozenset(filter(self.is_over, range(len(self.stages))))

    @property
    def gone(self) -> set[str]:
        """Devices that take no part any more: they were drained, or left."""
        return self.drained | self.left.keys()

    def n_waiting(self, stage: int) -> int:
        """How many tasks of ``stage`` nobody has begun."""
        return len(self.waiting[stage]) + self._unbegun_of(stage)

    def n_begun(self, stage: int) -> int:
        """How many tasks of ``stage`` workers have begun."""
        return self.tasks_on(stage) - self._unbegun_of(stage)

    @property
    def n_running(self) -> int:
        """Tasks that a worker has; their results are not known yet."""
        return sum(len(g.running) + len(g.saving) + g.n_unbegun - len(g.extra) for g in self.groups.values())

    def tasks_on(self, stage: int) -> int:
        """How many of these a worker has."""
        tasks = (task for group in self.groups.values() for task in (*group.running, *group.saving))
        extra = (task for group in self.groups.values() if group.extra for task in group.extra)
        n_begun = sum(task.stage == stage for task in tasks) - sum(task.stage == stage for task in extra)
        return n_begun + self._unbegun_of(stage)

    def _unbegun_of(self, stage: int) -> int:
        return sum(group.unbegun_of(stage) for group in self.groups.values())

    def is_over(self, stage: int) -> bool:
        """Is nothing left of it, and will nothing come?"""
        return not len(self.waiting[stage]) and not self.tasks_on(stage) and not self.is_fed(stage)

    def batch_of(self, group_id: str, stage: int) -> int:
        """Most items in one call there."""
        return self.groups[group_id].batch.get(stage, self.waiting[stage].rule.most)

    def n_free(self, group: DeviceGroup, assignment: Assignment) -> int:
        """How many tasks may be given to ``group`` now, beside those that it runs.

        Where its items wait, it gets a few more than it can begin: then the next one is there when one is
        over, whatever else its worker or this program does at that moment.
        """
        fit, stage = assignment.fit, assignment.stage
        if not fit.is_waiting:
            return fit.in_flight - group.n_computing
        n_holders = self._n_holding(stage)
        is_plenty = n_holders <= 1 or len(self.waiting[stage]) > 2 * n_holders * fit.in_flight
        n_ahead = max(1, fit.in_flight // 4) if is_plenty else 0
        return fit.in_flight + n_ahead - group.running_of(stage)

    def _n_holding(self, stage: int) -> int:
        return sum(stage in one.resident for one in self.groups.values() if one.state == "up")

    def _most(self, group: DeviceGroup, assignment: Assignment) -> int:
        return 1 if assignment.fit.in_flight > 1 else self.batch_of(group.id, assignment.stage)

    def is_growing(self, stage: int) -> bool:
        """May a batch of ``stage`` that waits become larger?"""
        return self.is_fed(stage) or not self.leaving.isdisjoint(self.graph.before[stage])

    def lead(self, group: DeviceGroup, assignment: Assignment, now: float) -> Lead | None:
        """What ``group`` should begin a batch with now; None: nothing, or others are waited for."""
        stage, most = assignment.stage, self._most(group, assignment)
        is_there = stage in group.resident
        return self.waiting.lead(
            group.id, stage, now, most, is_growing=self.is_growing(stage), may_ask=is_there
        )

    def take(self, group: DeviceGroup, assignment: Assignment, lead: Lead, n_free: int) -> list[StageTask]:
        """Take a batch, or ``n_free`` tasks that wait: near the end of a stage, no more than others get."""
        stage, n_most = assignment.stage, self._most(group, assignment)
        if assignment.fit.is_waiting:
            n_most = n_free
        if not self.waiting[stage].rule.max_wait_s or not self.is_growing(stage):
            n_most = min(n_most, -(-len(self.waiting[stage]) // max(1, self._n_holding(stage))))
        return self.waiting.take(group.id, stage, lead, n_most)

    def n_ready(self, now: float) -> int:
        """Tasks that wait for a worker, and not for others to go with."""
        return sum(self.n_ripe(stage, now) for stage in range(len(self.stages)))

    def n_ripe(self, stage: int, now: float) -> int:
        """Tasks of ``stage`` that wait for a worker, and not for others to go with."""
        return self.waiting[stage].n_ripe(now, is_growing=self.is_growing(stage))

    def may_load(self, group: DeviceGroup, assignment: Assignment) -> bool:
        """Does nothing run there but items that wait, of stages that stay?"""
        kept = _kept_beside(group, assignment)
        return not group.n_computing and all(task.stage in kept for task in group.running)

    def load(self, group: DeviceGroup, assignment: Assignment, now: float) -> LoadStage:
        """Have ``group`` load a stage, beside those that the plan holds at the same time."""
        keep = _kept_beside(group, assignment)
        gone = [stage for stage in group.resident if stage not in keep and stage != assignment.stage]
        later = tuple(stage for stage in sorted(gone) if len(self.waiting[stage]) or self.is_fed(stage))
        group.is_ordered, group.loading, group.loading_since_s = True, assignment.stage, now
        group.resident = {stage: fit for stage, fit in group.resident.items() if stage in keep}
        group.with_lanes.intersection_update(keep)
        return LoadStage(group.id, assignment.stage, assignment.fit, keep, later)

    def turn(self, assignment: Assignment, group: DeviceGroup) -> int:
        """In which phase ``assignment`` is due: its own; beyond its limit, after all phases."""
        is_beyond = (
            assignment.limit is not None and group.n_taken.get(assignment.stage, 0) >= assignment.limit
        )
        return assignment.phase + (self.n_phases if is_beyond else 0)

    def is_worth_loading(self, group: DeviceGroup, stage: int) -> bool:
        """Is there more work of ``stage`` than the groups that hold it will do while ``group`` loads it?"""
        holders = self.holders(group, stage)
        known = [g.item_s[stage] for g in holders if stage in g.item_s]
        item_s = sum(known) / len(known) if known else self._item_s.get(stage)
        if not holders or item_s is None:
            return True
        without_s = len(self.waiting[stage]) * item_s / sum(one.resident[stage].in_flight for one in holders)
        return without_s > self.load_s_of(group, stage) + group.item_s.get(stage, item_s)

    def load_s_of(self, group: DeviceGroup, stage: int) -> float:
        """Seconds until ``group``, which does not have the model, would have it."""
        return group.parked.get(stage, self.load_s.get(stage, 0.0))

    def room_after(self, stage: int, queue: int, now: float) -> float:
        """How many more tasks of ``stage`` may begin until ``queue``, or a whole batch, wait for a later one.

        Tasks that wait for others to go with are not counted, as those may come from here. Where nobody who
        is meant to take them can any more, nothing is full: who may help begins when ``stage`` is through.
        """
        coming = self.tasks_on(stage) - self._n_at_once(stage)
        rooms = [
            max(queue, self.waiting[later].rule.most, 2 * self._n_at_once(later)) - self.n_ripe(later, now)
            for later in self.graph.next[stage]
            if self._is_taken(later)
        ]
        return min(rooms, default=inf) - coming

    def _n_at_once(self, stage: int) -> int:
        """How many tasks of ``stage`` can be under way at once, where its items wait."""
        fits = (one.resident.get(stage) for one in self.groups.values())
        return sum(fit.in_flight for fit in fits if fit is not None and fit.is_waiting)

    def _is_taken(self, stage: int) -> bool:
        """Can a group that is meant to work at ``stage`` run some of what waits for it?"""
        return any(
            self.could_take(group, stage) for group in self.groups.values() if group.is_meant_for(stage)
        )

    def could_take(self, group: DeviceGroup, stage: int) -> bool:
        """Can ``group`` run some of what waits for ``stage``, or what may come if nothing does?"""
        is_empty = not len(self.waiting[stage])
        return self._could_do(group, stage) and (is_empty or self.waiting.has_for(group.id, stage))

    def holders(self, group: DeviceGroup, stage: int) -> list[DeviceGroup]:
        """Others who have the model, and may run some of what waits."""
        others = [g for g in self.groups.values() if g is not group and g.state == "up"]
        there = [g for g in others if stage in g.resident and self._could_do(g, stage)]
        return [g for g in there if self.waiting.has_for(g.id, stage)]

    def waits_for_its_own(self, group: DeviceGroup) -> bool:
        """Whether ``group`` has, or could load, the model of a planned assignment with tasks on their way."""
        mine = [
            assignment
            for assignment in group.assignments
            if not assignment.is_help and assignment.stage not in group.refused
        ]
        return any(
            self.turn(assignment, group) < self.n_phases and self.is_fed(assignment.stage)
            for assignment in mine
        )

    def is_planned_elsewhere(self, group: DeviceGroup, stage: int) -> bool:
        """Another that can is meant to do it. One task that may not run there is reason enough to help."""
        return not self.waiting.avoid and any(
            other is not group and other.is_meant_for(stage) and self._could_do(other, stage)
            for other in self.groups.values()
        )

    def is_too_slow(self, group: DeviceGroup, stage: int, now: float, n: int = 1) -> bool:
        """Would the others be done with all that is ready before ``group`` was done with ``n`` of it?

        That is so if as many items as are ready fit, one after the other on each, into that of ``n`` here.
        """
        mine_s, n_ready = group.item_s.get(stage), len(self.waiting[stage])
        others = [g for g in self.holders(group, stage) if g.item_s.get(stage)]
        if mine_s is None or not others or self.is_fed(stage):
            return False
        end_s = now + n * mine_s * (1 - 1e-9)  # who would end at the same moment helps
        return n_ready <= sum(
            max(0, int((end_s - one.free_s(stage, now)) / one.item_s[stage])) for one in others
        )

    def is_coming(self, stage: int) -> bool:
        """Are there tasks of ``stage``, or will there be soon: is a stage that it needs under way?"""
        return bool(len(self.waiting[stage])) or any(map(self.tasks_on, self.graph.needs[stage]))

    def is_fed(self, stage: int) -> bool:
        """May more tasks of ``stage`` come?"""
        return any(len(self.waiting[before]) or self.tasks_on(before) for before in self.graph.before[stage])

    def has_more(self, stage: int) -> bool:
        """Do tasks of ``stage`` wait, or may some come?"""
        return bool(len(self.waiting[stage])) or self.is_growing(stage)

    def sharers(self, group: DeviceGroup, stage: int) -> list[DeviceGroup]:
        """``group``, and all of whom the plan still wants tasks of ``stage``, if they can run some."""

        def is_due(one: DeviceGroup) -> bool:
            mine = [assignment for assignment in one.assignments if assignment.stage == stage]
            return any(self.turn(assignment, one) < self.n_phases for assignment in mine)

        groups = self.groups.values()
        return [one for one in groups if one is group or (is_due(one) and self.could_take(one, stage))]

    def running_only(self, stage: int) -> list[DeviceGroup]:
        """Who runs one task of ``stage`` and nothing else."""
        there = (one for one in self.groups.values() if len(one.running) == 1 and not one.n_unbegun)
        return [one for one in there if next(iter(one.running)).stage == stage]

    def could_run(self, group: DeviceGroup, task: StageTask) -> bool:
        return self._could_do(group, task.stage) and group.id not in self.waiting.avoid.get(task, ())

    def _could_do(self, group: DeviceGroup, stage: int) -> bool:
        is_assigned = any(assignment.stage == stage for assignment in group.assignments)
        is_there = group.state != "lost" and not group.is_draining
        return is_assigned and is_there and stage not in group.refused

    def why_stuck(self) -> tuple[int, dict[str, str]] | None:
        """A stage that has tasks which nobody can run, and why not, by device; None if there is none."""
        for stage in range(len(self.stages)):
            tasks = self.waiting[stage]
            if tasks and not any(self.could_run(g, t) for g in self.groups.values() for t in tasks):
                causes = {}
                for group in self.groups.values():
                    is_assigned = any(assignment.stage == stage for assignment in group.assignments)
                    if is_assigned or stage in group.refused or group.state == "lost":
                        drained = "it was drained" if group.is_draining else "no memory for it"
                        causes[group.id] = group.refused.get(stage) or group.back_off.why_given_up or drained
                return stage, causes
        return None


def _kept_beside(group: DeviceGroup, assignment: Assignment) -> tuple[int, ...]:
    """Stages that the plan holds there beside that of ``assignment``."""
    here = [one.stage for one in group.assignments if one.phase == assignment.phase]
    return tuple(stage for stage in here if stage != assignment.stage)
