"""Choose how to run a job: simulate every candidate, improve the best, compare it with the bound."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from evenload._memory_sizes import gib_text
from evenload.balance.policy import Guided, Pull, policy_from_name
from evenload.errors import ConfigError, quoted
from evenload.pipeline.plan import CandidateResult, DeviceMemory, Plan
from evenload.pipeline.planning.candidates import Candidate, generate_candidates
from evenload.pipeline.planning.least_time import least_time
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

MOST_EVENTS = 300_000  # simulated in the search of candidates; the first ones are always tried
MOST_EXACT_EVENTS = 600_000  # in simulations of the whole problem
MOST_EXACT_TASKS = 1_000_000  # of a problem that is simulated as a whole
TASKS_PER_SEARCH = 30_000  # simulated tasks that an improvement may cost
N_IMPROVED = 2
N_EXACT = 3
GOOD = 1.02  # times the bound: then no improvement is looked for
GOOD_ENOUGH = 1.003


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
    best = search.best_of(coarse, effort, bound_s if coarse is problem else least_time(coarse))
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    if is_exact and is_played(problem):
        best = search.again(coarse, best, 1)
    elif is_exact and best and coarse is not problem and n_tasks <= MOST_EXACT_TASKS:
        best, coarse = search.again(problem, best, n_together), problem
    if best:
        chosen, simulates = best[0].candidate, simulate_policy if is_exact else simulate_phases
        best[0] = Tried(chosen, simulates(coarse, chosen.phases, slices="joined"))
    search.tell(is_over=True)
    return best, coarse, bound_s, search.is_over


class _Search:
    """A search for the quickest plan: what was tried, what that cost, and whether it is to end."""

    def __init__(self, mode: str, watch: Watch | None):
        self.mode, self.watch = mode, watch
        self.n_events, self.n_tried = 0, 0
        self.best_s, self.bound_s = math.inf, 0.0
        self.is_over = False

    def simulate(
        self,
        problem: Problem,
        candidate: Candidate,
        simulates: Callable[..., SimulatedPlan] = simulate_phases,
    ) -> SimulatedPlan:
        run = simulates(problem, candidate.phases, slices="none")
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

    def best_of(self, problem: Problem, effort: float, bound_s: float) -> list[Tried]:
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
            below = self.best_of(fewer, 0, bound_s)
            if below and below[0].simulated.makespan_s < best[0].simulated.makespan_s * (1 - 1e-9):
                return [below[0], *best]
        return best

    def again(self, problem: Problem, best: Sequence[Tried], n_together: int) -> list[Tried]:
        """Simulate the best candidates with all items, and by the policy; scale the others' times.

        n_together  items of ``problem`` that were simulated as one
        """
        self.n_events, self.best_s, found = 0, math.inf, []
        for one in best[:N_EXACT]:
            exact = refine(one.candidate, problem, n_together)
            if exact is not None:
                found.append((one, Tried(exact, self.simulate(problem, exact, simulate_policy))))
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
        phases=phases_of_plan(problem, chosen.candidate.phases, chosen.simulated.unit2items, n_together),
        makespan_s=max(chosen.simulated.makespan_s, bound_s),
        bound_s=bound_s,
        why=_why(best, bound_s, mode),
        candidates=results + (_impossible(possible) if mode == "auto" else ()),
        memory=_memory(problem, chosen.candidate.phases),
        slices=tuple(chosen.simulated.slices),
        notes=(note,) if n_together > 1 else (),
    )


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
