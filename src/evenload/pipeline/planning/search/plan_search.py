"""Try candidates by simulation, improve the best, and say how far the search has come."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from evenload.pipeline.planning.candidates import Candidate, generate_candidates
from evenload.pipeline.planning.layouts import MANY_DEVICES
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.placement_options import ALIKE, option_named
from evenload.pipeline.planning.simulate_plan import (
    CandidatePhase,
    CandidateUnit,
    SimulatedPlan,
    simulate_phases,
)
from evenload.pipeline.problem import Problem

MOST_EVENTS = 300_000  # simulated in the search of candidates; the first ones are always tried
MOST_EXACT_EVENTS = 600_000  # in simulations of the whole problem
MOST_EXACT_TASKS = 1_000_000  # of a problem that is simulated as a whole
TASKS_PER_SEARCH = 30_000  # simulated tasks that an improvement may cost
N_IMPROVED = 2
N_EXACT = 3
GOOD = 1.02  # times the bound: then no improvement is looked for
GOOD_ENOUGH = 1.003


FEWEST_TASKS, MOST_TASKS = 1500, 25_000  # of a coarse problem
ROUNDS = 40  # tasks of each stage for each device that are fine enough


def coarsen(problem: Problem) -> tuple[Problem, int]:
    """Return a problem that costs less to simulate, and how many items were taken as one."""
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    n_fine = ROUNDS * len(problem.devices) * len(problem.stages)
    n_together = max(1, math.ceil(n_tasks / min(max(n_fine, FEWEST_TASKS), MOST_TASKS)))
    devices = problem.devices
    if len(devices) > MANY_DEVICES:
        devices = tuple(replace(device, speed=_rounded(device.speed)) for device in devices)
    if n_together == 1:
        return (problem if devices == problem.devices else replace(problem, devices=devices)), 1
    n_items = math.ceil(problem.n_items / n_together)
    scale = problem.n_items / n_items
    stages = tuple(replace(stage, item_s=stage.item_s * scale) for stage in problem.stages)
    done = tuple(n_done * n_items // problem.n_items for n_done in problem.done)
    return replace(problem, stages=stages, devices=devices, n_items=n_items, done=done), n_together


def _rounded(speed: float) -> float:
    return ALIKE ** math.floor(math.log(speed, ALIKE) + 1e-9)


def refine(candidate: Candidate, problem: Problem, n_together: int) -> Candidate | None:
    """Return the candidate of a coarse problem as one of ``problem``; None if a model does not fit."""
    phases: list[CandidatePhase] = []
    for phase in candidate.phases:
        units: list[CandidateUnit] = []
        for unit in phase:
            option = unit.option
            exact = option_named(option.stage, option.devices, option.fit.name, problem)
            if exact is None:
                return None
            units.append(CandidateUnit(exact, None if unit.limit is None else unit.limit * n_together))
        phases.append(tuple(units))
    return replace(candidate, phases=tuple(phases), layouts=())


def hill_climb(
    candidate: Candidate, simulated: SimulatedPlan, problem: Problem, budget: int, enough_s: float
) -> tuple[Candidate, SimulatedPlan]:
    """Return the best candidate found with at most ``budget`` simulations, and its simulated run.

    Stops early once the makespan is at most ``enough_s``. A change gives one unit another limit, takes it
    out, or adds a unit that the candidate's layouts allow.
    """
    draw = random.Random(0)
    phases, best = candidate.phases, simulated
    n_tried, is_better = 0, True
    while is_better and best.makespan_s > enough_s:
        is_better = False
        changes = list(_changes(phases, best, candidate))
        draw.shuffle(changes)
        for changed in changes:
            if n_tried >= budget:
                break
            n_tried += 1
            tried = simulate_phases(problem, changed, slices="none")
            if tried.makespan_s < best.makespan_s * (1 - 1e-9):
                phases, best, is_better = changed, tried, True
                break
    return replace(candidate, phases=tuple(phases)), best


def _changes(
    phases: tuple[CandidatePhase, ...], simulated: SimulatedPlan, candidate: Candidate
) -> Iterator[tuple[CandidatePhase, ...]]:
    for number, phase in enumerate(phases):
        for position, unit in enumerate(phase):
            n_done = simulated.unit2items.get((number, position), 0)
            limits = {max(0, n_done + step) for step in (-3, -1, 1, 3)} | {n_done, None}
            for limit in sorted(limits - {unit.limit}, key=lambda n: -1 if n is None else n):
                kept = () if limit == 0 else (CandidateUnit(unit.option, limit),)
                yield _with(phases, number, (*phase[:position], *kept, *phase[position + 1 :]))
        if len(candidate.layouts) == len(phases):
            taken = {device for unit in phase for device in unit.option.devices}
            for option in candidate.layouts[number]:
                if not taken.intersection(option.devices):
                    yield _with(phases, number, (*phase, CandidateUnit(option)))


def _with(
    phases: tuple[CandidatePhase, ...], number: int, phase: CandidatePhase
) -> tuple[CandidatePhase, ...]:
    return (*phases[:number], phase, *phases[number + 1 :])


@dataclass(frozen=True, slots=True)
class SearchState:
    """The state of a search.

    best_s   makespan of the best plan so far, None before the first
    is_over  it has ended; nothing more is told
    """

    best_s: float | None
    bound_s: float
    n_tried: int
    is_over: bool = False


Watch = Callable[[SearchState], bool]  # told after each simulation, and at the end; True ends the search


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its simulated run."""

    candidate: Candidate
    simulated: SimulatedPlan


def search_plan(
    problem: Problem, mode: str, effort: float, watch: Watch | None, is_exact: bool
) -> tuple[list[Tried], Problem, float, bool]:
    """Return the best candidates, quickest first, with what they were simulated, the bound of ``problem``,
    and whether the search was ended.

    They were simulated with ``problem`` itself if ``is_exact``, unless it is so large that several items are
    simulated as one. Only the first candidate has the slices of its run.
    """
    coarse, n_together = coarsen(problem)
    search, bound_s = _Search(mode, watch), least_time(problem)
    best = search.run(coarse, effort, bound_s if coarse is problem else least_time(coarse))
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    if is_exact and best and coarse is not problem and n_tasks <= MOST_EXACT_TASKS:
        best, coarse = search.exactly(problem, best, n_together), problem
    if best:
        chosen = best[0].candidate
        run = simulate_phases(coarse, chosen.phases, slices="joined")
        best[0] = Tried(chosen, run)
    search.tell(is_over=True)
    return best, coarse, bound_s, search.is_over


class _Search:
    """A search for the quickest plan: what was tried, what that cost, and whether it is to end."""

    def __init__(self, mode: str, watch: Watch | None):
        self.mode, self.watch = mode, watch
        self.n_events, self.n_tried = 0, 0
        self.best_s, self.bound_s = math.inf, 0.0
        self.is_over = False

    def simulate(self, problem: Problem, candidate: Candidate) -> SimulatedPlan:
        run = simulate_phases(problem, candidate.phases, slices="none")
        self.n_events += run.n_events
        self.n_tried += 1
        self.best_s = min(self.best_s, run.makespan_s)
        self.is_over |= self.tell() and math.isfinite(self.best_s)
        return run

    def tell(self, *, is_over: bool = False) -> bool:
        """Tell who watches how far the search is; return whether it is to end."""
        best_s = self.best_s if math.isfinite(self.best_s) else None
        state = SearchState(best_s, self.bound_s, self.n_tried, is_over)
        return self.watch is not None and self.watch(state)

    def run(self, problem: Problem, effort: float, bound_s: float) -> list[Tried]:
        """Return the best candidate of each label, quickest first; the quickest ones improved.

        bound_s  the least time of the problem
        """
        self.bound_s = bound_s
        tried: dict[tuple[str, str], Tried] = {}

        def consider(candidate: Candidate, simulated: SimulatedPlan) -> None:
            if problem.host_bytes is not None and _pinned_bytes(candidate.phases) > problem.host_bytes:
                return
            key = (candidate.mode, candidate.label)
            if key not in tried or simulated.makespan_s < tried[key].simulated.makespan_s:
                tried[key] = Tried(candidate, simulated)

        for candidate in generate_candidates(problem, bound_s, self.mode):
            consider(candidate, self.simulate(problem, candidate))
            if self.is_over or (self.n_events > MOST_EVENTS and math.isfinite(self.best_s)):
                break
        for one in self._to_improve(problem, list(tried.values()), bound_s):
            n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
            if budget := int(effort * TASKS_PER_SEARCH / max(1, n_tasks)):
                consider(*hill_climb(one.candidate, one.simulated, problem, budget, bound_s * GOOD_ENOUGH))
        finite = [one for one in tried.values() if math.isfinite(one.simulated.makespan_s)]
        best = sorted(finite, key=lambda one: one.simulated.makespan_s)
        return self._with_fewer(problem, best)

    def _to_improve(self, problem: Problem, tried: Sequence[Tried], bound_s: float) -> list[Tried]:
        ranked = sorted(tried, key=lambda one: one.simulated.makespan_s)
        is_good = not ranked or ranked[0].simulated.makespan_s <= bound_s * GOOD
        return [] if is_good or self.is_over else ranked[:N_IMPROVED]

    def _with_fewer(self, problem: Problem, best: list[Tried]) -> list[Tried]:
        """Try it without the slowest device, which may cost more than it helps."""
        fewer = _without_slowest(problem) if self.mode != "single" else None
        if not best or fewer is None or self.is_over or self.n_events > MOST_EVENTS:
            return best
        if (bound_s := least_time(fewer)) < best[0].simulated.makespan_s:
            below = self.run(fewer, 0, bound_s)
            if below and below[0].simulated.makespan_s < best[0].simulated.makespan_s * (1 - 1e-9):
                return [below[0], *best]
        return best

    def exactly(self, problem: Problem, best: Sequence[Tried], n_together: int) -> list[Tried]:
        """Simulate the best candidates of a coarse problem with all items; scale the others' times."""
        self.n_events, self.best_s, found = 0, math.inf, []
        for one in best[:N_EXACT]:
            exact = refine(one.candidate, problem, n_together)
            if exact is not None:
                found.append((one, Tried(exact, self.simulate(problem, exact))))
            if found and (self.is_over or self.n_events > MOST_EXACT_EVENTS):
                break
        found = [pair for pair in found if math.isfinite(pair[1].simulated.makespan_s)]
        if not found:
            return []
        found.sort(key=lambda pair: pair[1].simulated.makespan_s)
        least_s = found[0][1].simulated.makespan_s
        scale = max(1.0, least_s / found[0][0].simulated.makespan_s)
        rest = [tried for _, tried in found[1:]]
        for one in best:
            if all(one is not before for before, _ in found):
                makespan_s = max(least_s, one.simulated.makespan_s * scale)
                rest.append(Tried(one.candidate, replace(one.simulated, makespan_s=makespan_s)))
        return [found[0][1], *sorted(rest, key=lambda one: one.simulated.makespan_s)]


def _pinned_bytes(phases: Sequence[CandidatePhase]) -> int:
    """Return the most host memory that is pinned at once, over all devices and stages of a phase."""
    return max((sum(unit.option.fit.host_bytes for unit in phase) for phase in phases), default=0)


def _without_slowest(problem: Problem) -> Problem | None:
    """Return the problem without its slowest device, which may cost more than it helps."""
    if len(problem.devices) < 2:
        return None
    slowest = min(problem.devices, key=lambda device: device.speed)
    return replace(problem, devices=tuple(device for device in problem.devices if device is not slowest))
