"""Play a plan: the run's own dispatcher deals the tasks, and workers take the planner's times.

So each policy means in a plan what it means in a run. It costs some thirty times what ``simulate_plan``
costs, which knows only what ``measured`` does: candidates are sought with that, and the best are played.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType

from evenload.balance.policy import Measured, policy_from_name
from evenload.pipeline.dispatch.device_group import Action, LoadStage, RunTasks, StartWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.planning.placement_options import PlacementOption, option_named
from evenload.pipeline.planning.ready_tasks import ReadyTasks
from evenload.pipeline.planning.simulate_plan import (
    CandidatePhase,
    PlanTimeline,
    SimulatedPlan,
    simulate_phases,
)
from evenload.pipeline.problem import Problem


def is_played(problem: Problem) -> bool:
    """Whether the policy deals otherwise than the simulation of plans does."""
    return not isinstance(policy_from_name(problem.policy), Measured)


def simulate_policy(
    problem: Problem, phases: Sequence[CandidatePhase], *, slices: str = "each", most_events: float = math.inf
) -> SimulatedPlan:
    """Simulate ``phases`` as the policy deals; the rest is that of ``simulate_phases``, and limits that."""
    if not is_played(problem):
        return simulate_phases(problem, phases, slices=slices, most_events=most_events)
    return _PlayedRun(problem, phases, slices).simulated()


def phases_of_plan(
    problem: Problem,
    phases: Sequence[CandidatePhase],
    unit2items: Mapping[tuple[int, int], int] = MappingProxyType({}),
    n_together: int = 1,
) -> tuple[Phase, ...]:
    """Return the phases as a run follows them, those without units left out.

    unit2items  items of each unit, by number of its phase and position in it, as simulated
    n_together  the most items that were simulated as one
    """
    names = [stage.name for stage in problem.stages]
    simulated, before, found = Counter[str](), Counter[str](), []
    for (number, position), n_items in unit2items.items():
        simulated[phases[number][position].option.stage] += n_items
    for number, phase in enumerate(phases):
        units: list[Unit] = []
        for position, unit in enumerate(phase):
            stage, limit = unit.option.stage, None if unit.limit is None else unit.limit * n_together
            first, last = before[stage], before[stage] + unit2items.get((number, position), 0)
            before[stage], n_left = last, problem.n_left(names.index(stage))
            of = max(simulated[stage], 1)
            n_items = last * n_left // of - first * n_left // of  # whole items, all of the stage together
            units.append(Unit(unit.option.devices, stage, unit.option.fit, n_items, limit))
        if units:
            here = {unit.stage for unit in units}
            found.append(Phase(tuple(units), tuple(name for name in names if name in here)))
    return tuple(found)


class _PlayedRun:
    """One run of a plan: its dispatcher, and what its workers do until when, in simulated time."""

    def __init__(self, problem: Problem, phases: Sequence[CandidatePhase], slices: str):
        self.problem, self.phases = problem, phases
        self.names = [stage.name for stage in problem.stages]
        self.dispatcher = GroupScheduler(
            phases_of_plan(problem, phases),
            self.names,
            policy=problem.policy,
            speeds={one.id: one.speed for one in problem.devices},
            free={one.id: one.free_bytes for one in problem.devices if one.free_bytes is not None},
            item_s={at: stage.item_s for at, stage in enumerate(problem.stages)},
            load_s={at: stage.load_s for at, stage in enumerate(problem.stages)},
            barred={
                one.id: {at for at, name in enumerate(self.names) if name in one.barred}
                for one in problem.devices
            },
            graph=problem.graph,
        )
        self.tasks = ReadyTasks(problem)
        self.n_unfinished = sum(self.tasks.n_left)
        self.devices = {one.id: one for one in problem.devices}
        self.options: dict[tuple[str, int, str], PlacementOption] = {}
        self.ahead: dict[str, list[RunTasks]] = {}  # orders that a worker has, the one it works at first
        self.lanes: dict[str, list[float]] = {}  # when each lane of a worker is free
        self.n_done: Counter[tuple[tuple[str, ...], str]] = Counter()
        self.events: list[tuple[float, int, RunTasks | LoadStage | StartWorker, StageTask | None]] = []
        self.order = count()
        self.now = 0.0
        self.timeline = None if slices == "none" else PlanTimeline(problem, joins=slices == "joined")

    def simulated(self) -> SimulatedPlan:
        self.dispatcher.add(self._ready())
        while self.n_unfinished:
            while actions := self.dispatcher.decide(self.now):
                for action in actions:
                    self._do(action)
            if not self.events:
                return SimulatedPlan(math.inf)
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, action, task = heapq.heappop(self.events)
                self._end(action, task)
        slices = [] if self.timeline is None else self.timeline.slices
        return SimulatedPlan(self.now, slices, self._items_of_units(), next(self.order))

    def _ready(self) -> list[StageTask]:
        """Take out all tasks that can begin."""
        return [
            StageTask(stage, task)
            for stage, n in enumerate(self.tasks.n_ready)
            for some in self.tasks.take(stage, n)
            for task in range(*some)
        ]

    def _option(self, group: str, stage: int, fit: Fit) -> PlacementOption:
        """How ``group`` holds a stage, which it may only help with."""
        key = group, stage, fit.name
        if key not in self.options:
            devices = self.dispatcher.groups[group].devices
            found = option_named(self.names[stage], devices, fit.name, self.problem)
            if found is None:  # it helps in a way that no plan would choose for it
                what, speed = self.problem.stages[stage], min(self.devices[one].speed for one in devices)
                found = PlacementOption(what.name, devices, fit, what.item_s / speed, what.load_s)
            self.options[key] = found
        return self.options[key]

    # --- what the dispatcher orders, and what becomes of it -----------------------------------------

    def _at(
        self, t: float, action: RunTasks | LoadStage | StartWorker, task: StageTask | None = None
    ) -> None:
        heapq.heappush(self.events, (t, next(self.order), action, task))

    def _do(self, action: Action) -> None:
        match action:
            case StartWorker(group):
                ready_s = [self.devices[one].ready_s for one in self.dispatcher.groups[group].devices]
                self._at(max(self.now, *ready_s), action)
            case LoadStage(group, stage, fit):
                option = self._option(group, stage, fit)
                is_held = all(self.names[stage] in self.devices[one].holds for one in option.devices)
                start = max((self.now, *self.lanes.get(group, ())))  # items that wait take their share before
                self.lanes[group] = [start]
                self._at(start + (0.0 if is_held else option.load_s), action)
            case RunTasks(group):
                orders = self.ahead.setdefault(group, [])
                orders.append(action)
                if len(orders) == 1:
                    self._begin(action)

    def _begin(self, order: RunTasks) -> None:
        """Begin tasks, each when a lane is free; a worker with several answers at once."""
        stage = order.tasks[0].stage
        fit = self.dispatcher.groups[order.group].resident[stage]
        option, lanes = self._option(order.group, stage, fit), self.lanes[order.group]
        for task in order.tasks:
            start = max(self.now, heapq.heappop(lanes))
            stop = start + option.item_s
            heapq.heappush(lanes, stop)
            if self.timeline is not None:
                self.timeline.add(option.devices, stage, "work", start, stop, 1)
            self._at(stop, order, task)
        if fit.in_flight > 1:
            self._answer(order.group)

    def _answer(self, group: str) -> None:
        self.dispatcher.answered(group, self.now)
        self.ahead[group].pop(0)
        if self.ahead[group]:
            self._begin(self.ahead[group][0])

    def _end(self, action: RunTasks | LoadStage | StartWorker, task: StageTask | None) -> None:
        match action:
            case StartWorker(group):
                self.dispatcher.up(group)
            case LoadStage(group, stage, fit):
                (start,) = self.lanes[group]
                if self.timeline is not None and start < self.now:  # a load that is never needed has no end
                    self.timeline.add(
                        self.dispatcher.groups[group].devices, stage, "load", start, self.now, 0
                    )
                self.lanes[group] = [self.now] * fit.n_parallel
                self.dispatcher.answered(group, self.now)
                self.dispatcher.loaded(group, stage, fit, n_lanes=fit.in_flight)
            case RunTasks(group) if task is not None:
                fit = self.dispatcher.groups[group].resident[task.stage]
                option = self._option(group, task.stage, fit)
                if fit.in_flight == 1:
                    self._answer(group)
                self.dispatcher.ended(group, task, option.item_s)
                self.n_unfinished -= 1
                self.n_done[option.devices, option.stage] += 1
                self.tasks.done(task.stage, [(task.strand, task.strand + 1)])
                self.dispatcher.go_on(self._ready())

    def _items_of_units(self) -> dict[tuple[int, int], int]:
        """Tell the items of a worker to its units, in their order."""
        found, left = {}, self.n_done.copy()
        for number, phase in enumerate(self.phases):
            for position, unit in enumerate(phase):
                key = unit.option.devices, unit.option.stage
                found[number, position] = left[key] if unit.limit is None else min(left[key], unit.limit)
                left[key] -= found[number, position]
        return found
