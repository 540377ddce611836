"""Improve a candidate by small changes that make its simulation end sooner: a deterministic hill climb."""

import random
from collections.abc import Iterator

from evenload.pipeline.planning.candidates import Candidate
from evenload.pipeline.planning.simulate_plan import (
    CandidatePhase,
    CandidateUnit,
    SimulatedPlan,
    simulate_phases,
)
from evenload.pipeline.problem import Problem

__all__ = ["hill_climb"]


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
            tried = simulate_phases(problem, changed, late_first=candidate.late_first, slices="none")
            if tried.makespan_s < best.makespan_s * (1 - 1e-9):
                phases, best, is_better = changed, tried, True
                break
    found = Candidate(candidate.mode, candidate.label, tuple(phases), candidate.late_first, candidate.layouts)
    return found, best


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
