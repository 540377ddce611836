"""Choose how to run a job: simulate every candidate, improve the best, compare it with the bound."""

import math
from collections.abc import Sequence
from dataclasses import replace

from evenload.errors import ConfigError, quoted
from evenload.pipeline.plan import CandidateResult, DeviceMemory, Phase, Plan, Unit
from evenload.pipeline.planning.memory_advice import shortfall_error
from evenload.pipeline.planning.placement_options import bytes_together
from evenload.pipeline.planning.search.plan_search import Tried, Watch, search_plan
from evenload.pipeline.planning.simulate_plan import CandidatePhase
from evenload.pipeline.problem import Problem

MODES = ("single", "data_parallel", "model_parallel", "stage_parallel", "swap")


def make_plan(
    problem: Problem,
    mode: str = "auto",
    *,
    effort: float = 1.0,
    watch: Watch | None = None,
    is_exact: bool = True,
) -> Plan:
    """Return the quickest plan found.

    mode    auto, or one of MODES
    effort  scales how long improvements are searched for; 0 for none
    watch   called after each simulation with what is found so far; once it returns True, that is the plan
    is_exact  simulate every item, unless there are very many; else several are taken as one
    Raises ConfigError with the shortfall in GiB if a stage fits nowhere, or nothing of ``mode`` does.
    """
    if mode != "auto" and mode not in MODES:
        raise ConfigError(f"unknown mode {quoted(mode)}", hint=f"use auto, {', '.join(MODES)}")
    problem = _without_done_stages(problem)
    refused = shortfall_error(problem)
    if refused is not None:
        raise refused
    best, simulated, bound_s, is_ended = search_plan(problem, mode, effort, watch, is_exact)
    if not best:
        raise ConfigError(
            f"no plan of mode {mode} is possible on {len(problem.devices)} devices",
            hint=_HINTS.get(mode, "use mode auto"),
        )
    plan = _plan(problem, simulated, best, bound_s, mode)
    note = "the search for a plan was ended before its time: a longer one may find a better plan"
    return replace(plan, notes=(*plan.notes, note)) if is_ended else plan


_HINTS = {
    "data_parallel": "no device holds all stages at once; use mode swap or auto",
    "model_parallel": "no stage has blocks to split, or fit leaves out layer_split; use mode auto",
    "stage_parallel": "it takes a device for each stage; use mode swap or auto",
    "single": "no single device holds every stage; use mode auto",
}


def _without_done_stages(problem: Problem) -> Problem:
    """Return the problem without the stages of which nothing is left: no device needs to hold them."""
    left = [number for number in range(len(problem.stages)) if problem.n_left(number)]
    if not left or len(left) == len(problem.stages):
        return problem
    stages, done = tuple(problem.stages[n] for n in left), tuple(problem.done[n] for n in left)
    now = {number: at for at, number in enumerate(left)}
    needs = tuple(tuple(now[n] for n in problem.needs[one] if n in now) for one in left if problem.needs)
    return replace(problem, stages=stages, done=done, needs=needs)


def _plan(problem: Problem, coarse: Problem, best: Sequence[Tried], bound_s: float, mode: str) -> Plan:
    chosen = best[0]
    n_together = math.ceil(problem.n_items / coarse.n_items) if coarse is not problem else 1
    results = tuple(
        CandidateResult(one.candidate.mode, one.candidate.label, one.simulated.makespan_s) for one in best
    )
    possible = {one.candidate.mode for one in best}
    note = f"{problem.n_items} items were simulated as {coarse.n_items} larger ones"
    return Plan(
        mode=chosen.candidate.mode,
        phases=_phases(problem, chosen, n_together),
        makespan_s=max(chosen.simulated.makespan_s, bound_s),
        bound_s=bound_s,
        why=_why(best, bound_s, mode),
        candidates=results + (_impossible(possible) if mode == "auto" else ()),
        memory=_memory(problem, chosen.candidate.phases),
        slices=tuple(chosen.simulated.slices),
        notes=(note,) if n_together > 1 else (),
    )


def _phases(problem: Problem, chosen: Tried, n_together: int) -> tuple[Phase, ...]:
    """Return the phases of the chosen candidate, those without units left out."""
    phases = []
    for number, phase in enumerate(chosen.candidate.phases):
        units = tuple(
            Unit(
                unit.option.devices,
                unit.option.stage,
                unit.option.fit,
                chosen.simulated.unit2items.get((number, position), 0) * n_together,
                None if unit.limit is None else unit.limit * n_together,
            )
            for position, unit in enumerate(phase)
        )
        names = {unit.option.stage for unit in phase}
        if units:
            phases.append(Phase(units, tuple(s.name for s in problem.stages if s.name in names)))
    return tuple(phases)


def _why(best: Sequence[Tried], bound_s: float, mode: str) -> str:
    chosen = best[0]
    over = chosen.simulated.makespan_s / bound_s - 1 if bound_s > 0 else 0.0
    said = f"{chosen.candidate.label}: {100 * max(over, 0):.1f} % above the least possible"
    others = [one for one in best[1:] if one.candidate.mode != chosen.candidate.mode]
    if mode == "auto" and others:
        slower = others[0].simulated.makespan_s / chosen.simulated.makespan_s - 1
        said += f"; the best of {others[0].candidate.mode} takes {100 * slower:.0f} % longer"
    return said


def _impossible(possible: set[str]) -> tuple[CandidateResult, ...]:
    return tuple(
        CandidateResult(mode, "not possible", None, _HINTS.get(mode, "").split(";")[0])
        for mode in MODES
        if mode not in possible
    )


def _memory(problem: Problem, phases: Sequence[CandidatePhase]) -> tuple[DeviceMemory, ...]:
    return tuple(
        DeviceMemory(
            device.id,
            device.free_bytes,
            tuple(_bytes_on(device.id, phase, problem) for phase in phases if phase),
        )
        for device in problem.devices
    )


def _bytes_on(device: str, phase: CandidatePhase, problem: Problem) -> int | None:
    """Return the bytes that a phase takes on a device; None if it holds something of unknown size."""
    options = [unit.option for unit in phase if device in unit.option.devices]
    has_unknown = any(not option.fit.device2bytes for option in options)
    return None if has_unknown else bytes_together(options, device, problem)
