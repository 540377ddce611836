"""Workers that go in step end when each of them alone would: whatever the graph, fleet and limits."""

import itertools
from dataclasses import replace
from unittest.mock import patch

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.pipeline.planning import planner
from evenload.pipeline.planning.candidates import generate_candidates
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.placement_options import best_layouts
from evenload.pipeline.planning.planner import coarsen, make_plan, refine
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit, simulate_phases
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

GIB = 2**30


@st.composite
def problems(draw, n_stages: int = 4, n_devices: int = 7, n_items: int = 24) -> Problem:
    n = draw(st.integers(1, n_stages))
    is_graph = draw(st.booleans())
    needs = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, s - 1), max_size=2)))) if s else () for s in range(n)
    )
    counts = [1 if is_graph else draw(st.sampled_from([1, 1, 2, 4])) for _ in range(n)]
    stages = tuple(
        PlanStage(
            f"s{s}",
            draw(st.sampled_from([0.1, 1.0, 2.5, 4.0])),
            draw(st.sampled_from([0.0, 1.0, 5.0, 20.0])),
            weights=draw(st.sampled_from([None, Weights(GIB, GIB // 2, 4), Weights(GIB, GIB // 2, 60)])),
            n_passes=4,
            n_tasks=counts[s],
            fits=("whole", "layer_split", "resident_stream"),
            in_flight=draw(st.sampled_from([1, 1, 1, 5])),
        )
        for s in range(n)
    )
    devices = tuple(
        PlanDevice(
            f"d{d}",
            draw(st.sampled_from([0.25, 0.5, 1.0])),
            draw(st.sampled_from([8, 22, 45])) * GIB,
            ready_s=draw(st.sampled_from([0.0, 0.0, 0.0, 3.0])),
        )
        for d in range(draw(st.integers(1, n_devices)))
    )
    n_all = draw(st.integers(1, n_items))
    return Problem(stages, devices, n_all, needs=needs if is_graph else ())


@settings(max_examples=examples(15), deadline=None)
@given(problem=problems())
def test_sets_of_workers_end_when_each_worker_alone_would(problem: Problem) -> None:
    if not all(best_layouts(stage, problem) for stage in problem.stages):
        return
    bound_s = least_time(problem)
    for candidate in list(generate_candidates(problem, bound_s))[:25]:
        together = simulate_phases(problem, candidate.phases)
        alone = simulate_phases(problem, each_by_itself(candidate.phases))
        assert together.makespan_s == pytest.approx(alone.makespan_s, rel=1e-9)
        n_done = sum(one.n_items for one in together.slices)
        assert n_done == sum(together.unit2items.values()) == sum(alone.unit2items.values())
        assert together.makespan_s >= bound_s * (1 - 1e-9)
        n_each = sum(one.n_items * len(one.device.split("+")) for one in together.slices)
        joined = simulate_phases(problem, candidate.phases, slices="joined")
        assert sum(one.n_items for one in joined.slices) == n_each


def each_by_itself(phases: tuple[CandidatePhase, ...]) -> list[CandidatePhase]:
    """Limits that are never reached, of which no two are equal: no worker is like another."""
    limits = itertools.count(10**6)
    return [tuple(replace(unit, limit=unit.limit or next(limits)) for unit in phase) for phase in phases]


def test_lanes_of_a_group_wait_until_its_model_is_loaded() -> None:
    stage = PlanStage("s", 3.0, 20.0, weights=Weights(0, GIB, 30), fits=("layer_split",))
    devices = tuple(PlanDevice(f"d{n}", 1.0, 12 * GIB) for n in range(3))
    problem = Problem((stage,), devices, 2)
    (layout,) = best_layouts(stage, problem)[:1]
    run = simulate_phases(problem, [tuple(CandidateUnit(option) for option in layout)])
    assert min(one.start_s for one in run.slices if one.kind == "work") >= 20.0


@settings(max_examples=examples(15), deadline=None)
@given(problem=problems(n_stages=3, n_devices=4, n_items=20))
def test_a_coarse_plan_holds_for_all_items(problem: Problem) -> None:
    if not all(best_layouts(stage, problem) for stage in problem.stages):
        return
    # As coarse a problem of fewer tasks, which takes a fortieth of the time.
    with patch.multiple(planner, FEWEST_TASKS=50, ROUNDS=2):
        check_a_coarse_plan(replace(problem, n_items=problem.n_items * 25))


def check_a_coarse_plan(many: Problem) -> None:
    coarse, n_together = coarsen(many)
    plan = make_plan(many)
    assert plan.makespan_s is not None
    assert plan.makespan_s >= least_time(many)
    assert not any("simulated as" in note for note in plan.notes)
    for number, stage in enumerate(many.stages):
        units = [unit for phase in plan.phases for unit in phase.units if unit.stage == stage.name]
        assert sum(unit.n_items for unit in units) == many.n_left(number)
        assert all(unit.limit is None or unit.n_items <= unit.limit for unit in units)
    for candidate in list(generate_candidates(coarse, least_time(coarse)))[:3]:
        exact = refine(candidate, many, n_together)
        assert exact is not None
        assert [len(phase) for phase in exact.phases] == [len(phase) for phase in candidate.phases]
