"""A plan's makespan is that of the policy by which the job runs."""

import random

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import POLICIES

from evenload.balance.fleet import ModelDevice
from evenload.balance.simulate import simulate
from evenload.pipeline.planning.candidates import generate_candidates
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.planning.play_plan import simulate_policy
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem

BLIND = [one for one in POLICIES if one not in ("measured", "factoring:weighted")]  # to measured seconds


def one_stage(policy: str, speeds: list[float], n_items: int, load_s: float = 0.0) -> Problem:
    devices = tuple(PlanDevice(f"d{at}", speed) for at, speed in enumerate(speeds))
    return Problem((PlanStage("edit", 1.0, load_s),), devices, n_items, policy=policy)


@pytest.mark.parametrize(
    ("policy", "makespan_s"),
    [("measured", 7.0), ("pull", 8.0), ("guided", 8.0), ("static", 16.0), ("static:proportional", 8.0)],
)
def test_eight_items_on_a_device_and_one_at_a_quarter_of_its_speed(policy: str, makespan_s: float) -> None:
    """The oracle is counted by hand: by ``static`` four items of 4 s are the slow one's, and so on."""
    problem = one_stage(policy, [1.0, 0.25], 8, load_s=3.0)
    (on_both,) = generate_candidates(problem, least_time(problem), "data_parallel")
    played = simulate_policy(problem, on_both.phases)
    assert played.makespan_s == pytest.approx(makespan_s + 3.0)
    assert sum(played.unit2items.values()) == 8
    for mode in ("auto", "data_parallel"):
        plan = make_plan(problem, mode)
        assert plan.makespan_s == pytest.approx(min(makespan_s, 8.0) + 3.0)  # the fast one can do it alone
        assert sum(unit.n_items for phase in plan.phases for unit in phase.units) == 8


@given(st.sampled_from(BLIND), st.integers(1, 60), st.integers(1, 5), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(60))
def test_a_plan_of_one_stage_takes_as_long_as_a_map(policy, n_items, n_devices, seed) -> None:
    """The oracle is the simulator of maps, whose dealer shares only the policy's formula with a stage."""
    rng = random.Random(seed)
    speeds = sorted((rng.uniform(0.3, 3.0) for _ in range(n_devices)), reverse=True)
    named = {f"d{at}": speed for at, speed in enumerate(speeds)}
    mapped = simulate(policy, [ModelDevice(*one) for one in named.items()], [1.0] * n_items, priors=named)
    plan = make_plan(one_stage(policy, speeds, n_items), "data_parallel")
    used = {device for phase in plan.phases for unit in phase.units for device in unit.devices}
    if used == named.keys():
        assert plan.makespan_s == pytest.approx(mapped.makespan_s)


@given(st.sampled_from(POLICIES), st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(40))
def test_whatever_the_policy_every_task_is_done_and_none_sooner_than_possible(policy, seed) -> None:
    """The oracle is the bound, which knows no policy, and the number of tasks."""
    rng = random.Random(seed)
    stages = tuple(
        PlanStage(
            f"s{at}", rng.choice([0.05, 1.0, 4.0]), rng.choice([0.0, 5.0]), in_flight=rng.choice([1, 1, 3])
        )
        for at in range(rng.randint(1, 3))
    )
    devices = tuple(
        PlanDevice(f"d{at}", rng.choice([0.25, 1.0]), ready_s=rng.choice([0.0, 2.0]))
        for at in range(rng.randint(1, 5))
    )
    problem = Problem(stages, devices, rng.randint(1, 25), policy=policy)
    candidates = list(generate_candidates(problem, least_time(problem), "auto"))
    for candidate in rng.sample(candidates, min(2, len(candidates))):
        found = simulate_policy(problem, candidate.phases)
        assert least_time(problem) - 1e-6 <= found.makespan_s < float("inf")
        assert sum(one.n_items for one in found.slices) == problem.n_items * len(stages)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rest_of_a_run_is_planned_though_a_stage_is_over_that_a_device_may_not_run(policy: str) -> None:
    """The oracle is counted by hand: the six scores that are left take two seconds on three equal devices."""
    devices = tuple(PlanDevice(f"d{at}", barred=frozenset({"edit"} if at else ())) for at in range(3))
    stages = (PlanStage("edit", 1.0), PlanStage("score", 1.0))
    plan = make_plan(Problem(stages, devices, 8, done=(8, 2), policy=policy))
    assert plan.makespan_s == pytest.approx(3.0 if policy == "pull:3" else 2.0)
