"""Choose how to run a job: simulate every candidate, improve the best, compare it with the bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenload.errors import ConfigError
from evenload.pipeline.plan import CandidateResult, DeviceMemory, Phase, Plan, TimelineSlice, Unit
from evenload.pipeline.planning.candidates import Candidate, generate_candidates
from evenload.pipeline.planning.hill_climb import hill_climb
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.memory_advice import shortfall_error
from evenload.pipeline.planning.placement_options import bytes_together
from evenload.pipeline.planning.simulate_plan import CandidatePhase, SimulatedPlan, simulate_phases
from evenload.pipeline.problem import Problem

__all__ = ["MODES", "make_plan"]

MODES = ("single", "data_parallel", "model_parallel", "stage_parallel", "swap")
MOST_TASKS = 1500  # simulated in the search; more are taken together
MOST_EXACT_TASKS = 20_000
TASKS_PER_SEARCH = 30_000  # simulated tasks that an improvement may cost
N_IMPROVED = 2
GOOD = 1.02  # times the bound: then no improvement is looked for
GOOD_ENOUGH = 1.003


@dataclass(frozen=True, slots=True)
class _Tried:
    """A candidate with its simulated run."""

    candidate: Candidate
    simulated: SimulatedPlan


def make_plan(problem: Problem, mode: str = "auto", *, effort: float = 1.0) -> Plan:
    """Return the quickest plan found.

    mode    auto, or one of MODES
    effort  scales how long improvements are searched for; 0 for none
    Raises ConfigError with the shortfall in GiB if a stage fits nowhere, or nothing of ``mode`` does.
    """
    if mode != "auto" and mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", hint=f"use auto, {', '.join(MODES)}")
    problem = _without_done_stages(problem)
    refused = shortfall_error(problem)
    if refused is not None:
        raise refused
    coarse, n_together = _merge_items(problem)
    best = _search(coarse, mode, effort)
    if not best:
        raise ConfigError(
            f"no plan of mode {mode} is possible on {len(problem.devices)} devices",
            hint=_HINTS.get(mode, "use mode auto"),
        )
    return _plan(problem, coarse, n_together, best, mode)


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
    stages, done = (tuple(some[n] for n in left) for some in (problem.stages, problem.done))
    now = {number: at for at, number in enumerate(left)}
    needs = tuple(tuple(now[n] for n in problem.needs[one] if n in now) for one in left if problem.needs)
    return replace(problem, stages=stages, done=done, needs=needs)


def _merge_items(problem: Problem) -> tuple[Problem, int]:
    """Return the job with several items taken as one where it has very many, and how many are one."""
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    n_together = max(1, math.ceil(n_tasks / MOST_TASKS))
    if n_together == 1:
        return problem, 1
    n_items = math.ceil(problem.n_items / n_together)
    scale = problem.n_items / n_items
    stages = tuple(replace(stage, item_s=stage.item_s * scale) for stage in problem.stages)
    done = tuple(n_done * n_items // problem.n_items for n_done in problem.done)
    sizes = None
    if problem.sizes is not None:
        ordered = sorted(problem.sizes, reverse=True)
        groups = [ordered[start::n_items] for start in range(n_items)]
        sizes = tuple(sum(group) / len(ordered) * n_items for group in groups)
    return replace(problem, stages=stages, n_items=n_items, done=done, sizes=sizes), n_together


def _search(problem: Problem, mode: str, effort: float) -> list[_Tried]:
    """Return the best candidate of each label, quickest first; the quickest ones improved."""
    bound_s = least_time(problem)
    tried: dict[tuple[str, str], _Tried] = {}

    def consider(candidate: Candidate, simulated: SimulatedPlan) -> None:
        if problem.host_bytes is not None and _pinned_bytes(candidate.phases) > problem.host_bytes:
            return
        key = (candidate.mode, candidate.label)
        if key not in tried or simulated.makespan_s < tried[key].simulated.makespan_s:
            tried[key] = _Tried(candidate, simulated)

    for candidate in generate_candidates(problem, bound_s, mode):
        consider(candidate, simulate_phases(problem, candidate.phases, late_first=candidate.late_first))
    ranked = sorted(tried.values(), key=lambda one: one.simulated.makespan_s)
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    budget = int(effort * TASKS_PER_SEARCH / max(1, n_tasks))
    is_good = not ranked or ranked[0].simulated.makespan_s <= bound_s * GOOD
    for one in ranked[:N_IMPROVED] if budget and not is_good else ():
        consider(*hill_climb(one.candidate, one.simulated, problem, budget, bound_s * GOOD_ENOUGH))
    finite = [one for one in tried.values() if math.isfinite(one.simulated.makespan_s)]
    best = sorted(finite, key=lambda one: one.simulated.makespan_s)
    fewer = _without_slowest(problem) if mode != "single" else None
    if best and fewer is not None and least_time(fewer) < best[0].simulated.makespan_s:
        below = _search(fewer, mode, 0)
        if below and below[0].simulated.makespan_s < best[0].simulated.makespan_s * (1 - 1e-9):
            return [below[0], *best]
    return best


def _pinned_bytes(phases: Sequence[CandidatePhase]) -> int:
    """Return the most host memory that is pinned at once, over all devices and stages of a phase."""
    return max((sum(unit.option.fit.host_bytes for unit in phase) for phase in phases), default=0)


def _without_slowest(problem: Problem) -> Problem | None:
    """Return the problem without its slowest device, which may cost more than it helps."""
    if len(problem.devices) < 2:
        return None
    slowest = min(problem.devices, key=lambda device: device.speed)
    return replace(problem, devices=tuple(device for device in problem.devices if device is not slowest))


def _plan(problem: Problem, coarse: Problem, n_together: int, best: Sequence[_Tried], mode: str) -> Plan:
    chosen, bound_s = best[0], least_time(problem)
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
        slices=tuple(_join_slices(chosen.simulated.slices)),
        notes=(note,) if n_together > 1 else (),
    )


def _phases(problem: Problem, chosen: _Tried, n_together: int) -> tuple[Phase, ...]:
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


def _why(best: Sequence[_Tried], bound_s: float, mode: str) -> str:
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


def _join_slices(slices: Sequence[TimelineSlice]) -> list[TimelineSlice]:
    """Join neighbouring slices of the same kind of work on a device."""
    joined: list[TimelineSlice] = []
    last: dict[str, int] = {}
    for one in sorted(slices, key=lambda s: (s.start_s, s.stop_s)):
        at = last.get(one.device)
        before = joined[at] if at is not None else None
        same = before is not None and (before.stage, before.kind) == (one.stage, one.kind)
        if at is not None and before is not None and same and one.start_s <= before.stop_s + 1e-6:
            stop = max(before.stop_s, one.stop_s)
            joined[at] = replace(before, stop_s=stop, n_items=before.n_items + one.n_items)
        else:
            last[one.device] = len(joined)
            joined.append(one)
    return joined
