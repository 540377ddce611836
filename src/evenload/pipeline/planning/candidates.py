"""Ways to run a job that are worth simulating; each a list of phases, one for each stage or set of stages."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenload.pipeline.planning.layouts import Layout, best_layouts, best_single
from evenload.pipeline.planning.placement_options import PlacementOption
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit
from evenload.pipeline.problem import PlanDevice, Problem

__all__ = ["Candidate", "generate_candidates"]

MOST_MIXES = 8
_STEPS = (
    0.0,
    0.01,
    0.02,
    0.03,
    0.04,
    0.05,
    0.06,
    0.07,
    0.085,
    0.1,
    0.13,
    0.17,
    0.22,
    0.3,
    0.5,
    1.0,
    2.0,
    4.0,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """``layouts``: for each phase, what could be in it; an improvement may add units from there."""

    mode: str
    label: str
    phases: tuple[CandidatePhase, ...]
    late_first: bool = False
    layouts: tuple[Layout, ...] = ()


def generate_candidates(problem: Problem, bound_s: float, mode: str = "auto") -> Iterator[Candidate]:
    """Every candidate of ``mode``, none of which needs more memory than there is."""
    if mode in ("auto", "single"):
        yield from _on_one_device(problem)
    if mode in ("auto", "data_parallel"):
        yield from _side_by_side(problem, "data_parallel", "every stage on each device")
    wants = {mode} if mode != "auto" else {"swap", "stage_parallel", "model_parallel"}
    for mix in _mixes(problem, mode):
        name = "swap" if _is_alone(mix) else "model_parallel"
        if name in wants:
            yield Candidate(name, _called("stage after stage on all devices", mix), _all_of(mix), layouts=mix)
            yield from _coupled(problem, mix, name)
        if name in wants or "stage_parallel" in wants:
            yield from _staggered(problem, mix, bound_s, wants)


def _all_of(mix: Sequence[Layout]) -> tuple[CandidatePhase, ...]:
    return tuple(tuple(CandidateUnit(held) for held in layout) for layout in mix)


def _called(text: str, mix: Sequence[Layout]) -> str:
    sizes = {held.stage: len(held.devices) for layout in mix for held in layout if len(held.devices) > 1}
    groups = ", ".join(f"{stage} over groups of {n}" for stage, n in sizes.items())
    return f"{text}; {groups}" if groups else text


def _mixes(problem: Problem, mode: str) -> list[tuple[Layout, ...]]:
    """One layout for each stage."""
    ways = [best_layouts(stage, problem) for stage in problem.stages]
    if mode == "model_parallel":
        grouped = [best_layouts(stage, problem, groups_only=True) for stage in problem.stages]
        ways = [[*g, *(w for w in plain if w not in g)] for g, plain in zip(grouped, ways, strict=True)]
    if not all(ways):
        return []
    mixes = sorted(itertools.product(*ways), key=lambda mix: not _is_alone(mix))  # each by itself comes first
    if mode == "model_parallel":
        mixes = [mix for mix in mixes if not _is_alone(mix)]
    return mixes[:MOST_MIXES]


def _is_alone(mix: Sequence[Layout]) -> bool:
    """No stage is spread over several devices."""
    return all(len(held.devices) == 1 for layout in mix for held in layout)


def _on_one_device(problem: Problem) -> Iterator[Candidate]:
    """The device that is through soonest, by itself."""
    best: tuple[float, tuple[PlacementOption, ...]] | None = None
    for device in problem.devices:
        held = [best_single(stage, device, problem) for stage in problem.stages]
        if all(held):
            ways = tuple(one for one in held if one is not None)
            seconds = device.ready_s + sum(
                one.load_s + one.item_s * problem.n_left(number) for number, one in enumerate(ways)
            )
            if best is None or seconds < best[0]:
                best = seconds, ways
    if best is not None:
        layouts = tuple((held,) for held in best[1])
        yield Candidate("single", f"all on {best[1][0].devices[0]}", _all_of(layouts), layouts=layouts)


def _fits_beside(ways: Sequence[PlacementOption], device: PlanDevice, problem: Problem) -> bool:
    """May these be on the device at the same time?"""
    sizes = [way.fit.device2bytes[0] for way in ways if way.fit.device2bytes]
    if device.free_bytes is None or not sizes:
        return True
    activations = [s.activation_bytes for s in problem.stages if any(way.stage == s.name for way in ways)]
    shared = problem.context_bytes * (len(sizes) - 1) + sum(activations) - max(activations)
    return sum(sizes) - shared <= device.free_bytes


def _beside(problem: Problem, numbers: Sequence[int]) -> CandidatePhase:
    """The stages ``numbers`` together, on each device that can hold all of them."""
    units: list[CandidateUnit] = []
    for device in problem.devices:
        ways = [best_single(problem.stages[number], device, problem) for number in numbers]
        held = [way for way in ways if way is not None and way.fit.name == "whole"]
        if len(held) == len(numbers) and _fits_beside(held, device, problem):
            units += [CandidateUnit(way) for way in held]
    return tuple(units)


def _side_by_side(problem: Problem, mode: str, label: str) -> Iterator[Candidate]:
    numbers = range(len(problem.stages))
    phase = _beside(problem, numbers)
    if phase:
        for late_first in (False, True):
            how = ", finished ones first" if late_first else ""
            yield Candidate(mode, label + how, (phase,), late_first)


def _coupled(problem: Problem, mix: Sequence[Layout], mode: str) -> Iterator[Candidate]:
    """Neighbouring stages on the same devices at the same time, the others before and after."""
    n_stages = len(problem.stages)
    for first in range(n_stages - 1):
        for last in range(first + 1, n_stages):
            together = _beside(problem, range(first, last + 1)) if (first, last) != (0, n_stages - 1) else ()
            if together:
                names = "+".join(stage.name for stage in problem.stages[first : last + 1])
                rest = _all_of(mix)
                phases = (*rest[:first], together, *rest[last + 1 :])
                yield Candidate(mode, _called(f"{names} together, the others before and after", mix), phases)


def _staggered(
    problem: Problem, mix: tuple[Layout, ...], bound_s: float, wants: set[str]
) -> Iterator[Candidate]:
    """Devices that begin with different stages, as many with each as its share of the work asks for."""
    if len(problem.stages) < 2 or not math.isfinite(bound_s):
        return
    is_split = not _is_alone(mix)
    seen: set[tuple[CandidatePhase, ...]] = set()
    for name, step, may_change in itertools.product(("fast", "slow"), _STEPS, (True, False)):
        filled = _fill(problem, mix, bound_s * (1 + step), name == "fast", may_change)
        if filled is None or filled in seen:
            continue
        seen.add(filled)
        mode = "stage_parallel" if _is_static(filled) else "model_parallel" if is_split else "swap"
        if mode in wants:
            text = "side by side" if mode == "stage_parallel" else "staggered, devices change stages in turn"
            yield Candidate(mode, _called(f"{text}, {name} devices first", mix), filled, layouts=mix)


def _is_static(phases: Sequence[CandidatePhase]) -> bool:
    """No device has a unit in more than one phase."""
    devices = [device for phase in phases for unit in phase for device in unit.held.devices]
    return len(devices) == len(set(devices))


def _fill(
    problem: Problem,
    mix: Sequence[Layout],
    deadline_s: float,
    fast_first: bool,
    may_change: bool,
) -> tuple[CandidatePhase, ...] | None:
    """Fill devices with tasks up to a deadline, stage by stage; None if it is too early for all of them.

    A device that has time left at the end of a stage's tasks goes on with the next one, if it ``may_change``.
    In a run that is under way, devices that hold a stage already come first for it, and need not load.
    """
    holds = {device.id: frozenset(device.holds) for device in problem.devices}
    used = {device.id: device.ready_s for device in problem.devices}
    busy: set[str] = set()
    lead_s = 0.0
    phases: list[CandidatePhase] = []
    for number, layout in enumerate(mix):
        tail_s = sum(min(held.item_s for held in later) for later in mix[number + 1 :])
        end_s, needed = deadline_s - tail_s, problem.n_left(number)
        phase: list[CandidateUnit] = []
        for held in _in_order(layout, busy, fast_first, holds):
            if needed <= 0 or (not may_change and busy.intersection(held.devices)):
                continue
            load_s = held.load_s if _hindrance(held, holds) else 0.0
            start_s = max(max(used[device] for device in held.devices) + load_s, lead_s)
            rounds = math.floor((end_s - start_s) / (held.item_s * problem.mean_size) + 1e-9)
            n_tasks = min(needed, rounds * held.fit.in_flight)
            if n_tasks <= 0:
                continue
            needed -= n_tasks
            stop_s = start_s + math.ceil(n_tasks / held.fit.in_flight) * held.item_s * problem.mean_size
            used.update(dict.fromkeys(held.devices, stop_s))
            phase.append(CandidateUnit(held, n_tasks))
        if needed > 0:
            return None
        busy |= {device for unit in phase for device in unit.held.devices}
        busy = busy if not may_change else {d for d in busy if used[d] < end_s}
        if not any(problem.done):  # else there is something for every stage
            lead_s += (min(h.load_s for h in layout) if number == 0 else 0.0) + min(h.item_s for h in layout)
        phases.append(tuple(phase))
    return _without_last_limits(phases)


def _in_order(
    layout: Layout, busy: set[str], fast_first: bool, holds: Mapping[str, frozenset[str]]
) -> list[PlacementOption]:
    """Devices with time left from the stage before come first, then those that hold it, then by speed."""
    sign = 1 if fast_first else -1  # of the seconds for one item
    return sorted(
        layout, key=lambda h: (not busy.intersection(h.devices), _hindrance(h, holds), sign / h.items_per_s)
    )


def _hindrance(held: PlacementOption, holds: Mapping[str, frozenset[str]]) -> int:
    """0 if its devices hold the stage, 1 if they hold nothing, 2 if they hold another."""
    there = [holds[device] for device in held.devices]
    if all(held.stage in stages for stages in there):
        return 0
    return 2 if any(there) else 1


def _without_last_limits(phases: Sequence[CandidatePhase]) -> tuple[CandidatePhase, ...]:
    """A limit only serves a device that has something else to go on with."""
    kept: list[CandidatePhase] = []
    later: set[str] = set()
    for phase in reversed(phases):
        kept.append(tuple(u if later.intersection(u.held.devices) else CandidateUnit(u.held) for u in phase))
        later |= {device for unit in phase for device in unit.held.devices}
    return tuple(reversed(kept))
