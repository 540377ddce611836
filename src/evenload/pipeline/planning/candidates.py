"""Generate the plans of a job that are worth simulating."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenload.pipeline.planning.layouts import Layout, best_layouts, best_single
from evenload.pipeline.planning.placement_options import PlacementOption, bytes_together
from evenload.pipeline.planning.shares.fill_devices import fill_devices
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit
from evenload.pipeline.problem import PlanDevice, Problem

MOST_LAYOUT_CHOICES = 8
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
_WAYS_TO_FILL = (  # devices first, may one change stages, quotas
    ("fast", True, True),
    ("fast", True, False),
    ("slow", True, False),
    ("fast", False, False),
    ("slow", False, False),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the job: a list of phases, before it is simulated.

    layouts  for each phase, all units that it may have; an improvement may add some of them
    """

    mode: str
    label: str
    phases: tuple[CandidatePhase, ...]
    layouts: tuple[Layout, ...] = ()


def generate_candidates(problem: Problem, bound_s: float, mode: str = "auto") -> Iterator[Candidate]:
    """Yield every candidate of ``mode`` that fits into the memory there is."""
    if mode in ("auto", "single"):
        yield from _on_one_device(problem)
    if mode in ("auto", "data_parallel"):
        yield from _every_stage_everywhere(problem)
    wants = {mode} if mode != "auto" else {"swap", "stage_parallel", "model_parallel"}
    choices = [
        (layouts, "swap" if _is_ungrouped(layouts) else "model_parallel")
        for layouts in _layout_choices(problem, mode)
    ]
    for layouts, name in choices:
        if name in wants:
            label = _label("stage after stage on all devices", layouts)
            yield Candidate(name, label, _all_units(layouts), layouts=layouts)
    for layouts, name in choices:
        if name in wants:
            yield from _stages_together(problem, layouts, name)
        if name == "swap" and mode == "stage_parallel" and len(problem.stages) == 1:  # the others are done
            label = _label("one stage on all devices", layouts)
            yield Candidate(mode, label, _all_units(layouts), layouts=layouts)
        if name in wants or "stage_parallel" in wants:
            yield from _staggered(problem, layouts, bound_s, wants)


def _all_units(layouts: Sequence[Layout]) -> tuple[CandidatePhase, ...]:
    return tuple(tuple(CandidateUnit(option) for option in layout) for layout in layouts)


def _label(text: str, layouts: Sequence[Layout]) -> str:
    """Return ``text`` and the sizes of the groups of devices, if there are any."""
    sizes = {
        option.stage: len(option.devices)
        for layout in layouts
        for option in layout
        if len(option.devices) > 1
    }
    groups = ", ".join(f"{stage} over groups of {n}" for stage, n in sizes.items())
    return f"{text}; {groups}" if groups else text


def _layout_choices(problem: Problem, mode: str) -> list[tuple[Layout, ...]]:
    """Choose one layout for each stage in all ways worth trying, those without groups of devices first."""
    ways = [best_layouts(stage, problem) for stage in problem.stages]
    if mode == "model_parallel":
        grouped = [best_layouts(stage, problem, groups_only=True) for stage in problem.stages]
        ways = [[*g, *(w for w in plain if w not in g)] for g, plain in zip(grouped, ways, strict=True)]
    if not all(ways):
        return []
    choices = sorted(itertools.product(*ways), key=lambda layouts: not _is_ungrouped(layouts))
    if mode == "model_parallel":
        choices = [layouts for layouts in choices if not _is_ungrouped(layouts)]
    return choices[:MOST_LAYOUT_CHOICES]


def _is_ungrouped(layouts: Sequence[Layout]) -> bool:
    """Return whether no stage is spread over several devices."""
    return all(len(option.devices) == 1 for layout in layouts for option in layout)


def _on_one_device(problem: Problem) -> Iterator[Candidate]:
    """Yield all stages on the one device that is done soonest."""
    best: tuple[float, tuple[PlacementOption, ...]] | None = None
    for device in problem.devices:
        options = [best_single(stage, device, problem) for stage in problem.stages]
        if all(options):
            ways = tuple(option for option in options if option is not None)
            seconds = device.ready_s + sum(
                one.load_s + one.item_s * problem.n_left(number) for number, one in enumerate(ways)
            )
            if best is None or seconds < best[0]:
                best = seconds, ways
    if best is not None:
        layouts = tuple((option,) for option in best[1])
        yield Candidate("single", f"all on {best[1][0].devices[0]}", _all_units(layouts), layouts=layouts)


def _fit_together(options: Sequence[PlacementOption], device: PlanDevice, problem: Problem) -> bool:
    """Return whether the device can hold these at once; what has an unknown size counts as fitting."""
    sized = [option for option in options if option.fit.device2bytes]
    return device.free_bytes is None or bytes_together(sized, device.id, problem) <= device.free_bytes


def _phase_of_stages(problem: Problem, numbers: Sequence[int]) -> CandidatePhase:
    """Hold the stages ``numbers`` together on each device that can hold all of them whole."""
    units: list[CandidateUnit] = []
    for device in problem.devices:
        singles = [best_single(problem.stages[number], device, problem) for number in numbers]
        options = [option for option in singles if option is not None and option.fit.name == "whole"]
        if len(options) == len(numbers) and _fit_together(options, device, problem):
            units += [CandidateUnit(option) for option in options]
    return tuple(units)


def _every_stage_everywhere(problem: Problem) -> Iterator[Candidate]:
    phase = _phase_of_stages(problem, range(len(problem.stages)))
    if phase:
        yield Candidate("data_parallel", "every stage on each device", (phase,))


def _stages_together(problem: Problem, layouts: Sequence[Layout], mode: str) -> Iterator[Candidate]:
    """Yield neighbouring stages on the same devices at the same time, the others before and after."""
    n_stages = len(problem.stages)
    apart = _all_units(layouts)
    for first in range(n_stages - 1):
        for last in range(first + 1, n_stages):
            is_all = (first, last) == (0, n_stages - 1)
            together = () if is_all else _phase_of_stages(problem, range(first, last + 1))
            if together:
                names = "+".join(stage.name for stage in problem.stages[first : last + 1])
                label = _label(f"{names} together, the others before and after", layouts)
                yield Candidate(mode, label, (*apart[:first], together, *apart[last + 1 :]))


def _staggered(
    problem: Problem, layouts: tuple[Layout, ...], bound_s: float, wants: set[str]
) -> Iterator[Candidate]:
    """Yield plans in which devices begin with different stages, by each stage's share of the work.

    Devices are filled up to a deadline, for many deadlines from the bound on.
    """
    if len(problem.stages) < 2 or not math.isfinite(bound_s):
        return
    is_split = not _is_ungrouped(layouts)
    seen: set[tuple[CandidatePhase, ...]] = set()
    for step, (name, may_change, has_quotas) in itertools.product(_STEPS, _WAYS_TO_FILL):
        deadline_s = bound_s * (1 + step)
        phases = fill_devices(problem, layouts, deadline_s, name == "fast", may_change, has_quotas=has_quotas)
        if phases is None or phases in seen:
            continue
        seen.add(phases)
        mode = "stage_parallel" if _is_static(phases) else "model_parallel" if is_split else "swap"
        if mode in wants:
            text = "side by side" if mode == "stage_parallel" else "staggered, devices change stages in turn"
            yield Candidate(mode, _label(f"{text}, {name} devices first", layouts), phases, layouts=layouts)


def _is_static(phases: Sequence[CandidatePhase]) -> bool:
    """Return whether no device has a unit in more than one phase."""
    devices = [device for phase in phases for unit in phase for device in unit.option.devices]
    return len(devices) == len(set(devices))
