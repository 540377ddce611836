"""Choose how to run a job: simulate every candidate, improve the best, compare it with the bound."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evenload._memory_sizes import gib_text
from evenload.balance.policy import Guided, Pull, policy_from_name
from evenload.errors import ConfigError, quoted
from evenload.pipeline.plan import CandidateResult, DeviceMemory, Plan
from evenload.pipeline.planning.candidates import Candidate, generate_candidates
from evenload.pipeline.planning.least_time import least_time, task_prices, task_rates
from evenload.pipeline.planning.placement_options import (
    ALIKE,
    MANY_DEVICES,
    STREAM_BUFFERS,
    best_layouts,
    bytes_together,
    group_option,
    needed_bytes,
    option_named,
)
from evenload.pipeline.planning.play_plan import is_played, phases_of_plan, simulate_policy
from evenload.pipeline.planning.simulate_plan import (
    CandidatePhase,
    CandidateUnit,
    SimulatedPlan,
    simulate_phases,
)
from evenload.pipeline.problem import LOSSY, PlanStage, Problem

MOST_EVENTS = 300_000  # after which no more candidates are simulated; and in one simulation of all items
MOST_EXACT_TASKS = 1_000_000  # of a problem that is simulated as a whole
MOST_EVENTS_AGAIN = 100_000  # before another device is left out; one always may be
PLAYED_COST = 20  # events of a simulation for one that the dispatcher deals
N_EXACT = 3  # simulated again, beside the best of each mode
MOST_NAMED = 3  # devices left out

FEWEST_TASKS, MOST_TASKS = 1500, 25_000  # of a coarse problem
MOST_PLAYED = 1000  # tasks of one that is played, a third of a second of CPU
ROUNDS = 40  # tasks of each stage for each device that are fine enough


def coarsen(problem: Problem) -> tuple[Problem, int]:
    """Return a problem that costs less to simulate, and how many items were taken as one."""
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    n_fine = ROUNDS * len(problem.devices) * len(problem.stages)
    most = MOST_PLAYED if is_played(problem) else min(max(n_fine, FEWEST_TASKS), MOST_TASKS)
    n_together = max(1, math.ceil(n_tasks / most))
    devices = problem.devices
    if len(devices) > MANY_DEVICES:
        devices = tuple(replace(device, speed=_rounded(device.speed)) for device in devices)
    if n_together == 1:
        return (problem if devices == problem.devices else replace(problem, devices=devices)), 1
    n_items = math.ceil(problem.n_items / n_together)
    scale = problem.n_items / n_items
    stages = tuple(replace(stage, item_s=stage.item_s * scale) for stage in problem.stages)
    done = tuple(n_done * n_items // problem.n_items for n_done in problem.done)
    policy = policy_from_name(problem.policy)
    if isinstance(policy, Pull):
        policy = Pull(math.ceil(policy.chunk / n_together))
    elif isinstance(policy, Guided):
        policy = Guided(math.ceil(policy.min_chunk / n_together))
    coarse = replace(problem, stages=stages, devices=devices, n_items=n_items, done=done, policy=policy)
    return coarse, n_together


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
    return replace(candidate, phases=tuple(phases))


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

    @property
    def makespan_s(self) -> float:
        return self.simulated.makespan_s


class _Search:
    """A search for the quickest plan: what it cost so far, and whether it is to end.

    is_over  who watches ended it
    is_cut   not everything that was to be compared was
    """

    def __init__(self, mode: str, watch: Watch | None, bound_s: float, is_exact: bool):
        self.mode, self.watch, self.bound_s, self.is_exact = mode, watch, bound_s, is_exact
        self.n_events, self.n_tried, self.best_s = 0, 0, math.inf
        self.is_over = self.is_cut = False

    def simulate(
        self, problem: Problem, candidate: Candidate, simulates: Callable[..., SimulatedPlan]
    ) -> Tried:
        run = simulates(problem, candidate.phases, slices="none", most_events=MOST_EVENTS)
        is_dealt = simulates is simulate_policy and is_played(problem)
        self.n_events += run.n_events * (PLAYED_COST if is_dealt else 1)
        self.n_tried += 1
        self.best_s = min(self.best_s, run.makespan_s)
        self.is_over |= self.tell() and math.isfinite(self.best_s)
        return Tried(candidate, run)

    def tell(self, *, is_over: bool = False) -> bool:
        """Tell who watches how far the search is; return whether it is to end."""
        best_s = self.best_s if math.isfinite(self.best_s) else None
        state = SearchState(best_s, self.bound_s, self.n_tried, is_over)
        return self.watch is not None and self.watch(state)

    def best_of(self, problem: Problem) -> tuple[list[Tried], Problem]:
        """Return the best candidates, quickest first, and the problem that they were simulated with.

        That is ``problem`` itself, unless it is so large that several items are simulated as one.
        """
        coarse, n_together = coarsen(problem)
        best = self._quickest(coarse)
        n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
        if not self.is_exact:
            return best, coarse
        if is_played(problem):
            return self._again(coarse, best, 1) or [], coarse
        if coarse is problem or n_tasks > MOST_EXACT_TASKS:
            return best, coarse
        exact = self._again(problem, best, n_together)
        return (best, coarse) if exact is None else (exact, problem)

    def _quickest(self, problem: Problem) -> list[Tried]:
        """Return the quickest candidate of each label, those first that take least."""
        tried: dict[tuple[str, str], Tried] = {}
        best_s, most = math.inf, self.n_events + MOST_EVENTS
        for candidate in generate_candidates(problem, least_time(problem), self.mode):
            if self.is_over or (self.n_events > most and math.isfinite(best_s)):
                self.is_cut = True
                break
            if problem.host_bytes is not None and _pinned_bytes(candidate.phases) > problem.host_bytes:
                continue
            one = self.simulate(problem, candidate, simulate_phases)
            best_s = min(best_s, one.makespan_s)
            key = (candidate.mode, candidate.label)
            if one.makespan_s < (tried[key].makespan_s if key in tried else math.inf):
                tried[key] = one
        return sorted(tried.values(), key=lambda one: one.makespan_s)

    def _again(self, problem: Problem, best: Sequence[Tried], n_together: int) -> list[Tried] | None:
        """Simulate the best of all and of each mode with all items, by the policy; None if it takes too long.

        n_together  items of ``problem`` that were simulated as one
        """
        modes: dict[str, Tried] = {}
        for one in best:
            modes.setdefault(one.candidate.mode, one)
        chosen = [*best[:N_EXACT], *(one for one in modes.values() if one not in best[:N_EXACT])]
        found: list[Tried] = []
        most = self.n_events + MOST_EVENTS
        for one in chosen:
            if found and (self.is_over or self.n_events > most):
                self.is_cut = True
                break
            exact = refine(one.candidate, problem, n_together)
            if exact is None:
                continue
            if one.simulated.n_events * n_together <= MOST_EVENTS:
                found.append(self.simulate(problem, exact, simulate_policy))
                if found[-1].simulated.n_events <= MOST_EVENTS:
                    continue
            self.is_cut = True
            if one is best[0]:
                return None
        finite = [one for one in found if math.isfinite(one.makespan_s)]
        return sorted(finite, key=lambda one: one.makespan_s)


def search_plan(search: _Search, problem: Problem) -> tuple[list[Tried], Problem]:
    """Return what ``_Search.best_of`` does, where a quicker plan without some devices comes first.

    Devices are left out one after the other, of least use first, while a plan without them could be quicker.
    """
    best, simulated = search.best_of(problem)
    fewer = problem
    while best and search.mode != "single" and not search.is_cut:
        if search.n_events > (MOST_EVENTS if fewer is problem else MOST_EVENTS_AGAIN):
            break
        fewer = _without_least(fewer)
        if fewer is None or least_time(fewer) >= best[0].makespan_s * (1 - 1e-9):
            break
        mode2s = {one.candidate.mode: one.makespan_s * (1 - 1e-9) for one in reversed(best)}
        below, simulated_below = search.best_of(fewer)
        if simulated.n_items == problem.n_items > simulated_below.n_items:
            break  # several items were taken as one, which is no comparison
        below = [one for one in below if one.makespan_s < mode2s.get(one.candidate.mode, math.inf)]
        if below and below[0].makespan_s < best[0].makespan_s * (1 - 1e-9):
            simulated = simulated_below
        named = [_named_without(one, problem, fewer) for one in below]
        best = sorted([*best, *named], key=lambda one: one.makespan_s)
    if best:
        chosen, simulates = best[0].candidate, simulate_policy if search.is_exact else simulate_phases
        best[0] = Tried(chosen, simulates(simulated, chosen.phases, slices="joined"))
    search.tell(is_over=True)
    return best, simulated


def _without_least(problem: Problem) -> Problem | None:
    """Return the problem without the device that earns least a second at the prices of the bound, the last of
    equals.
    """
    if len(problem.devices) < 2:
        return None
    prices, rates = task_prices(problem), zip(*task_rates(problem), strict=True)
    earned = [max(map(operator.mul, prices, some)) for some in rates]
    least = min(reversed(range(len(earned))), key=earned.__getitem__)
    return replace(problem, devices=(*problem.devices[:least], *problem.devices[least + 1 :]))


def _named_without(tried: Tried, problem: Problem, fewer: Problem) -> Tried:
    left_out = [device.id for device in problem.devices if device not in fewer.devices]
    said = ", ".join(left_out) if len(left_out) <= MOST_NAMED else f"{len(left_out)} devices"
    candidate = replace(tried.candidate, label=f"{tried.candidate.label}, without {said}")
    return replace(tried, candidate=candidate)


def _pinned_bytes(phases: Sequence[CandidatePhase]) -> int:
    """Return the most host memory that is pinned at once, over all devices and stages of a phase."""
    return max((sum(unit.option.fit.host_bytes for unit in phase) for phase in phases), default=0)


MODES = ("single", "data_parallel", "model_parallel", "stage_parallel", "swap")


def make_plan(
    problem: Problem,
    mode: str = "auto",
    *,
    watch: Watch | None = None,
    is_exact: bool = True,
) -> Plan:
    """Return the quickest plan found.

    mode    auto, or one of MODES
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
    search = _Search(mode, watch, least_time(problem), is_exact)
    best, simulated = search_plan(search, problem)
    if not best:
        raise ConfigError(
            f"no plan of mode {mode} is possible on {len(problem.devices)} devices",
            hint=_HINTS.get(mode, "use mode auto"),
        )
    plan = _plan(problem, simulated, best, search)
    note = "the search for a plan was ended before its time: a longer one may find a better plan"
    return replace(plan, notes=(*plan.notes, note)) if search.is_over else plan


_HINTS = {
    "data_parallel": "no device holds all stages at once; use mode swap or auto",
    "model_parallel": "no stage has blocks to split, or fit leaves out layer_split; use mode auto",
    "stage_parallel": "it takes a device for each stage; use mode swap or auto",
    "single": "no single device holds every stage; use mode auto",
    "swap": "a stage fits on no device alone; use mode model_parallel or auto",
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


def _plan(problem: Problem, coarse: Problem, best: Sequence[Tried], search: _Search) -> Plan:
    chosen, bound_s = best[0], search.bound_s
    n_together = math.ceil(problem.n_items / coarse.n_items) if coarse is not problem else 1
    results = tuple(CandidateResult(one.candidate.mode, one.candidate.label, one.makespan_s) for one in best)
    possible = {one.candidate.mode for one in best}
    note = f"{problem.n_items} items were simulated as {coarse.n_items} larger ones"
    return Plan(
        mode=chosen.candidate.mode,
        phases=phases_of_plan(problem, chosen.candidate.phases, chosen.simulated.unit2items, n_together),
        makespan_s=max(chosen.makespan_s, bound_s),
        bound_s=bound_s,
        why=_why(best, bound_s, search.mode),
        candidates=results + (_absent(possible, problem, search) if search.mode == "auto" else ()),
        memory=_memory(problem, chosen.candidate.phases),
        slices=tuple(chosen.simulated.slices),
        notes=(note,) if n_together > 1 else (),
    )


def _why(best: Sequence[Tried], bound_s: float, mode: str) -> str:
    chosen = best[0]
    over = chosen.makespan_s / bound_s - 1 if bound_s > 0 else 0.0
    said = f"{chosen.candidate.label}: {100 * max(over, 0):.1f} % above the least possible"
    others = [one for one in best[1:] if one.candidate.mode != chosen.candidate.mode]
    if mode == "auto" and others:
        slower = others[0].makespan_s / chosen.makespan_s - 1
        said += f"; the best of {others[0].candidate.mode} takes {100 * slower:.0f} % longer"
    return said


def _absent(compared: set[str], problem: Problem, search: _Search) -> tuple[CandidateResult, ...]:
    """Say of each mode that is not among those compared why."""
    can_split = any(
        "layer_split" in one.fits and one.weights and one.weights.n_blocks > 1 for one in problem.stages
    )
    found = []
    for mode in (mode for mode in MODES if mode not in compared):
        why = _HINTS[mode].split(";")[0]
        if search.is_cut:
            why = "not compared: the search ended before"
        elif mode == "model_parallel" and can_split:
            why = "to split layers is not possible here, or gains nothing"
        found.append(CandidateResult(mode, "not compared" if search.is_cut else "not possible", None, why))
    return tuple(found)


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


# --- models that do not fit ---------------------------------------------------------------------------


def shortfall_error(problem: Problem) -> ConfigError | None:
    """Return an error that names each stage which no device or group of devices can hold; None if all fit."""
    stuck = [stage for stage in problem.stages if not best_layouts(stage, problem)]
    if not stuck:
        return None
    said = [_sentence(stage, problem) for stage in stuck]
    hint = "; ".join(f"{stage.name}: {', or '.join(remedies_for(stage, problem))}" for stage in stuck)
    return ConfigError("; ".join(said), hint=hint)


def _sentence(stage: PlanStage, problem: Problem) -> str:
    needed = needed_bytes(stage, problem)
    allowed = [device for device in problem.devices if stage.name not in device.barred]
    if not allowed:
        return f"{stage.name}: none of the devices that it may run on is there"
    largest = max(allowed, key=lambda device: device.free_bytes or 0)
    if needed is None or largest.free_bytes is None:
        return f"{stage.name} has no way to be held: fit is {', '.join(stage.fits)}"
    return (
        f"{stage.name} needs {gib_text(needed)}, the largest device has {gib_text(largest.free_bytes)} free"
        f" ({largest.id}, less the reserve)"
    )


def remedies_for(stage: PlanStage, problem: Problem) -> list[str]:
    """List what would make the stage fit, with figures, likeliest first."""
    weights = stage.weights
    if weights is None:
        return ["give its model"]
    allowed = [device for device in problem.devices if stage.name not in device.barred]
    free = sorted((device.free_bytes or 0 for device in allowed), reverse=True)
    beside = problem.context_bytes + stage.activation_bytes
    options = []
    if len(allowed) < len(problem.devices):
        options.append("let it run on more devices (its `devices`)")
    if weights.n_blocks > 1:
        n_devices = _group_needed(stage, problem)
        if "layer_split" not in stage.fits and n_devices is not None:
            options.append(f"split its layers over {n_devices} devices (fit: layer_split)")
        least = beside + weights.rest_bytes + STREAM_BUFFERS * weights.block_bytes
        if "resident_stream" not in stage.fits and free and least <= free[0]:
            options.append(
                f"stream its blocks from host memory (fit: resident_stream, from {gib_text(least)})"
            )
        if n_devices is None:
            per_device = beside + weights.bytes / max(1, len(free))
            options.append(f"{gib_text(per_device)} free on each of {len(free)} devices")
    for name, ratio in LOSSY.items():
        needed = int(weights.bytes * ratio) + beside
        if name not in stage.fits and free and needed <= free[0]:
            options.append(f"hold it in {name} ({gib_text(needed)}; fit: {name}, devices.allow_lossy: true)")
    return options or [f"a device with {gib_text(weights.bytes + beside)} free"]


def _group_needed(stage: PlanStage, problem: Problem) -> int | None:
    """Return the fewest devices, largest first, that can share the stage's blocks; None if all cannot."""
    may_split = replace(stage, fits=("layer_split",))
    largest = sorted(problem.devices, key=lambda device: -(device.free_bytes or 0))
    allowed = [device for device in largest if stage.name not in device.barred]
    sizes = range(2, len(allowed) + 1)
    return next((n for n in sizes if group_option(may_split, allowed[:n], problem) is not None), None)
