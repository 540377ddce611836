"""Generate the plans of a job that are worth simulating."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evenload.pipeline.planning.placement_options import (
    ALIKE,
    Layout,
    PlacementOption,
    best_layouts,
    best_single,
    bytes_together,
)
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit
from evenload.pipeline.planning.work_shares import Way, share_work
from evenload.pipeline.problem import PlanDevice, Problem

MOST_LAYOUT_CHOICES = 8
_STEPS = (*(n / 100 for n in range(8)), 0.085, 0.1, 0.13, 0.17, 0.22, 0.3, 0.5, 1.0, 2.0, 4.0)
_WAYS_TO_FILL = (  # devices first, may one change stages, quotas
    ("fast", True, True),
    ("fast", True, False),
    ("slow", True, False),
    ("fast", False, False),
    ("slow", False, False),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the job: a list of phases, before it is simulated."""

    mode: str
    label: str
    phases: tuple[CandidatePhase, ...]


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
            yield Candidate(name, label, _all_units(layouts))
    for layouts, name in choices:
        if name == "swap" and mode == "stage_parallel" and len(problem.stages) == 1:  # the others are done
            label = _label("one stage on all devices", layouts)
            yield Candidate(mode, label, _all_units(layouts))
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
        yield Candidate("single", f"all on {best[1][0].devices[0]}", _all_units(layouts))


def _fit_together(options: Sequence[PlacementOption], device: PlanDevice, problem: Problem) -> bool:
    """Return whether the device can hold these at once; what has an unknown size counts as fitting."""
    sized = [option for option in options if option.fit.device2bytes]
    return device.free_bytes is None or bytes_together(sized, device.id, problem) <= device.free_bytes


def _every_stage_everywhere(problem: Problem) -> Iterator[Candidate]:
    """Yield all stages on each device that can hold all of them whole."""
    units: list[CandidateUnit] = []
    for device in problem.devices:
        singles = [best_single(stage, device, problem) for stage in problem.stages]
        options = [option for option in singles if option is not None and option.fit.name == "whole"]
        if len(options) == len(singles) and _fit_together(options, device, problem):
            units += [CandidateUnit(option) for option in options]
    if units:
        yield Candidate("data_parallel", "every stage on each device", (tuple(units),))


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
            yield Candidate(mode, _label(f"{text}, {name} devices first", layouts), phases)


def _is_static(phases: Sequence[CandidatePhase]) -> bool:
    """Return whether no device has a unit in more than one phase."""
    devices = [device for phase in phases for unit in phase for device in unit.option.devices]
    return len(devices) == len(set(devices))


# --- devices filled up to a deadline ------------------------------------------------------------------

_Kind = tuple[int | None, ...]  # of each stage: the logarithm of the seconds for an item, None if it fits not


class Quotas:
    """The tasks that placement options of each kind may still take, so that all devices end together.

    windows  of each stage: when its first task can begin and its last must end
    """

    def __init__(self, problem: Problem, layouts: Sequence[Layout], windows: Sequence[tuple[float, float]]):
        self._device2kind = _device_kinds(problem, layouts)
        numbers = {kind: at for at, kind in enumerate(dict.fromkeys(self._device2kind.values()))}
        self._stages = [stage.name for stage in problem.stages]
        ways: dict[tuple, Way] = {}
        for stage, layout in enumerate(layouts):
            for option in layout:
                key = self._key(option)
                if key not in ways:
                    kinds = [numbers[self._device2kind[device]] for device in option.devices]
                    uses = tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))
                    begin_s, end_s = max(windows[stage][0], option.load_s), windows[stage][1]
                    n_tasks = max(0.0, end_s - begin_s) * option.items_per_s
                    ways[key] = Way(stage, n_tasks, uses)
        held = list(self._device2kind.values())
        n_left = [problem.n_left(stage) for stage in range(len(layouts))]
        shares = share_work(list(ways.values()), n_left, [held.count(kind) for kind in numbers])
        scale = max(1.0, shares.done)
        self._left = {
            key: math.ceil(way.rate * used / scale)
            for (key, way), used in zip(ways.items(), shares.used, strict=True)
        }

    def _key(self, option: PlacementOption) -> tuple:
        return option.stage, tuple(self._device2kind[device] for device in option.devices)

    def take(self, option: PlacementOption, n_most: int) -> int:
        """Return how many tasks the option gets, at most ``n_most``; its kind has so many fewer left."""
        key = self._key(option)
        n = max(0, min(n_most, self._left[key]))
        self._left[key] -= n
        return n


def _device_kinds(problem: Problem, layouts: Sequence[Layout]) -> dict[str, _Kind]:
    """Return the kind of each device: how long it takes for each stage in these layouts."""
    logs: dict[str, list[int | None]] = {device.id: [None] * len(layouts) for device in problem.devices}
    for stage, layout in enumerate(layouts):
        for option in layout:
            for device in option.devices:
                logs[device][stage] = round(math.log(option.item_s, ALIKE))
    return {device: tuple(kind) for device, kind in logs.items()}


def fill_devices(
    problem: Problem,
    layouts: Sequence[Layout],
    deadline_s: float,
    fast_first: bool,
    may_change: bool,
    *,
    has_quotas: bool = False,
) -> tuple[CandidatePhase, ...] | None:
    """Fill devices with tasks up to a deadline, stage by stage; None if it is too early for all tasks.

    may_change  a device that has time left at the end of a stage goes on with the next one
    has_quotas  each kind of device does as much of each stage as is best by that deadline, where devices are
                unequally good at the stages

    In a run that is under way, devices that hold a stage already come first for it, and need not load.
    """
    holds = {device.id: frozenset(device.holds) for device in problem.devices}
    used_s = {device.id: device.ready_s for device in problem.devices}
    busy: set[str] = set()
    windows = _windows(problem, layouts, deadline_s)
    quotas = Quotas(problem, layouts, windows) if has_quotas else None
    phases: list[CandidatePhase] = []
    for number, layout in enumerate(layouts):
        ordered = _in_order(layout, busy, fast_first, holds)
        options = [option for option in ordered if may_change or not busy.intersection(option.devices)]
        n_left = problem.n_left(number)
        phase, n_left = _fill_phase(problem, options, n_left, windows[number], used_s, holds, quotas)
        if n_left > 0:  # rounded quotas leave some over
            rest = [option for option in options if option not in {unit.option for unit in phase}]
            more, n_left = _fill_phase(problem, rest, n_left, windows[number], used_s, holds, None)
            phase += more
        if n_left > 0:
            return None
        busy |= {device for unit in phase for device in unit.option.devices}
        busy = busy if not may_change else {device for device in busy if used_s[device] < windows[number][1]}
        phases.append(phase)
    return _without_last_limits(phases)


def _windows(problem: Problem, layouts: Sequence[Layout], deadline_s: float) -> list[tuple[float, float]]:
    """Return for each stage when its first task can begin, and when its last must end."""
    least_s = [min(option.item_s for option in layout) for layout in layouts]
    graph = problem.graph
    first_s = [0.0 if graph.needs[n] else min(o.load_s for o in layout) for n, layout in enumerate(layouts)]
    leads = graph.longest_before([first + least for first, least in zip(first_s, least_s, strict=True)])
    tails = graph.longest_after(least_s)
    # In a run that is under way there is something to do for every stage.
    is_under_way = any(problem.done)
    return [
        (0.0 if is_under_way else lead, deadline_s - tail) for lead, tail in zip(leads, tails, strict=True)
    ]


def _fill_phase(
    problem: Problem,
    options: Sequence[PlacementOption],
    n_left: int,
    window_s: tuple[float, float],
    used_s: dict[str, float],
    holds: Mapping[str, frozenset[str]],
    quotas: Quotas | None,
) -> tuple[CandidatePhase, int]:
    """Give ``n_left`` tasks of a stage to ``options`` in their order; also return how many are left over.

    ``window_s`` is when the first task can begin and the last must end. ``used_s`` is moved on: until when
    each device is busy.
    """
    lead_s, end_s = window_s
    phase: list[CandidateUnit] = []
    for option in options:
        load_s = option.load_s if _hindrance(option, holds) else 0.0
        start_s = max(max(used_s[device] for device in option.devices) + load_s, lead_s)
        n_rounds = math.floor((end_s - start_s) / option.item_s + 1e-9)
        n_tasks = min(n_left, n_rounds * option.fit.n_parallel)
        if quotas is not None:
            n_tasks = quotas.take(option, n_tasks)
        if n_tasks <= 0:
            continue
        n_left -= n_tasks
        stop_s = start_s + math.ceil(n_tasks / option.fit.n_parallel) * option.item_s
        used_s.update(dict.fromkeys(option.devices, stop_s))
        phase.append(CandidateUnit(option, n_tasks))
    return tuple(phase), n_left


def _in_order(
    layout: Layout, busy: set[str], fast_first: bool, holds: Mapping[str, frozenset[str]]
) -> list[PlacementOption]:
    """Sort by time left from the stage before, then by who holds the stage already, then by speed."""
    sign = 1 if fast_first else -1  # of the seconds for one item
    return sorted(
        layout, key=lambda h: (not busy.intersection(h.devices), _hindrance(h, holds), sign / h.items_per_s)
    )


def _hindrance(option: PlacementOption, holds: Mapping[str, frozenset[str]]) -> int:
    """Return 0 if the devices hold the stage, 1 if they hold nothing, 2 if they hold another stage."""
    held = [holds[device] for device in option.devices]
    if all(option.stage in stages for stages in held):
        return 0
    return 2 if any(held) else 1


def _without_last_limits(phases: Sequence[CandidatePhase]) -> tuple[CandidatePhase, ...]:
    """Take away the limits of units whose devices have no later phase to go on with."""
    kept: list[CandidatePhase] = []
    later: set[str] = set()
    for phase in reversed(phases):
        kept.append(
            tuple(u if later.intersection(u.option.devices) else CandidateUnit(u.option) for u in phase)
        )
        later |= {device for unit in phase for device in unit.option.devices}
    return tuple(reversed(kept))
