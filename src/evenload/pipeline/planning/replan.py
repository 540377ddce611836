"""Is there a better way to do the rest? Asked when a phase ends, and when a device joins, leaves or drifts.

    again = replan(problem, State(done, devices), plan.phases)        pure: values in, a decision out

The rest of the present plan is simulated beside new ones, with what is loaded counted as loaded. A change
must save enough to be worth the risk: figures of a run that goes on are never quite right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenload.pipeline.plan import Fit, Phase, Plan, Unit
from evenload.pipeline.planning.placement_options import PlacementOption, device_options, group_option
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit, simulate_phases
from evenload.pipeline.problem import PlanDevice, Problem

__all__ = ["ReplanDecision", "RunState", "replan"]

WORTH = 0.03  # a new plan must save this share of what is left ...
WORTH_S = 0.25  # ... and so many seconds: to think takes time as well
EFFORT = 0.3  # figures of a run that goes on are not worth a long search


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run is.

    done     tasks done of each stage, in their order
    devices  those that are there now: speed as measured, free memory now, what each holds, when it is free
    item_s   seconds for an item on a device of speed 1, as measured, by stage
    """

    done: tuple[int, ...]
    devices: tuple[PlanDevice, ...]
    item_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplanDecision:
    """``plan`` for the rest if it is worth a change, else None; ``present_s`` None: it cannot go on."""

    plan: Plan | None
    present_s: float | None
    why: str


def replan(problem: Problem, state: RunState, present: Sequence[Phase], mode: str = "auto") -> ReplanDecision:
    """Compare the rest of the ``present`` plan with the best new one.

    Raises ConfigError if what is left fits on no device that is there.
    """
    stages = tuple(replace(s, item_s=state.item_s.get(s.name, s.item_s)) for s in problem.stages)
    rest = replace(problem, stages=stages, devices=state.devices, done=state.done)
    if not any(rest.n_left(number) for number in range(len(stages))):
        return ReplanDecision(None, 0.0, "nothing is left")
    going_on = _held_again(rest, present)
    present_s = None
    if going_on is not None:
        outcome = simulate_phases(rest, going_on)
        present_s = outcome.makespan_s if outcome.makespan_s < float("inf") else None
    found = make_plan(rest, mode, effort=EFFORT)
    assert found.makespan_s is not None
    if present_s is None:
        return ReplanDecision(found, None, f"the present plan cannot go on; {found.why}")
    saves_s = present_s - found.makespan_s
    if saves_s < max(WORTH * present_s, WORTH_S):
        return ReplanDecision(
            None, present_s, f"a new plan would save {max(saves_s, 0.0):.1f} s of {present_s:.1f} s"
        )
    return ReplanDecision(found, present_s, f"saves {saves_s:.1f} s of {present_s:.1f} s: {found.why}")


def _held_again(rest: Problem, present: Sequence[Phase]) -> tuple[CandidatePhase, ...] | None:
    """The present plan on the devices that are there; None if a stage that has work left lost all of them."""
    there = {device.id: device for device in rest.devices}
    phases: list[CandidatePhase] = []
    for phase in present:
        units = [held for unit in phase.units if (held := _held(rest, unit, there)) is not None]
        phases.append(tuple(units))
    kept = {unit.held.stage for phase in phases for unit in phase}
    left = {stage.name for number, stage in enumerate(rest.stages) if rest.n_left(number)}
    return tuple(phases) if left <= kept else None


def _held(rest: Problem, unit: Unit, there: Mapping[str, PlanDevice]) -> CandidateUnit | None:
    if any(device not in there for device in unit.devices):
        return None
    stage = next(stage for stage in rest.stages if stage.name == unit.stage)
    devices = [there[device] for device in unit.devices]
    held: PlacementOption | None
    if len(devices) > 1:
        held = group_option(stage, devices, rest)
    else:
        held = next(
            (way for way in device_options(stage, devices[0], rest) if _same(way.fit, unit.fit)), None
        )
    return None if held is None else CandidateUnit(held)


def _same(way: Fit, planned: Fit) -> bool:
    return way.name == planned.name
