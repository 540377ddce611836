"""What a group of devices should work at next: the rules, without their effects."""

from evenload.pipeline.dispatch.device_group import Assignment, DeviceGroup
from evenload.pipeline.dispatch.fleet_state import FleetState
from evenload.pipeline.dispatch.stage_policy import StagePolicy


class WorkChooser(FleetState):
    """The rules by which a group chooses among its assignments; they change nothing.

    queue      most tasks that wait for a stage beside the one before it
    policy     by which groups leave tasks to others: to faster ones that end sooner, or as their share
    may_leave  whether they do so now
    """

    queue: int
    policy: StagePolicy
    may_leave = True

    def choose(self, group: DeviceGroup, now: float) -> Assignment | None:
        """What ``group`` should work at: the earliest phase that has something for it."""
        open_ = [assignment for assignment in group.assignments if self._may(group, assignment, now)]
        if not open_:
            return None
        here = self._first([assignment for assignment in open_ if assignment.stage in group.resident], group)
        other = self._first(
            [assignment for assignment in open_ if assignment.stage not in group.resident], group
        )
        if here is None or other is None:
            return here or other
        if self.turn(other, group) == self.turn(here, group):
            return self._first([here, other], group)
        is_sooner = self.turn(other, group) < self.turn(here, group)
        return other if is_sooner and self.is_worth_loading(group, other.stage) else here

    def ahead(self, group: DeviceGroup, now: float) -> Assignment | None:
        """The next assignment of the plan, if its model can be loaded while its tasks are on their way."""
        planned = [
            assignment
            for assignment in group.assignments
            if not assignment.is_help and assignment.stage not in group.refused
        ]
        for assignment in sorted(planned, key=lambda assignment: self.turn(assignment, group)):
            if self.turn(assignment, group) >= self.n_phases:
                break
            if not self._is_done_with(group, assignment, now):
                is_there = group.resident.get(assignment.stage) == assignment.fit
                return None if is_there or group.running or self.n_ripe(assignment.stage, now) else assignment
        return None

    def _is_done_with(self, group: DeviceGroup, assignment: Assignment, now: float) -> bool:
        """Nothing is left of it, or nothing that the others would not do sooner."""
        if self.is_fed(assignment.stage):
            return False
        if not len(self.waiting[assignment.stage]):
            return True
        return self._leaves(group, assignment.stage, now)

    def _leaves(self, group: DeviceGroup, stage: int, now: float) -> bool:
        """Whether ``group`` leaves what waits to others, as they are faster or it is their share."""
        if self.policy.is_measured or not self.may_leave:
            return self.may_leave and self.is_too_slow(group, stage, now)
        sharers, n = self.sharers(group, stage), len(self.waiting[stage])
        return n > 0 and not self.policy.n_left_of_share(group, sharers, stage, n)

    def n_to_take(self, group: DeviceGroup, assignment: Assignment, now: float) -> int:
        """How many tasks ``group`` takes at once, to run them one after the other or in batches."""
        stage = assignment.stage
        n = self.policy.n_to_take(
            group, self.sharers(group, stage), stage, len(self.waiting[stage]), now,
            is_all=not self.is_growing(stage),
        )  # fmt: skip
        while self.policy.is_measured and n > 1 and self.is_too_slow(group, stage, now, n):
            n //= 2
        if assignment.limit is not None and self.turn(assignment, group) < self.n_phases:
            n = min(n, assignment.limit - group.n_taken.get(stage, 0))
        return min(n, int(self._room(assignment, now, n)))

    def is_left_to_others(self, group: DeviceGroup, assignment: Assignment, now: float) -> bool:
        """Whether this is more than the plan wants of ``group``, and another that has the model will do it.

        If nobody would, ``group`` must: what comes next in its plan may wait for just these tasks.
        """
        stage = assignment.stage
        if self.turn(assignment, group) < self.n_phases:
            return False
        return not all(self._leaves(one, stage, now) for one in self.holders(group, stage))

    def _first(self, assignments: list[Assignment], group: DeviceGroup) -> Assignment | None:
        if not assignments:
            return None
        first = min(self.turn(assignment, group) for assignment in assignments)
        mine = [assignment for assignment in assignments if self.turn(assignment, group) == first]
        # Through to the end while there is plenty, so that results come early; at the end what has most
        # before it goes first.
        before = {mine[0].stage} | self.graph.before[mine[0].stage]
        n_before = sum(len(self.waiting[one]) for one in before)
        is_plenty = n_before > 2 * len(self.groups)
        return min(mine, key=lambda assignment: -assignment.stage if is_plenty else assignment.stage)

    def _may(self, group: DeviceGroup, assignment: Assignment, now: float) -> bool:
        if assignment.stage in group.refused or self.lead(group, assignment, now) is None:
            return False
        holders = self.holders(group, assignment.stage)
        if assignment.stage not in group.resident and group.resident and holders:
            mine = [p for p in group.assignments if p.stage in group.resident and not p.is_help]
            is_back = any(p.phase > assignment.phase for p in mine)
            if is_back and assignment.stage not in group.parked:
                return False  # those who still have the model there do it
            if self.waits_for_its_own(group) and self.is_left_to_others(group, assignment, now):
                return False  # it would be exchanged for its own at once
        if assignment.is_help and assignment.stage not in group.resident:
            is_planned = any(
                self.is_coming(p.stage) and self.could_take(group, p.stage)
                for p in group.assignments
                if not p.is_help and not self._is_full(p, now)
            )
            if (is_planned and group.state == "off") or not self.is_worth_loading(group, assignment.stage):
                return False
            if self.waits_for_its_own(group) and self.is_planned_elsewhere(group, assignment.stage):
                return False
        if self._is_full(assignment, now):
            return False
        return not self._leaves(group, assignment.stage, now)

    def _is_full(self, assignment: Assignment, now: float) -> bool:
        """Others are meant to take its results meanwhile, and have enough of them."""
        return self._room(assignment, now, 1) <= 0

    def _room(self, assignment: Assignment, now: float, n: int) -> float:
        """How many of ``n`` tasks may begin before others, who are meant to take the results, have enough."""
        is_streamed = (assignment.phase, assignment.stage) in self.streams
        return min(n, self.room_after(assignment.stage, self.queue, now)) if is_streamed else n

    def is_next(self, group: DeviceGroup, now: float) -> bool:
        """Nobody else wants its devices before it can be loaded for what is on its way."""
        ahead, mine = self.ahead(group, now), set(group.devices)
        rivals = [g for g in self.groups.values() if g is not group and mine & set(g.devices)]
        if ahead is None:
            return False
        sooner = [
            (rival, assignment)
            for rival in rivals
            for assignment in rival.assignments
            if assignment.phase <= ahead.phase
        ]
        return all(self._is_done_with(rival, assignment, now) for rival, assignment in sooner)

    def is_due(self, group: DeviceGroup, assignment: Assignment, now: float) -> bool:
        """Whether there is work, or soon will be: a stage that it needs goes on at the same time."""
        if assignment.stage in group.refused:
            return False
        needs = self.graph.needs[assignment.stage]
        is_streamed = any((assignment.phase, need) in self.streams for need in needs)
        is_fed = is_streamed and self.is_fed(assignment.stage)
        return is_fed or self._may(group, assignment, now)
