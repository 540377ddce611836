"""Simulate a plan: a discrete-event run with the planner's times, in which workers that are alike go in step.

A simulated worker is what one phase holds on the same devices: one stage, or several side by side. When it is
free, it takes the first item that waits for one of its stages. It leaves the last items of a stage to others
if they would be done with all that is left no later than this worker with one more item. A worker that has
nothing left gives its devices to the next phase. This is what pull queues with known speeds do; no worker
sees the future.

Workers of one kind that begin at the same time end at the same time, too. So they are simulated together, as
one set with a count, until they part. The result is that of a simulation item by item; it costs as many
events as there are sets, not items.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from evenload.pipeline.plan import TimelineSlice
from evenload.pipeline.planning.placement_options import PlacementOption
from evenload.pipeline.planning.ready_tasks import ReadyTasks, TaskRange, n_in
from evenload.pipeline.problem import Problem

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class CandidateUnit:
    """A stage held by some devices in one phase. ``limit``: leave after so many items (None: never)."""

    option: PlacementOption
    limit: int | None = None


CandidatePhase = tuple[CandidateUnit, ...]


@dataclass(slots=True)
class SimulatedWorker:
    """The stages that a phase holds on the same devices.

    at       stage -> position of its unit in the phase
    missing  devices that still work for an earlier phase
    """

    number: int
    phase: int
    devices: tuple[str, ...]
    kind: "WorkerKind"
    at: dict[int, int]
    missing: int
    taken: dict[int, int] = field(default_factory=dict)


class WorkerKind:
    """Workers with the same stages, times and limits, and what tells them from others: one object for each.

    stages    in the order in which they are preferred
    rank      seconds for an item, relative to those of the stage: smaller is faster
    """

    __slots__ = ("item_s", "limits", "load_s", "n_parallel", "number", "rank", "stages")

    def __init__(self, number: int, units: Mapping[int, CandidateUnit], problem: Problem):
        self.number = number
        self.stages = stages = tuple(sorted(units))
        self.item_s = {s: units[s].option.item_s for s in stages}
        self.load_s = {s: units[s].option.load_s for s in stages}
        self.limits = {s: limit for s in stages if (limit := units[s].limit) is not None}
        self.n_parallel = max(unit.option.fit.n_parallel for unit in units.values())
        self.rank = min(self.item_s[s] / problem.stages[s].item_s for s in stages)


class WorkerSet:
    """Workers of a kind that have loaded and closed the same stages, and whose items end at the same times.

    members  their numbers
    closed   stages that they have nothing more to do for
    loaded_s until when they load
    taken    stage -> items that each of them took, where there is a limit
    ends     when the items end that each works on; with some lanes free, a worker is alone in its set
    """

    __slots__ = ("closed", "ends", "kind", "loaded", "loaded_s", "members", "taken")

    def __init__(
        self,
        kind: WorkerKind,
        members: list[int],
        loaded: frozenset[int],
        closed: frozenset[int] = frozenset(),
        taken: dict[int, int] | None = None,
    ):
        self.kind, self.members, self.loaded, self.closed = kind, members, loaded, closed
        self.taken = dict.fromkeys(kind.limits, 0) if taken is None else taken
        self.ends: list[float] = []
        self.loaded_s = 0.0

    @property
    def key(self) -> tuple:
        """Equal for idle sets that are one."""
        taken = tuple(self.taken.values())
        return self.kind.number, self.loaded, self.closed, taken

    @property
    def order(self) -> tuple:
        """The fastest take first, of those the ones with a model, of those state by state."""
        state = sorted(self.loaded), sorted(self.closed), tuple(self.taken.values()), len(self.ends)
        return self.kind.rank, not self.loaded, self.kind.number, state, self.members[0]

    @property
    def n_lanes(self) -> int:
        """Items that each worker could begin now."""
        return self.kind.n_parallel - len(self.ends)

    def split(self, n: int) -> "WorkerSet":
        """Take the first ``n`` workers out, into a set of their own."""
        assert not self.ends
        apart = WorkerSet(self.kind, self.members[:n], self.loaded, self.closed, dict(self.taken))
        del self.members[:n]
        return apart

    def possible(self, stage: int, deadline: float, now: float) -> int:
        """Return the items of ``stage`` that one of these workers could finish by ``deadline``."""
        kind = self.kind
        item_s = kind.item_s[stage]
        load_s = 0.0 if stage in self.loaded else kind.load_s[stage]
        found = 0
        for start in (*self.ends, *(self.loaded_s,) * self.n_lanes):
            room = (deadline - max(start, now) - load_s) / item_s + SLACK
            found += max(0, math.floor(room))
        limit = kind.limits.get(stage)
        return found if limit is None else min(found, limit - self.taken[stage])


def list_workers(problem: Problem, phases: Sequence[CandidatePhase]) -> list[SimulatedWorker]:
    """List the workers of all phases."""
    index = {stage.name: number for number, stage in enumerate(problem.stages)}
    kinds: dict[tuple, WorkerKind] = {}
    workers: list[SimulatedWorker] = []
    for number, phase in enumerate(phases):
        here: dict[tuple[str, ...], dict[int, tuple[int, CandidateUnit]]] = {}
        for position, unit in enumerate(phase):
            here.setdefault(unit.option.devices, {})[index[unit.option.stage]] = position, unit
        for devices, placed in here.items():
            units = {stage: unit for stage, (_, unit) in placed.items()}
            key = tuple(
                (s, u.option.item_s, u.option.load_s, u.limit, u.option.fit.n_parallel)
                for s, u in sorted(units.items())
            )
            if key not in kinds:
                kinds[key] = WorkerKind(len(kinds), units, problem)
            at = {stage: position for stage, (position, _) in placed.items()}
            workers.append(
                SimulatedWorker(
                    len(workers), number, devices, kinds[key], at, len(devices), dict.fromkeys(at, 0)
                )
            )
    return workers


@dataclass(slots=True)
class SimulatedPlan:
    """The result of a simulation.

    makespan_s  infinite if some tasks are never done
    unit2items  items that each unit did, by number of its phase and position in it
    n_events    ends of items and loads that were simulated one after the other
    """

    makespan_s: float
    slices: list[TimelineSlice] = field(default_factory=list)
    unit2items: dict[tuple[int, int], int] = field(default_factory=dict)
    n_events: int = 0


def simulate_phases(
    problem: Problem, phases: Sequence[CandidatePhase], *, slices: str = "each", most_events: float = math.inf
) -> SimulatedPlan:
    """Simulate ``phases`` for about ``most_events``; a worker of several stages prefers the first.

    slices  what is recorded: each item and load of a worker | joined, on each device, where one follows the
            other | none
    """
    return _PlanSimulation(problem, phases, slices).simulated(most_events)


class _PlanSimulation:
    """One run of the simulation: its workers, queues and events, in simulated time."""

    def __init__(self, problem: Problem, phases: Sequence[CandidatePhase], slices: str):
        self.problem = problem
        self.tasks = ReadyTasks(problem)
        self.workers = list_workers(problem, phases)
        self.device2workers: dict[str, list[int]] = {device.id: [] for device in problem.devices}
        for worker in self.workers:
            for device in worker.devices:
                self.device2workers[device].append(worker.number)
        self.next_worker = dict.fromkeys(self.device2workers, 0)
        index = {stage.name: number for number, stage in enumerate(problem.stages)}
        self.holds = {device.id: {index[n] for n in device.holds if n in index} for device in problem.devices}
        self.last_held: dict[str, tuple[tuple[str, ...], frozenset[int]]] = {}
        self.rate = [0.0] * len(problem.stages)  # items per second of all open workers
        self.idle: dict[tuple, WorkerSet] = {}  # all lanes free, by key: equal ones are one
        self.resting: list[WorkerSet] = []  # all lanes free since this pass, and not looked at again in it
        self.partly: dict[int, WorkerSet] = {}  # some lanes free, by number of the worker
        self.busy: dict[int, WorkerSet] = {}  # no lane free, by number of the first worker
        self.events: list[tuple[float, int, WorkerSet | str, int, list[TaskRange]]] = []
        self.n_events = 0
        self.n_unfinished = sum(self.tasks.n_left)
        self.timeline = None if slices == "none" else PlanTimeline(problem, joins=slices == "joined")

    def simulated(self, most_events: float) -> SimulatedPlan:
        for device in self.problem.devices:
            if device.ready_s > 0:
                self._schedule(device.ready_s, device.id, 0, [])
            else:
                self._arrive(device.id)
        now = 0.0
        self._wake(now)
        while self.events and self.n_events <= most_events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, who, stage, tasks = heapq.heappop(self.events)
                if isinstance(who, str):
                    self._arrive(who)
                else:
                    self._finish(who, stage, tasks, now)
            self._wake(now)
        taken = {(w.phase, w.at[stage]): n for w in self.workers for stage, n in w.taken.items()}
        makespan_s = math.inf if self.n_unfinished else now
        slices = [] if self.timeline is None else self.timeline.slices
        return SimulatedPlan(makespan_s, slices, taken, self.n_events)

    def _schedule(self, t: float, who: WorkerSet | str, stage: int, tasks: list[TaskRange]) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (t, self.n_events, who, stage, tasks))

    # --- devices and workers ------------------------------------------------------------------------

    def _arrive(self, device: str) -> None:
        """Give a free device to its next worker, if there is one."""
        numbers = self.device2workers[device]
        if self.next_worker[device] < len(numbers):
            worker = self.workers[numbers[self.next_worker[device]]]
            worker.missing -= 1
            if worker.missing == 0:
                self._open(worker.number)

    def _open(self, number: int) -> None:
        worker = self.workers[number]
        held = [self.last_held.get(device, ((), frozenset())) for device in worker.devices]
        loaded = frozenset(
            stage
            for stage in worker.kind.stages
            if all(
                stage in self.holds[device] or (devices == worker.devices and stage in stages)
                for device, (devices, stages) in zip(worker.devices, held, strict=True)
            )
        )
        for stage, item_s in worker.kind.item_s.items():
            self.rate[stage] += worker.kind.n_parallel / item_s
        self._rest(WorkerSet(worker.kind, [number], loaded))

    def _rest(self, some: WorkerSet) -> None:
        """Put workers where they belong: all lanes free, some, or none."""
        if some.ends:
            where = self.partly if some.n_lanes else self.busy
            where[some.members[0]] = some
        else:
            self.resting.append(some)

    def _unite(self) -> None:
        """Make one set of workers that rest in the same state."""
        for some in self.resting:
            if (equal := self.idle.get(some.key)) is not None:
                equal.members = sorted(equal.members + some.members)
            else:
                self.idle[some.key] = some
        self.resting = []

    def _release(self, some: WorkerSet) -> None:
        """Let the devices of workers that have nothing more to do go on to the next phase."""
        for number in some.members:
            devices = self.workers[number].devices
            for device in devices:
                self.last_held[device] = devices, some.loaded
                self.next_worker[device] += 1
                self._arrive(device)

    def _close(self, some: WorkerSet, stage: int) -> None:
        some.closed |= {stage}
        self.rate[stage] -= len(some.members) * some.kind.n_parallel / some.kind.item_s[stage]

    # --- decisions ----------------------------------------------------------------------------------

    def _wake(self, now: float) -> None:
        """Give every free worker something to do, fastest first, until none takes anything more."""
        again = True
        while again:
            again = False
            self._unite()
            free = [*self.idle.values(), *self.partly.values()]
            if len(free) > 1:
                free.sort(key=lambda one: one.order)
            for some in free:
                if self._may_change(some):
                    again |= self._step(some, now)

    def _may_change(self, some: WorkerSet) -> bool:
        """Return whether a look at these workers could change anything; quick."""
        kind, tasks = some.kind, self.tasks
        for stage in kind.stages:
            if stage not in some.closed and (
                tasks.n_ready[stage]
                or tasks.n_left[stage] <= self._most_by(some, stage)
                or (stage not in some.loaded and kind.load_s[stage] > 0 and not some.ends)
                or some.taken.get(stage, 0) >= kind.limits.get(stage, math.inf)
            ):
                return True
        return not some.ends and len(some.closed) == len(kind.stages)

    def _most_by(self, some: WorkerSet, stage: int) -> float:
        """Return at least the items that all open workers could do while one of these does one item more."""
        load_s = 0.0 if stage in some.loaded else some.kind.load_s[stage]
        return self.rate[stage] * (load_s + some.kind.item_s[stage]) * (1 + 1e-6) + 1e-6

    def _step(self, some: WorkerSet, now: float) -> bool:
        """Have these workers begin, load, wait, or let their devices go. Return whether others may see it."""
        if some.ends:
            del self.partly[some.members[0]]
        else:
            del self.idle[some.key]
        return self._act(some, now)

    def _act(self, some: WorkerSet, now: float) -> bool:
        changed = False
        while True:
            stage, n_workers, n_each = self._choose(some, now)
            if stage is None:
                return self._settle(some, now) or changed
            apart = some if n_workers == len(some.members) else some.split(n_workers)
            if n_each:
                self._start(apart, stage, n_each, now)
                changed = True
            else:
                self._close(apart, stage)
            if apart is not some and (apart.n_lanes or not n_each):
                self.busy[some.members[0]] = some  # so that the one knows of the others
                changed |= self._act(apart, now)
                del self.busy[some.members[0]]
            elif not apart.n_lanes:
                self._rest(apart)
                if apart is some:
                    return True

    def _choose(self, some: WorkerSet, now: float) -> tuple[int | None, int, int]:
        """Return the stage that the first workers of the set take items of, how many workers, and items each.

        With 0 items they have nothing more to do for the stage; without a stage, nobody has anything to do
        now. Stages that are over for all of them are closed.
        """
        for stage in some.kind.stages:
            if stage in some.closed:
                continue
            n_left, limit = self.tasks.n_left[stage], some.kind.limits.get(stage)
            if n_left == 0 or (limit is not None and some.taken[stage] >= limit):
                self._close(some, stage)
                continue
            most = self._most_by(some, stage)
            if n_left > most:
                if self.tasks.n_ready[stage]:
                    return stage, *self._together(some, stage, n_left - most)
                continue
            missing, each = self._missing_of_others(some, stage, now)
            if missing <= SLACK:  # those that remain suffice until so many have gone that they do not
                n_too_many = int(-missing / each) + 1 if each > 0 else len(some.members)
                return stage, min(len(some.members), n_too_many), 0
            if self.tasks.n_ready[stage]:
                is_in_step = some.kind.n_parallel == 1 and stage not in some.kind.limits
                return stage, min(len(some.members), self.tasks.n_ready[stage]) if is_in_step else 1, 1
        return None, 0, 0

    def _together(self, some: WorkerSet, stage: int, n_surely: float) -> tuple[int, int]:
        """Return how many workers can begin at once, and how many items each.

        ``n_surely``: so many can be taken before anybody might leave the rest to others.
        """
        limit, n_lanes = some.kind.limits.get(stage), some.n_lanes
        n_each = n_lanes if limit is None else min(n_lanes, limit - some.taken[stage])
        n_most = len(some.members) if n_each == n_lanes else 1
        n_begun = min(self.tasks.n_ready[stage], math.ceil(n_surely), n_most * n_each)
        return (n_begun // n_each, n_each) if n_begun >= n_each else (1, n_begun)

    def _missing_of_others(self, some: WorkerSet, stage: int, now: float) -> tuple[float, float]:
        """Return the items that would be left if the others worked until one of these had done one more item.

        Also return how much of theirs one more worker like these would do. If nothing is left without it, one
        of these closes the stage. If something is, all of these can begin: each takes one item, and will do
        one less by that time.
        """
        load_s = 0.0 if stage in some.loaded else some.kind.load_s[stage]
        deadline = now + load_s + some.kind.item_s[stage]
        each = some.possible(stage, deadline, now)
        missing = self.tasks.n_left[stage] - each * (len(some.members) - 1)
        for other in chain(self.idle.values(), self.partly.values(), self.busy.values(), self.resting):
            if stage in other.kind.item_s and stage not in other.closed:
                missing -= other.possible(stage, deadline, now) * len(other.members)
        return missing, each

    # --- work ---------------------------------------------------------------------------------------

    def _settle(self, some: WorkerSet, now: float) -> bool:
        """Load ahead, let the devices go, or wait: nothing can begin. True if others may see it."""
        if some.ends:
            self._rest(some)
            return False
        if len(some.closed) == len(some.kind.stages):
            self._release(some)
            return True
        kind = some.kind
        coming = [s for s in kind.stages if s not in some.closed | some.loaded and kind.load_s[s] > 0]
        if not coming:
            self._rest(some)
            return False
        stop = self._load(some, coming[0], now)
        some.ends = [stop] * kind.n_parallel
        self._schedule(stop, some, coming[0], [])
        self._rest(some)
        return False

    def _load(self, some: WorkerSet, stage: int, now: float) -> float:
        """Load the model of a stage, unless it is there; return when the workers can begin with an item."""
        begin = max(now, some.loaded_s)
        if stage in some.loaded:
            return begin
        some.loaded |= {stage}
        some.loaded_s = begin + some.kind.load_s[stage]
        if some.loaded_s > begin:
            self._record(some, stage, "load", begin, some.loaded_s, 0)
        return some.loaded_s

    def _start(self, some: WorkerSet, stage: int, n_each: int, now: float) -> None:
        """Begin items on all lanes of these workers, or on free lanes of one worker."""
        start = self._load(some, stage, now)
        stop = start + some.kind.item_s[stage]
        tasks = self.tasks.take(stage, n_each * len(some.members))
        self._record(some, stage, "work", start, stop, n_each)
        for number in some.members:
            self.workers[number].taken[stage] += n_each
        if stage in some.taken:
            some.taken[stage] += n_each
        some.ends += [stop] * n_each
        self._schedule(stop, some, stage, tasks)

    def _record(
        self, some: WorkerSet, stage: int, kind: str, start_s: float, stop_s: float, n_each: int
    ) -> None:
        if self.timeline is None:
            return
        for number in some.members:
            self.timeline.add(self.workers[number].devices, stage, kind, start_s, stop_s, n_each)

    def _finish(self, some: WorkerSet, stage: int, tasks: list[TaskRange], now: float) -> None:
        self.busy.pop(some.members[0], None)
        self.partly.pop(some.members[0], None)
        if tasks:
            n_done = n_in(tasks)
            self.n_unfinished -= n_done
            for _ in range(n_done // len(some.members)):
                some.ends.remove(now)
            self.tasks.done(stage, tasks)
        else:  # a model was loaded
            some.ends = []
        self._rest(some)


class PlanTimeline:
    """The slices of a simulated run. ``joins``: a slice that goes on where the last one of its device ended,
    with the same kind of work, is one with it; else a worker on several devices has one slice, of device
    "a+b", for each item.
    """

    def __init__(self, problem: Problem, *, joins: bool):
        self.slices: list[TimelineSlice] = []
        self._names = [stage.name for stage in problem.stages]
        self._joins = joins
        self._last: dict[str, int] = {}

    def add(
        self, devices: Sequence[str], stage: int, kind: str, start_s: float, stop_s: float, n_each: int
    ) -> None:
        """Add a slice for each device of a worker; with several items at once, one for each."""
        for device in devices if self._joins else ("+".join(devices),):
            for _ in range(1 if self._joins else max(1, n_each)):
                n_items = n_each if self._joins else min(1, n_each)
                self._add(TimelineSlice(device, self._names[stage], kind, start_s, stop_s, n_items))

    def _add(self, new: TimelineSlice) -> None:
        at = self._last.get(new.device)
        last = self.slices[at] if at is not None and self._joins else None
        is_same = last is not None and (last.stage, last.kind) == (new.stage, new.kind)
        if at is not None and last is not None and is_same and new.start_s <= last.stop_s + 1e-6:
            n_items = last.n_items + new.n_items
            self.slices[at] = replace(last, stop_s=max(last.stop_s, new.stop_s), n_items=n_items)
        else:
            self._last[new.device] = len(self.slices)
            self.slices.append(new)
