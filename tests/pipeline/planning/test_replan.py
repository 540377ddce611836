"""A run is planned again where that saves enough, and left alone where it does not."""

from dataclasses import replace

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.pipeline.plan import Phase, Plan, Unit
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.planning.replan import RunState, replan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    stages = (PlanStage("edit", 5.0, 20.0, fits=("whole",)), PlanStage("score", 3.4, 15.0, fits=("whole",)))
    return Problem(stages, tuple(PlanDevice(f"d{n}") for n in range(4)), 120)


@pytest.fixture(scope="module")
def swap_plan(problem: Problem) -> Plan:
    return make_plan(problem, "swap")


def holding(problem: Problem, stage: str) -> tuple[PlanDevice, ...]:
    return tuple(replace(device, holds=(stage,)) for device in problem.devices)


def test_nothing_happened_so_nothing_changes(problem: Problem) -> None:
    on_all = [tuple(Unit((one.id,), name) for one in problem.devices) for name in ("edit", "score")]
    present = tuple(Phase(units, (units[0].stage,)) for units in on_all)
    again = replan(problem, RunState((100, 0), holding(problem, "edit")), present)
    assert again.plan is None
    assert again.current_s is not None
    assert "would save" in again.why


def test_a_device_that_left_and_one_that_joined(problem: Problem, swap_plan: Plan) -> None:
    fewer = holding(problem, "edit")[:2]
    again = replan(problem, RunState((40, 0), fewer), swap_plan.phases)
    rest = again.plan.makespan_s if again.plan is not None else again.current_s
    assert rest is not None
    assert rest >= (80 * 5.0 + 120 * 3.4) / 2
    more = (*holding(problem, "edit"), *(PlanDevice(f"new{n}") for n in range(4)))
    joined = replan(problem, RunState((20, 0), more), swap_plan.phases)
    assert joined.plan is not None
    assert joined.current_s is not None
    assert joined.plan.makespan_s is not None
    assert joined.plan.makespan_s < 0.75 * joined.current_s
    used = {device for phase in joined.plan.phases for unit in phase.units for device in unit.devices}
    assert "new0" in used


def test_a_plan_that_cannot_go_on_is_replaced(problem: Problem) -> None:
    plan = make_plan(problem, "stage_parallel")
    scorers = {
        d for phase in plan.phases for unit in phase.units if unit.stage == "score" for d in unit.devices
    }
    left = tuple(device for device in problem.devices if device.id not in scorers)
    again = replan(problem, RunState((60, 30), left), plan.phases)
    assert again.current_s is None
    assert again.plan is not None
    assert "cannot go on" in again.why


def test_nothing_left_and_nowhere_to_go(problem: Problem, swap_plan: Plan) -> None:
    assert replan(problem, RunState((120, 120), problem.devices), swap_plan.phases).why == "nothing is left"
    with pytest.raises(ConfigError, match="nothing to plan"):
        replan(problem, RunState((60, 0), ()), swap_plan.phases)


def test_a_model_with_little_left_is_not_evicted(problem: Problem, swap_plan: Plan) -> None:
    """8 s of edits are left, and a load takes 15 s: those that edit go on."""
    again = replan(problem, RunState((112, 0), holding(problem, "edit")), swap_plan.phases)
    chosen = again.plan or swap_plan
    first = [unit for unit in chosen.phases[0].units if unit.stage == "edit"]
    assert len(first) >= 2


@settings(max_examples=examples(15), deadline=None)
@given(done=st.tuples(st.integers(0, 120), st.integers(0, 120)), n_devices=st.integers(1, 4))
def test_the_rest_is_always_planned_whole(
    problem: Problem, swap_plan: Plan, done: tuple[int, int], n_devices: int
) -> None:
    done = (done[0], min(done))
    again = replan(problem, RunState(done, problem.devices[:n_devices]), swap_plan.phases)
    if again.plan is not None:
        for number, stage in enumerate(problem.stages):
            units = [u for phase in again.plan.phases for u in phase.units if u.stage == stage.name]
            assert sum(unit.n_items for unit in units) == 120 - done[number]
