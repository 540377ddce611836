"""Looks whether a run goes as planned, and has it planned again where that pays.

    look()    in each round of the run's loop: has anything happened? is there a better plan?
    seeks()   when no device can run what is left: search for a plan by which one can

A better plan is searched for in a thread, from values taken at one moment; the run goes on meanwhile.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenload.events import EventLog, Note, Replanned
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.fleet_state import DispatchView
from evenload.pipeline.dispatch.item_flow import ItemFlow
from evenload.pipeline.plan import Phase, Plan
from evenload.pipeline.planning.estimates.speed_estimate import SpeedEstimate, estimate_speeds, find_drift
from evenload.pipeline.planning.replan import ReplanDecision, RunState, replan
from evenload.pipeline.problem import PlanDevice, Problem
from evenload.pipeline.run.snapshot import as_expanded, state_of_run, timings_of

PLANNING_SHARE = 0.2  # of the time since the last plan, at most
LEAST_WAIT_S = 0.2
DRIFT = 0.2  # what is off by less is not worth a search


@dataclass(slots=True)
class _Replanning:
    """One search for a better plan. ``taken``: tasks that groups had taken when it began."""

    why: str
    seen: SpeedEstimate
    taken: Mapping[str, Mapping[int, int]]
    thread: threading.Thread | None = None
    found: ReplanDecision | None = None
    fault: Exception | None = None
    took_s: float = 0.0


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
        self._over: frozenset[int] = dispatcher.view().over
        self._planned = estimate_speeds(problem, {})
        self._search: _Replanning | None = None
        self._stood_after: object = None  # devices and unusable groups at the last search by ``seeks``
        self._not_before_s = 0.0

    def look(self) -> None:
        """Follow a new plan if there is one; else search for one if something has happened."""
        now = self._clock()
        if self._search is not None:
            if self._search.thread is None or not self._search.thread.is_alive():
                search, self._search = self._search, None
                self._not_before_s = now + max(LEAST_WAIT_S, search.took_s / PLANNING_SHARE)
                self._follow(search)
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
            view, now, there = self._dispatcher.view(), self._clock(), frozenset(self._devices())
            changes = there, frozenset(group.id for group in view.groups if not group.is_usable)
            if changes != self._stood_after:
                self._stood_after = changes
                self._describe_joined(there - self._there)
                seen = estimate_speeds(self._problem, timings_of(view, now), self._sources)
                self._begin_search(why, seen, now)
        return self._search is not None

    def close(self) -> None:
        """Wait for the search that runs."""
        if self._search is not None and self._search.thread is not None:
            self._search.thread.join()

    # --- what happened ----------------------------------------------------------------------------

    def _what_happened(self, now: float) -> tuple[str, SpeedEstimate]:
        """In words, or nothing; and how fast everything is."""
        view = self._dispatcher.view()
        there, over = frozenset(self._devices()), view.over
        causes = [f"{device} joined" for device in sorted(there - self._there)]
        causes += [f"{device} left" for device in sorted(self._there - there)]
        self._describe_joined(there - self._there)
        self._there = there
        names = view.stages
        ended = over - self._over
        causes += [f"{names[stage]} is over" for stage in sorted(ended) if len(over) < len(names)]
        self._over = over
        seen = estimate_speeds(self._problem, timings_of(view, now), self._sources)
        if not self._has_times:
            if not _are_times_known(view):
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
        view = self._dispatcher.view()
        state = state_of_run(problem, view, self._flow, seen, now)
        taken = {group.id: group.n_taken for group in view.groups}
        search = _Replanning(why, seen, taken)
        search.thread = threading.Thread(
            target=_search_plan, args=(search, problem, state, self._phases, self._mode), daemon=True
        )
        self._search = search
        search.thread.start()

    def _follow(self, search: _Replanning) -> None:
        self._planned = search.seen
        now, found = self._log.now(), search.found
        if found is None:
            text = f"{search.why}; no other plan: {search.fault}"
            self._log.emit(Note(now, "debug", "plan", text))
            return
        if found.plan is None:
            self._log.emit(Note(now, "debug", "plan", f"{search.why}; {found.why}"))
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
        self._log.emit(Note(now, "info", "plan", text))


def _are_times_known(view: DispatchView) -> bool:
    """Has every stage with work left been measured?"""
    timed = {stage for group in view.groups for stage in group.n_timed}
    return timed | view.over >= set(range(len(view.stages)))


def _search_plan(
    search: _Replanning, problem: Problem, state: RunState, phases: tuple[Phase, ...], mode: str
) -> None:
    began_s = time.thread_time()
    try:
        search.found = replan(problem, state, phases, mode)
    except Exception as error:  # it fits nowhere now, or the planner is wrong: the run goes on as it does
        search.fault = error
    search.took_s = time.thread_time() - began_s
