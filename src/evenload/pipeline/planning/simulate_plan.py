"""What a plan would do, item by item: a discrete-event run with the planner's times.

A *lane* is what one phase holds on the same devices: one stage, or several side by side. When it is free, it
takes the longest item that waits for one of its stages, unless the other lanes would be through with all that
is left of that stage no later than this lane with its one item: then it leaves the rest to them. A lane that
has nothing left gives its devices to the next phase. This is what pull queues with known speeds do; no lane
sees the future.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evenload.pipeline.plan import TimelineSlice
from evenload.pipeline.planning.placement_options import PlacementOption
from evenload.pipeline.problem import Problem

__all__ = ["CandidatePhase", "CandidateUnit", "SimulatedRun", "simulate_phases"]

SLACK = 1e-9
_LOADED = -1


@dataclass(frozen=True, slots=True)
class CandidateUnit:
    """A stage held by some devices in one phase. ``limit``: leave after so many items (None: never)."""

    held: PlacementOption
    limit: int | None = None


CandidatePhase = tuple[CandidateUnit, ...]


@dataclass(slots=True)
class SimulatedRun:
    """``makespan_s`` is infinite if some tasks are never done; ``unit2items`` by phase and place in it."""

    makespan_s: float
    slices: list[TimelineSlice] = field(default_factory=list)
    unit2items: dict[tuple[int, int], int] = field(default_factory=dict)


def simulate_phases(
    problem: Problem, phases: Sequence[CandidatePhase], *, late_first: bool = False
) -> SimulatedRun:
    """Run ``phases``. ``late_first``: a lane with several stages prefers the last of them, not the first."""
    return _Simulation(problem, phases, late_first).go()


class _SimulatedWorker:
    __slots__ = ("at", "closed", "devices", "ends", "is_open", "item_s", "limits", "load_s", "loaded",
                 "missing", "n_busy", "n_slots", "number", "phase", "stages", "taken")  # fmt: skip

    def __init__(self, number: int, phase: int, devices: tuple[str, ...]):
        self.number, self.phase, self.devices = number, phase, devices
        self.stages: list[int] = []
        self.item_s: dict[int, float] = {}
        self.load_s: dict[int, float] = {}
        self.limits: dict[int, int | None] = {}
        self.taken: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self.loaded: set[int] = set()
        self.closed: set[int] = set()
        self.n_slots, self.n_busy, self.is_open = 1, 0, False
        self.ends: list[float] = []  # of the items it works on
        self.missing = len(devices)


class _Simulation:
    def __init__(self, problem: Problem, phases: Sequence[CandidatePhase], late_first: bool):
        self.problem, self.late_first = problem, late_first
        n_stages = len(problem.stages)
        index = {stage.name: number for number, stage in enumerate(problem.stages)}
        self.lanes: list[_SimulatedWorker] = []
        self.device2lanes: dict[str, list[_SimulatedWorker]] = {device.id: [] for device in problem.devices}
        for number, phase in enumerate(phases):
            self._add_lanes(number, phase, index)
        self.at_lane = dict.fromkeys(self.device2lanes, 0)
        self.stage2lanes = [[lane for lane in self.lanes if s in lane.item_s] for s in range(n_stages)]
        self.holds = {device.id: {index[n] for n in device.holds if n in index} for device in problem.devices}
        self.last_held: dict[str, tuple[tuple[str, ...], set[int]]] = {}
        self.sizes = problem.sizes
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(n_stages)]  # (-size, task)
        self.n_left = [problem.n_left(s) for s in range(n_stages)]  # not started
        self.n_unfinished = sum(self.n_left)
        self.events: list[tuple[float, int, int, int, int]] = []  # time, order, lane, stage, task
        self.order = 0
        self.waiting: set[int] = set()
        self.outcome = SimulatedRun(math.inf)
        self.n_arrived = [[0] * problem.n_items for _ in range(n_stages)] if self._fans_in() else None

    def _fans_in(self) -> bool:
        counts = [stage.n_tasks for stage in self.problem.stages]
        return any(after < before for before, after in itertools.pairwise(counts))

    def _add_lanes(self, number: int, phase: CandidatePhase, index: dict[str, int]) -> None:
        here: dict[tuple[str, ...], _SimulatedWorker] = {}
        for position, unit in enumerate(phase):
            devices = unit.held.devices
            if devices not in here:
                lane = here[devices] = _SimulatedWorker(len(self.lanes), number, devices)
                self.lanes.append(lane)
                for device in devices:
                    self.device2lanes[device].append(lane)
            lane, stage = here[devices], index[unit.held.stage]
            lane.stages.append(stage)
            lane.item_s[stage], lane.load_s[stage] = unit.held.item_s, unit.held.load_s
            lane.limits[stage], lane.taken[stage], lane.at[stage] = unit.limit, 0, position
            lane.n_slots = max(lane.n_slots, unit.held.fit.in_flight)
        for lane in here.values():
            lane.stages.sort(reverse=self.late_first)

    def go(self) -> SimulatedRun:
        self._feed()
        for device in self.problem.devices:
            if device.ready_s > 0:
                self._at(device.ready_s, -1 - self._device_number(device.id), 0, 0)
            else:
                self._arrive(device.id, 0.0)
        now = 0.0
        self._wake(now)
        while self.events:
            now, _, lane, stage, task = heapq.heappop(self.events)
            if lane < 0:
                self._arrive(self.problem.devices[-1 - lane].id, now)
            else:
                self._finish(self.lanes[lane], stage, task, now)
            self._wake(now)
        if not self.n_unfinished:
            self.outcome.makespan_s = now
        for lane in self.lanes:
            for stage, taken in lane.taken.items():
                self.outcome.unit2items[lane.phase, lane.at[stage]] = taken
        return self.outcome

    def _device_number(self, device: str) -> int:
        return next(n for n, one in enumerate(self.problem.devices) if one.id == device)

    def _at(self, t: float, lane: int, stage: int, task: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (t, self.order, lane, stage, task))

    def _size(self, stage: int, task: int) -> float:
        return 1.0 if self.sizes is None else self.sizes[task // self.problem.stages[stage].n_tasks]

    def _feed(self) -> None:
        """What can be begun at once: the tasks that are not done and whose stages before are."""
        stages = self.problem.stages
        for number in range(len(stages)):
            first = stages[number].n_tasks * self.problem.n_items - self.n_left[number]
            if number == 0:
                last = stages[0].n_tasks * self.problem.n_items
            else:
                before = stages[number - 1]
                n_done = before.n_tasks * self.problem.n_items - self.n_left[number - 1]
                last = n_done * stages[number].n_tasks // before.n_tasks
            self.ready[number] = [(-self._size(number, task), task) for task in range(first, last)]
            heapq.heapify(self.ready[number])

    def _arrive(self, device: str, now: float) -> None:
        """The device is free for its next lane, if there is one."""
        lanes = self.device2lanes[device]
        if self.at_lane[device] < len(lanes):
            lane = lanes[self.at_lane[device]]
            lane.missing -= 1
            if lane.missing == 0:
                self._open(lane)

    def _open(self, lane: _SimulatedWorker) -> None:
        lane.is_open = True
        for stage in lane.stages:
            kept = all(
                stage in self.holds[device]
                or (device in self.last_held and self.last_held[device][0] == lane.devices
                    and stage in self.last_held[device][1])
                for device in lane.devices
            )  # fmt: skip
            if kept:
                lane.loaded.add(stage)
        self.waiting.add(lane.number)

    def _wake(self, now: float) -> None:
        """Give every free lane something to do, fastest first, until none takes anything."""
        again = True
        while again:
            again = False
            for number in sorted(self.waiting, key=self._speed_rank):
                again |= self._step(self.lanes[number], now)

    def _speed_rank(self, number: int) -> tuple[float, int]:
        lane = self.lanes[number]
        return min(lane.item_s[stage] / self.problem.stages[stage].item_s for stage in lane.stages), number

    def _step(self, lane: _SimulatedWorker, now: float) -> bool:
        """Start items on the lane's free slots, or let its devices go. True if something changed."""
        changed = False
        while lane.n_busy < lane.n_slots:
            stage = self._choice(lane, now)
            if stage is None:
                break
            self._start(lane, stage, now)
            changed = True
        if lane.n_busy == 0 and not changed:
            self._load_ahead(lane, now)
        if lane.n_busy >= lane.n_slots:
            self.waiting.discard(lane.number)
        elif lane.n_busy == 0 and len(lane.closed) == len(lane.stages):
            self._release(lane, now)
            changed = True
        return changed

    def _choice(self, lane: _SimulatedWorker, now: float) -> int | None:
        for stage in lane.stages:
            if stage in lane.closed:
                continue
            limit = lane.limits[stage]
            if self.n_left[stage] == 0 or (limit is not None and lane.taken[stage] >= limit):
                lane.closed.add(stage)
                continue
            load_s = 0.0 if stage in lane.loaded else lane.load_s[stage]
            size = -self.ready[stage][0][0] if self.ready[stage] else 1.0
            if self._others_suffice(lane, stage, now + load_s + size * lane.item_s[stage], now):
                lane.closed.add(stage)
            elif self.ready[stage]:
                return stage
        return None

    def _others_suffice(self, lane: _SimulatedWorker, stage: int, deadline: float, now: float) -> bool:
        """Would the other open lanes be through with all that is left of the stage by ``deadline``?"""
        needed = self.n_left[stage] * self.problem.mean_size
        for other in self.stage2lanes[stage]:
            if other is lane or not other.is_open or stage in other.closed:
                continue
            item_s = other.item_s[stage]
            load_s = 0.0 if stage in other.loaded else other.load_s[stage]
            possible = 0.0
            starts = [max(end, now) for end in other.ends] + [now] * (other.n_slots - other.n_busy)
            for start in starts:
                room = (deadline - start - load_s) / item_s + SLACK
                if room > 0:
                    possible += room if self.sizes is not None else math.floor(room)
            limit = other.limits[stage]
            needed -= possible if limit is None else min(possible, limit - other.taken[stage])
            if needed <= SLACK:
                return True
        return False

    def _start(self, lane: _SimulatedWorker, stage: int, now: float) -> None:
        size, task = heapq.heappop(self.ready[stage])
        start = now
        if stage not in lane.loaded:
            start += lane.load_s[stage]
            lane.loaded.add(stage)
            for device in lane.devices:
                if start > now:
                    self._record(device, stage, "load", now, start)
        stop = start - size * lane.item_s[stage]
        for device in lane.devices:
            self._record(device, stage, "work", start, stop)
        lane.taken[stage] += 1
        lane.n_busy += 1
        lane.ends.append(stop)
        self.n_left[stage] -= 1
        self._at(stop, lane.number, stage, task)

    def _load_ahead(self, lane: _SimulatedWorker, now: float) -> None:
        """A lane that must wait for its first item loads meanwhile."""
        coming = [s for s in lane.stages if s not in lane.closed | lane.loaded and lane.load_s[s] > 0]
        if not coming:
            return
        stage, stop = coming[0], now + lane.load_s[coming[0]]
        lane.loaded.add(stage)
        for device in lane.devices:
            self._record(device, stage, "load", now, stop)
        lane.n_busy = lane.n_slots
        lane.ends = [stop] * lane.n_slots
        self._at(stop, lane.number, stage, _LOADED)

    def _record(self, device: str, stage: int, kind: str, start: float, stop: float) -> None:
        name = self.problem.stages[stage].name
        self.outcome.slices.append(TimelineSlice(device, name, kind, start, stop, int(kind == "work")))

    def _finish(self, lane: _SimulatedWorker, stage: int, task: int, now: float) -> None:
        if task == _LOADED:
            lane.n_busy, lane.ends = 0, []
            self.waiting.add(lane.number)
            return
        lane.n_busy -= 1
        lane.ends.remove(now)
        self.n_unfinished -= 1
        self.waiting.add(lane.number)
        if stage + 1 < len(self.ready):
            for following in self._following(stage, task):
                heapq.heappush(self.ready[stage + 1], (-self._size(stage + 1, following), following))

    def _following(self, stage: int, task: int) -> range:
        """Tasks of the next stage that can begin: samples after what they are made of, the best after all."""
        before, after = self.problem.stages[stage].n_tasks, self.problem.stages[stage + 1].n_tasks
        item = task // before
        if after >= before:
            width = after // before
            return range(task * width, (task + 1) * width)
        assert self.n_arrived is not None
        self.n_arrived[stage][item] += 1
        is_last = self.n_arrived[stage][item] == before
        return range(item * after, (item + 1) * after) if is_last else range(0)

    def _release(self, lane: _SimulatedWorker, now: float) -> None:
        self.waiting.discard(lane.number)
        lane.is_open = False
        for device in lane.devices:
            self.last_held[device] = (lane.devices, set(lane.loaded))
            self.at_lane[device] += 1
            self._arrive(device, now)
