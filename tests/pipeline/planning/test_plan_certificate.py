"""The certificate of a plan: its time is the plan's, and its bound no more than the plan's own."""

import hypothesis.strategies as st
import pytest
from certificate_truth import is_true
from examples_count import examples
from hypothesis import given, settings
from pipeline.dispatch.played_fleet import POLICIES

from evenload.errors import ConfigError
from evenload.pipeline.planning.plan_certificate import plan_certificate
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

GIB = 1 << 30
stages = st.lists(
    st.builds(
        lambda item_s, load_s, n_blocks, n_tasks, in_flight: PlanStage(
            "", item_s, load_s, Weights(2 * GIB, GIB, n_blocks), GIB // 4, n_tasks=n_tasks,
            in_flight=in_flight,
        ),
        st.sampled_from([0.1, 1.0, 7.3]), st.sampled_from([0.0, 10.0, 33.3]), st.sampled_from([4, 20]),
        st.sampled_from([1, 1, 2]), st.sampled_from([1, 1, 4]),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
devices = st.lists(
    st.tuples(st.sampled_from([1.0, 0.7, 1 / 3]), st.sampled_from([12, 24, 80])), min_size=1, max_size=4
)


@given(stages, devices, st.integers(1, 20), st.sampled_from(("measured", *POLICIES)))
@settings(max_examples=examples(50), deadline=None)
def test_its_time_is_the_plans_and_its_bound_no_more(stages, devices, n_items, policy):
    problem = Problem(
        tuple(PlanStage(**{**fields_of(one), "name": f"s{k}"}) for k, one in enumerate(stages)),
        tuple(PlanDevice(f"d{k}", speed, gib * GIB) for k, (speed, gib) in enumerate(devices)),
        n_items,
        policy=policy,
    )
    try:
        plan = make_plan(problem)
    except ConfigError:
        return  # a stage that fits nowhere
    page = plan_certificate(problem, plan)
    achieved, bound = page["claim"]["achieved"] / 1e9, page["claim"]["bound"] / 1e9
    assert achieved == pytest.approx(plan.makespan_s, rel=1e-6)
    assert bound <= achieved
    assert bound <= plan.bound_s * (1 + 1e-6) + 1e-6
    if n_items <= 4:
        assert is_true(page)


def fields_of(stage):
    return {name: getattr(stage, name) for name in stage.__dataclass_fields__}


def test_stages_that_need_several(tmp_path):
    parts = tuple(PlanStage(name, 1.0, 0.5) for name in "abc")
    two = (PlanDevice("x"), PlanDevice("y"))
    problem = Problem(parts, two, 5, needs=((), (), (0, 1)))
    page = plan_certificate(problem, make_plan(problem), "a graph")
    assert [one["needs"] for one in page["evidence"]["stages"]] == [[], [], [0, 1]]
    assert is_true(page)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"done": (1,)}, "rest of a run"),
        ({"n_items": 300_000}, "300000 tasks"),
    ],
)
def test_what_cannot_be_certified_is_said(change, why):
    known = {"stages": (PlanStage("s", 1.0),), "devices": (PlanDevice("a"),), "n_items": 2}
    plan = make_plan(Problem(**known))
    with pytest.raises(ConfigError, match=why):
        plan_certificate(Problem(**known | change), plan)
