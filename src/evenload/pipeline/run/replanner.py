"""Looks whether a run goes as planned, and has it planned again where that pays.

    look()    in each round of the run's loop: has anything happened? is there a better plan?
    seeks()   when no device can run what is left: search for a plan by which one can

A better plan is searched for in a thread, from values taken at one moment; the run goes on meanwhile.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evenload.events import EventLog, Replanned
from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.fleet_state import FleetState
from evenload.pipeline.dispatch.item_flow import ItemFlow, Strand
from evenload.pipeline.plan import Phase, Plan
from evenload.pipeline.planning.estimates.speed_estimate import (
    MeanTime,
    SpeedEstimate,
    estimate_speeds,
    find_drift,
)
from evenload.pipeline.planning.replan import ReplanDecision, RunState, replan
from evenload.pipeline.problem import PlanDevice, Problem

PLANNING_SHARE = 0.2  # of the time since the last plan, at most
LEAST_WAIT_S = 0.2
DRIFT = 0.2  # what is off by less is not worth a search


@dataclass(frozen=True, slots=True)
class _Replanning:
    """One search for a better plan. ``taken``: tasks that groups had taken when it began.

    found  the decision, or why there is none, and the seconds that the search took
    """

    why: str
    seen: SpeedEstimate
    taken: Mapping[str, Mapping[int, int]]
    found: Future[tuple[ReplanDecision | Exception, float]] = field(default_factory=Future)


class Replanner:
    """The part of a run that plans again: when a stage is over, a device joins or leaves, or times are off.

    problem     what was asked at the start
    sources     from where each stage's seconds were known: measured | given | computed | unknown
    devices     ids of those that take part now
    describe    what the planner needs to know of a device that joined
    load_s      seconds to load each stage, as measured so far

    ``made`` has the re-plans that were followed; ``n_considered`` counts those that were searched for.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        mode: str,
        dispatcher: GroupScheduler,
        flow: ItemFlow,
        log: EventLog,
        *,
        sources: Mapping[str, str],
        devices: Callable[[], list[str]],
        describe: Callable[[str], PlanDevice | None],
        load_s: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.n_considered = 0
        self.made: list[dict[str, Any]] = []
        self._problem, self._mode, self._clock = problem, mode, clock
        self._dispatcher, self._flow, self._log = dispatcher, flow, log
        self._devices, self._describe, self._measured_load_s = devices, describe, load_s
        self._sources = dict(sources)
        self._has_times = "unknown" not in self._sources.values()
        self._phases: tuple[Phase, ...] = plan.phases
        self._there = frozenset(device.id for device in problem.devices)
        self._over: frozenset[int] = dispatcher.over
        self._planned = estimate_speeds(problem, {})
        self._search: _Replanning | None = None
        self._stood_after: object = None  # devices and unusable groups at the last search by ``seeks``
        self._not_before_s = 0.0

    def look(self) -> None:
        """Follow a new plan if there is one; else search for one if something has happened."""
        now = self._clock()
        if self._search is not None:
            if self._search.found.done():
                search, self._search = self._search, None
                found, took_s = search.found.result()
                self._not_before_s = now + max(LEAST_WAIT_S, took_s / PLANNING_SHARE)
                self._follow(search, found)
            return
        if now < self._not_before_s:
            return
        self._not_before_s = now + LEAST_WAIT_S
        why, seen = self._what_happened(now)
        if why:
            self._begin_search(why, seen, now)

    def seeks(self, why: str) -> bool:
        """Search for another plan, as no device can run what is left; return whether a search is under way.

        There is one search for each set of devices and usable groups: a second one would find no more.
        """
        if self._search is None:
            fleet, now, there = self._dispatcher, self._clock(), frozenset(self._devices())
            changes = there, frozenset(one.id for one in fleet.groups.values() if not one.is_usable)
            if changes != self._stood_after:
                self._stood_after = changes
                self._describe_joined(there - self._there)
                seen = estimate_speeds(self._problem, timings_of(fleet, now), self._sources)
                self._begin_search(why, seen, now)
        return self._search is not None

    def close(self) -> None:
        """Wait for the search that runs."""
        if self._search is not None:
            self._search.found.result()

    # --- what happened ----------------------------------------------------------------------------

    def _what_happened(self, now: float) -> tuple[str, SpeedEstimate]:
        """In words, or nothing; and how fast everything is."""
        fleet = self._dispatcher
        there, over = frozenset(self._devices()), fleet.over
        causes = [f"{device} joined" for device in sorted(there - self._there)]
        causes += [f"{device} left" for device in sorted(self._there - there)]
        self._describe_joined(there - self._there)
        self._there = there
        names = fleet.stages
        ended = over - self._over
        causes += [f"{names[stage]} is over" for stage in sorted(ended) if len(over) < len(names)]
        self._over = over
        seen = estimate_speeds(self._problem, timings_of(fleet, now), self._sources)
        if not self._has_times:
            if not _are_times_known(fleet):
                return "", seen
            self._has_times = True
            return "the times of all stages are known", seen
        return "; ".join(causes) or self._drift(seen), seen

    def _describe_joined(self, joined: frozenset[str]) -> None:
        known = {device.id for device in self._problem.devices}
        new = [self._describe(device) for device in sorted(joined - known)]
        found = tuple(device for device in new if device is not None)
        if found:
            self._problem = replace(self._problem, devices=(*self._problem.devices, *found))

    def _drift(self, seen: SpeedEstimate) -> str:
        """What is not as it was planned, in words."""
        found = find_drift(self._planned, seen, DRIFT)
        said = [f"{name} is {x:.2f}x as fast as planned" for name, x in found.items() if name in seen.speed]
        said += [
            f"{name} takes {x:.2f}x as long as planned" for name, x in found.items() if name in seen.item_s
        ]
        return "; ".join(said)

    # --- a better plan? ---------------------------------------------------------------------------

    def _begin_search(self, why: str, seen: SpeedEstimate, now: float) -> None:
        self.n_considered += 1
        load_s = self._measured_load_s()
        stages = tuple(replace(s, load_s=load_s.get(s.name, s.load_s)) for s in self._problem.stages)
        problem = as_expanded(replace(self._problem, stages=stages), self._flow)
        fleet = self._dispatcher
        state = state_of_run(problem, fleet, self._flow, seen, now)
        taken = {group.id: dict(group.n_taken) for group in fleet.groups.values()}
        self._search = _Replanning(why, seen, taken)
        asked = self._search.found, problem, state, self._phases, self._mode
        threading.Thread(target=_search_plan, args=asked, daemon=True).start()

    def _follow(self, search: _Replanning, found: ReplanDecision | Exception) -> None:
        self._planned = search.seen
        now = self._log.now()
        if isinstance(found, Exception):
            text = f"{search.why}; no other plan: {found}"
            self._log.note("debug", "plan", text)
            return
        if found.plan is None:
            self._log.note("debug", "plan", f"{search.why}; {found.why}")
            return
        assert found.plan.makespan_s is not None
        self._phases = found.plan.phases
        self._dispatcher.follow(found.plan.phases, search.taken)
        event = Replanned(now, search.why, found.current_s, found.plan.makespan_s, found.plan.mode, found.why)
        self.made.append(asdict(event))
        self._log.emit(event)
        before = "cannot go on" if found.current_s is None else f"{found.current_s:.1f} s"
        text = (
            f"planned again, as {search.why}: what is left takes {found.plan.makespan_s:.1f} s "
            f"(before: {before}) - {found.why}"
        )
        self._log.note("info", "plan", text)


def _are_times_known(fleet: FleetState) -> bool:
    """Has every stage with work left been measured?"""
    timed = {stage for group in fleet.groups.values() for stage in group.n_timed}
    return timed | fleet.over >= set(range(len(fleet.stages)))


def _search_plan(
    found: Future[tuple[ReplanDecision | Exception, float]],
    problem: Problem,
    state: RunState,
    phases: tuple[Phase, ...],
    mode: str,
) -> None:
    began_s = time.thread_time()
    try:
        decision: ReplanDecision | Exception = replan(problem, state, phases, mode)
    except Exception as error:  # it fits nowhere now, or the planner is wrong: the run goes on as it does
        decision = error
    found.set_result((decision, time.thread_time() - began_s))


def state_of_run(
    problem: Problem, fleet: FleetState, flow: ItemFlow, seen: SpeedEstimate, now: float
) -> RunState:
    """``problem`` has all devices of the run; those that take no part any more are left out.

    What runs counts as done: its device is free when it is through with it.
    """
    n_tasks = [stage.n_tasks for stage in problem.stages]
    done = tasks_done(flow, n_tasks, problem.graph.needs, list(map(fleet.n_begun, range(len(n_tasks)))))
    devices = [_as_it_is(device, fleet, problem, seen, now) for device in problem.devices]
    return RunState(done, tuple(device for device in devices if device is not None), seen.item_s)


def tasks_done(
    flow: ItemFlow, n_tasks: Sequence[int], needs: Sequence[Sequence[int]], n_more: Sequence[int] = ()
) -> tuple[int, ...]:
    """Tasks of each stage that are done, or never will be.

    n_tasks  for each item, by stage; ``needs``: the stages that each takes from
    n_more   count as done, too
    """
    n_items, left = len(flow.items), tasks_left(flow, n_tasks)
    # There may be more parts than were expected.
    done = [max(0, n_items * n - n_left) for n, n_left in zip(n_tasks, left, strict=True)]
    done = [n + more for n, more in zip(done, n_more or [0] * len(done), strict=True)]
    for stage, taken in enumerate(needs):
        done[stage] = min([done[stage], *(done[need] * n_tasks[stage] // n_tasks[need] for need in taken)])
    return tuple(done)


def described(before: Problem, again: Problem, device: str) -> PlanDevice | None:
    """``device`` of the question asked ``again``, with its speed on the scale of ``before``.

    None if it is not in there, or nothing says how fast it is beside the others.
    """
    was = {one.id: one.speed for one in before.devices}
    new = next((one for one in again.devices if one.id == device), None)
    scales = [was[one.id] / one.speed for one in again.devices if one.id in was]
    return None if new is None or not scales else replace(new, speed=new.speed * scales[0])


def tasks_left(flow: ItemFlow, n_tasks: Sequence[int]) -> list[int]:
    """Tasks of each stage that are not done, if every item gets through. ``n_tasks``: for each item."""
    left = [0] * len(n_tasks)
    scopes = flow.graph.scopes
    for numbers in flow.strands_of:
        open_ones = [flow.strands[n] for n in numbers if flow.strands[n].fate == "open"]
        for stage, most in enumerate(n_tasks):
            if scopes[stage]:
                left[stage] += _parts_left(flow, open_ones, stage, most)
                continue
            n_here = sum(not strand.is_decided(stage) for strand in open_ones)
            is_whole = len(numbers) == 1  # its samples are made when it comes to their stage
            left[stage] += min(most, n_here * most if is_whole else n_here)
    return left


def _parts_left(flow: ItemFlow, wholes: Sequence[Strand], stage: int, most: int) -> int:
    """Parts of an item that have not been through ``stage``; ``most`` while it is not known how many."""
    scope, n_left = flow.graph.scopes[stage], 0
    for whole in wholes:
        if whole.is_decided(scope[0]):
            parts = [part for part in flow.parts_of(whole) if part.scope == scope]
            n_left += sum(part.fate == "open" and not part.is_decided(stage) for part in parts)
        else:
            n_left += most
    return n_left


def as_expanded(problem: Problem, flow: ItemFlow) -> Problem:
    """``problem`` with as many parts of an item as there are on average, where that is known."""
    scopes = flow.graph.scopes
    n_tasks: dict[tuple[int, ...], int] = {(): 1}
    for scope in sorted({scope for scope in scopes if scope}, key=len):
        outer = scope[:-1]
        was = [stage.n_tasks for stage, one in zip(problem.stages, scopes, strict=True) if one == scope]
        n_expanded = sum(scope[-1] in one.parts for one in flow.strands if one.scope == outer)
        n_parts = sum(part.scope == scope for part in flow.strands)
        # A multiple of the parts that it is part of.
        n_each = round(n_parts / n_expanded) if n_expanded else max(was) // n_tasks.get(outer, 1)
        n_tasks[scope] = n_tasks.get(outer, 1) * max(1, n_each)
    stages = [
        replace(stage, n_tasks=n_tasks[scope]) if scope else stage
        for stage, scope in zip(problem.stages, scopes, strict=True)
    ]
    return replace(problem, stages=tuple(stages)) if len(n_tasks) > 1 else problem


def timings_of(fleet: FleetState, now: float) -> dict[tuple[str, str], MeanTime]:
    """Timings of groups of one device. What runs longer than anything before it says something already."""
    timings = {}
    for group in fleet.groups.values():
        for stage, name in enumerate(fleet.stages) if len(group.devices) == 1 else ():
            n, total_s = group.n_timed.get(stage, 0), group.total_s.get(stage, 0.0)
            running = [since for task, since in group.running.items() if task.stage == stage]
            late_s = (now - min(running)) / len(running) if running else 0.0
            if late_s > _expected_s(group, stage, fleet):
                n, total_s = n + 1, total_s + late_s
            if n:
                timings[group.devices[0], name] = MeanTime(n, total_s / n)
    return timings


def _expected_s(group: DeviceGroup, stage: int, fleet: FleetState) -> float:
    """Seconds for an item there, or with the slowest of the others, if it has done none."""
    own = group.item_s.get(stage)
    others = (one.item_s[stage] for one in fleet.groups.values() if stage in one.item_s)
    return own if own is not None else max(others, default=float("inf"))


def _as_it_is(
    device: PlanDevice, fleet: FleetState, problem: Problem, seen: SpeedEstimate, now: float
) -> PlanDevice | None:
    mine = [group for group in fleet.groups.values() if device.id in group.devices]
    complete = [group for group in mine if fleet.gone.isdisjoint(group.devices)]
    if device.id in fleet.gone or not all(group.is_usable for group in complete):
        return None
    speed = seen.speed.get(device.id, device.speed)
    group = next((group for group in mine if group.state == "up"), None)
    if group is None:
        return replace(device, speed=speed)
    held = [*group.resident, *([group.loading] if group.loading is not None else [])]
    ready_s = 0.0
    if group.loading is not None:
        load_s = problem.stages[group.loading].load_s
        ready_s = max(0.0, group.loading_since_s + load_s - now)
    elif group.running:
        ready_s = _busy_s(group, {n: s / speed for n, s in seen.item_s.items()}, problem, now)
    holds = tuple(problem.stages[stage].name for stage in held)
    returns = tuple((problem.stages[stage].name, seconds) for stage, seconds in group.parked.items())
    return replace(device, speed=speed, holds=holds, ready_s=ready_s, returns=returns)


def _busy_s(group: DeviceGroup, item_s: Mapping[str, float], problem: Problem, now: float) -> float:
    """Seconds until it is through with what it runs."""
    since = min(group.running.values())
    seconds = sum(item_s[problem.stages[task.stage].name] for task in group.running)
    return max(0.0, since + seconds - now)
