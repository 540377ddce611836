"""The slow twin of the simulation: every worker by itself, every item an event of its own."""

import heapq
import math
from collections.abc import Sequence

from evenload.pipeline.plan import TimelineSlice
from evenload.pipeline.planning.simulate_plan import CandidatePhase, SimulatedPlan
from evenload.pipeline.problem import Problem

__all__ = ["simulate_items"]

SLACK = 1e-9
_LOADED = -1  # in place of a task: the end of a load


def simulate_items(problem: Problem, phases: Sequence[CandidatePhase]) -> SimulatedPlan:
    """Simulate ``phases``."""
    return _PlanSimulation(problem, phases).run()


class _SimulatedWorker:
    """The stages that a phase holds on the same devices, and what the worker is doing."""

    __slots__ = ("at", "closed", "devices", "end_s", "is_open", "item_s", "limits", "load_s", "loaded",
                 "loaded_s", "missing", "n_busy", "n_parallel", "number", "phase", "stages",
                 "taken")  # fmt: skip

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
        self.n_parallel, self.n_busy, self.is_open = 1, 0, False
        self.loaded_s = 0.0
        self.end_s: list[float] = []  # of the items it works on
        self.missing = len(devices)  # that still work for an earlier phase


class _PlanSimulation:
    """One run of the simulation: its workers, queues and events, in simulated time."""

    def __init__(self, problem: Problem, phases: Sequence[CandidatePhase]):
        self.problem = problem
        n_stages = len(problem.stages)
        index = {stage.name: number for number, stage in enumerate(problem.stages)}
        self.workers: list[_SimulatedWorker] = []
        self.device2workers: dict[str, list[_SimulatedWorker]] = {device.id: [] for device in problem.devices}
        for number, phase in enumerate(phases):
            self._add_workers(number, phase, index)
        self.next_worker = dict.fromkeys(self.device2workers, 0)
        self.stage2workers = [
            [worker for worker in self.workers if s in worker.item_s] for s in range(n_stages)
        ]
        self.holds = {device.id: {index[n] for n in device.holds if n in index} for device in problem.devices}
        self.last_held: dict[str, tuple[tuple[str, ...], set[int]]] = {}
        self.ready: list[list[int]] = [[] for _ in range(n_stages)]
        self.n_left = [problem.n_left(s) for s in range(n_stages)]  # not started
        self.n_unfinished = sum(self.n_left)
        self.events: list[tuple[float, int, int, int, int]] = []  # time, order, worker, stage, task
        self.order = 0
        self.waiting: set[int] = set()
        self.result = SimulatedPlan(math.inf)
        self.graph = problem.graph
        self.n_arrived = {
            (need, stage): [0] * problem.n_items
            for stage, needs in enumerate(self.graph.needs)
            for need in needs
            if problem.stages[stage].n_tasks < problem.stages[need].n_tasks
        }
        self.n_missing = {  # of each task of a join, the needs that are not there
            stage: [len(needs)] * (problem.stages[stage].n_tasks * problem.n_items)
            for stage, needs in enumerate(self.graph.needs)
            if len(needs) > 1
        }

    def _add_workers(self, number: int, phase: CandidatePhase, index: dict[str, int]) -> None:
        here: dict[tuple[str, ...], _SimulatedWorker] = {}
        for position, unit in enumerate(phase):
            devices = unit.option.devices
            if devices not in here:
                worker = here[devices] = _SimulatedWorker(len(self.workers), number, devices)
                self.workers.append(worker)
                for device in devices:
                    self.device2workers[device].append(worker)
            worker, stage = here[devices], index[unit.option.stage]
            worker.stages.append(stage)
            worker.item_s[stage], worker.load_s[stage] = unit.option.item_s, unit.option.load_s
            worker.limits[stage], worker.taken[stage], worker.at[stage] = unit.limit, 0, position
            worker.n_parallel = max(worker.n_parallel, unit.option.fit.n_parallel)
        for worker in here.values():
            worker.stages.sort()

    def run(self) -> SimulatedPlan:
        self._queue_first_tasks()
        for device in self.problem.devices:
            if device.ready_s > 0:
                self._schedule(device.ready_s, -1 - self._device_number(device.id), 0, 0)
            else:
                self._arrive(device.id, 0.0)
        now = 0.0
        self._wake(now)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                now, _, worker, stage, task = heapq.heappop(self.events)
                if worker < 0:
                    self._arrive(self.problem.devices[-1 - worker].id, now)
                else:
                    self._finish(self.workers[worker], stage, task, now)
            self._wake(now)
        if not self.n_unfinished:
            self.result.makespan_s = now
        for worker in self.workers:
            for stage, taken in worker.taken.items():
                self.result.unit2items[worker.phase, worker.at[stage]] = taken
        return self.result

    def _device_number(self, device: str) -> int:
        return next(n for n, one in enumerate(self.problem.devices) if one.id == device)

    def _schedule(self, t: float, worker: int, stage: int, task: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (t, self.order, worker, stage, task))

    def _queue_first_tasks(self) -> None:
        """Queue the tasks that can begin at once: those not done whose earlier stages are."""
        stages = self.problem.stages
        for number in range(len(stages)):
            n_all = stages[number].n_tasks * self.problem.n_items
            first, last = n_all - self.n_left[number], n_all
            for need in self.graph.needs[number]:
                n_done = stages[need].n_tasks * self.problem.n_items - self.n_left[need]
                n_reached = n_done * stages[number].n_tasks // stages[need].n_tasks
                last = min(last, n_reached)
                for task in range(n_reached if number in self.n_missing else 0):
                    self.n_missing[number][task] -= 1
            self.ready[number] = list(range(first, last))

    def _arrive(self, device: str, now: float) -> None:
        """Give a free device to its next worker, if there is one."""
        workers = self.device2workers[device]
        if self.next_worker[device] < len(workers):
            worker = workers[self.next_worker[device]]
            worker.missing -= 1
            if worker.missing == 0:
                self._open(worker)

    def _open(self, worker: _SimulatedWorker) -> None:
        worker.is_open = True
        for stage in worker.stages:
            is_kept = all(
                stage in self.holds[device]
                or (device in self.last_held and self.last_held[device][0] == worker.devices
                    and stage in self.last_held[device][1])
                for device in worker.devices
            )  # fmt: skip
            if is_kept:
                worker.loaded.add(stage)
        self.waiting.add(worker.number)

    def _wake(self, now: float) -> None:
        """Give every free worker something to do, fastest first, until none takes anything more."""
        again = True
        while again:
            again = False
            for number in sorted(self.waiting, key=self._speed_rank):
                again |= self._step(self.workers[number], now)

    def _speed_rank(self, number: int) -> tuple:
        worker = self.workers[number]
        return (
            min(worker.item_s[stage] / self.problem.stages[stage].item_s for stage in worker.stages),
            not worker.loaded,
            self._first_alike(worker),
            (
                sorted(worker.loaded),
                sorted(worker.closed),
                tuple(worker.taken[s] for s in worker.stages if worker.limits[s] is not None),
                worker.n_busy,
            ),
            number,
        )

    def _first_alike(self, worker: _SimulatedWorker) -> int:
        """The number of the first worker that differs from this one in nothing but its devices."""

        def kind(one: _SimulatedWorker) -> tuple:
            return one.stages, one.item_s, one.load_s, one.limits, one.n_parallel

        return next(one.number for one in self.workers if kind(one) == kind(worker))

    def _step(self, worker: _SimulatedWorker, now: float) -> bool:
        """Start items while the worker is free, or let its devices go; return whether anything changed."""
        changed = False
        while worker.n_busy < worker.n_parallel:
            stage = self._choose_stage(worker, now)
            if stage is None:
                break
            self._start(worker, stage, now)
            changed = True
        if worker.n_busy == 0 and not changed:
            self._load_ahead(worker, now)
        if worker.n_busy >= worker.n_parallel:
            self.waiting.discard(worker.number)
        elif worker.n_busy == 0 and len(worker.closed) == len(worker.stages):
            self._release(worker, now)
            changed = True
        return changed

    def _choose_stage(self, worker: _SimulatedWorker, now: float) -> int | None:
        """Return the stage to take an item of; close stages that the worker has nothing more to do for."""
        for stage in worker.stages:
            if stage in worker.closed:
                continue
            limit = worker.limits[stage]
            if self.n_left[stage] == 0 or (limit is not None and worker.taken[stage] >= limit):
                worker.closed.add(stage)
                continue
            load_s = 0.0 if stage in worker.loaded else worker.load_s[stage]
            if self._others_suffice(worker, stage, now + load_s + worker.item_s[stage], now):
                worker.closed.add(stage)
            elif self.ready[stage]:
                return stage
        return None

    def _others_suffice(self, worker: _SimulatedWorker, stage: int, deadline: float, now: float) -> bool:
        """Return whether the other open workers would finish the rest of the stage by ``deadline``."""
        needed: float = self.n_left[stage]
        for other in self.stage2workers[stage]:
            if other is worker or not other.is_open or stage in other.closed:
                continue
            item_s = other.item_s[stage]
            load_s = 0.0 if stage in other.loaded else other.load_s[stage]
            possible = 0.0
            starts = [max(end, now) for end in other.end_s] + [max(now, other.loaded_s)] * (
                other.n_parallel - other.n_busy
            )
            for start in starts:
                room = (deadline - start - load_s) / item_s + SLACK
                if room > 0:
                    possible += math.floor(room)
            limit = other.limits[stage]
            needed -= possible if limit is None else min(possible, limit - other.taken[stage])
            if needed <= SLACK:
                return True
        return False

    def _start(self, worker: _SimulatedWorker, stage: int, now: float) -> None:
        task = heapq.heappop(self.ready[stage])
        start = now = max(now, worker.loaded_s)
        if stage not in worker.loaded:
            start += worker.load_s[stage]
            worker.loaded_s = start
            worker.loaded.add(stage)
            for device in worker.devices:
                if start > now:
                    self._record(device, stage, "load", now, start)
        stop = start + worker.item_s[stage]
        for device in worker.devices:
            self._record(device, stage, "work", start, stop)
        worker.taken[stage] += 1
        worker.n_busy += 1
        worker.end_s.append(stop)
        self.n_left[stage] -= 1
        self._schedule(stop, worker.number, stage, task)

    def _load_ahead(self, worker: _SimulatedWorker, now: float) -> None:
        """Load a model while the worker waits for its first item."""
        coming = [s for s in worker.stages if s not in worker.closed | worker.loaded and worker.load_s[s] > 0]
        if not coming:
            return
        stage, stop = coming[0], now + worker.load_s[coming[0]]
        worker.loaded.add(stage)
        for device in worker.devices:
            self._record(device, stage, "load", now, stop)
        worker.n_busy = worker.n_parallel
        worker.end_s = [stop] * worker.n_parallel
        self._schedule(stop, worker.number, stage, _LOADED)

    def _record(self, device: str, stage: int, kind: str, start: float, stop: float) -> None:
        name = self.problem.stages[stage].name
        self.result.slices.append(TimelineSlice(device, name, kind, start, stop, int(kind == "work")))

    def _finish(self, worker: _SimulatedWorker, stage: int, task: int, now: float) -> None:
        if task == _LOADED:
            worker.n_busy, worker.end_s = 0, []
            self.waiting.add(worker.number)
            return
        worker.n_busy -= 1
        worker.end_s.remove(now)
        self.n_unfinished -= 1
        self.waiting.add(worker.number)
        for later in self.graph.next[stage]:
            missing = self.n_missing.get(later)
            for following in self._following(stage, task, later):
                if missing is not None:
                    missing[following] -= 1
                if missing is None or not missing[following]:
                    heapq.heappush(self.ready[later], following)

    def _following(self, stage: int, task: int, later: int) -> range:
        """Return the tasks of the stage ``later`` for which ``task`` was the last of what they need of it.

        A sample follows what it is made of; the best of an item's samples follow once all are done.
        """
        before, after = self.problem.stages[stage].n_tasks, self.problem.stages[later].n_tasks
        item = task // before
        if after >= before:
            width = after // before
            return range(task * width, (task + 1) * width)
        arrived = self.n_arrived[stage, later]
        arrived[item] += 1
        return range(item * after, (item + 1) * after) if arrived[item] == before else range(0)

    def _release(self, worker: _SimulatedWorker, now: float) -> None:
        self.waiting.discard(worker.number)
        worker.is_open = False
        for device in worker.devices:
            self.last_held[device] = (worker.devices, set(worker.loaded))
            self.next_worker[device] += 1
            self._arrive(device, now)
