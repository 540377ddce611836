"""Decide whether another plan for the rest of a run is worth a change.

    decision = replan(problem, RunState(done, devices), plan.phases)        pure: values in, a decision out

The rest of the current plan is simulated beside new ones; what is loaded already costs no load. A change must
save enough to be worth it, as the times of a run that goes on are never exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenload.pipeline.plan import Phase, Plan
from evenload.pipeline.planning.placement_options import option_named
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit, simulate_phases
from evenload.pipeline.problem import PlanDevice, Problem

LEAST_SAVED = 0.03  # a new plan must save this share of what is left ...
LEAST_SAVED_S = 0.25  # ... and so many seconds: planning takes time as well


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, as the planner needs it.

    done     tasks done of each stage, in their order
    devices  that take part now: speed as measured, free memory now, what each holds, when it is free
    item_s   seconds for an item on a device of speed 1, as measured, by stage
    """

    done: tuple[int, ...]
    devices: tuple[PlanDevice, ...]
    item_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplanDecision:
    """The outcome of a comparison.

    plan       a new plan for the rest, if it is worth a change; else None
    current_s  seconds that the current plan needs for the rest; None if it cannot go on
    """

    plan: Plan | None
    current_s: float | None
    why: str


def replan(problem: Problem, state: RunState, current: Sequence[Phase], mode: str = "auto") -> ReplanDecision:
    """Compare the rest of the ``current`` plan with the best new one.

    Raises ConfigError if what is left fits on no device that is there.
    """
    stages = tuple(replace(s, item_s=state.item_s.get(s.name, s.item_s)) for s in problem.stages)
    rest = replace(problem, stages=stages, devices=state.devices, done=state.done)
    if not any(rest.n_left(number) for number in range(len(stages))):
        return ReplanDecision(None, 0.0, "nothing is left")
    going_on = _phases_that_go_on(rest, current)
    current_s = None
    if going_on is not None:
        makespan_s = simulate_phases(rest, going_on, slices="none").makespan_s
        current_s = makespan_s if makespan_s < float("inf") else None
    found = make_plan(rest, mode)
    assert found.makespan_s is not None
    if current_s is None:
        return ReplanDecision(found, None, f"the present plan cannot go on; {found.why}")
    saves_s = current_s - found.makespan_s
    if saves_s < max(LEAST_SAVED * current_s, LEAST_SAVED_S):
        return ReplanDecision(
            None, current_s, f"a new plan would save {max(saves_s, 0.0):.1f} s of {current_s:.1f} s"
        )
    return ReplanDecision(found, current_s, f"saves {saves_s:.1f} s of {current_s:.1f} s: {found.why}")


def _phases_that_go_on(rest: Problem, current: Sequence[Phase]) -> tuple[CandidatePhase, ...] | None:
    """Return the current plan on the devices that are there, with today's times and memory.

    None if a stage with work left has no unit: its devices left, or its model fits no more.
    """
    options = [[option_named(u.stage, u.devices, u.fit.name, rest) for u in phase.units] for phase in current]
    phases = [tuple(CandidateUnit(one) for one in some if one is not None) for some in options]
    kept = {unit.option.stage for phase in phases for unit in phase}
    left = {stage.name for number, stage in enumerate(rest.stages) if rest.n_left(number)}
    return tuple(phases) if left <= kept else None
