"""Plans of graphs of stages: the bound holds, joins wait for all branches, branches run side by side."""

import bisect
import math

from examples_count import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenload.pipeline.planning.candidates import generate_candidates
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.planning.simulate_plan import simulate_phases
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem
from evenload.pipeline.stage_graph import StageGraph, chain

DIAMOND = ((), (0,), (0,), (1, 2))
seconds = st.sampled_from([0.1, 1.0, 2.5, 4.0])
loads = st.sampled_from([0.0, 1.0, 5.0])
speeds = st.sampled_from([0.5, 1.0])


@st.composite
def problems(draw, n_stages: int, n_items: int, n_devices: int) -> Problem:
    """Any graph of at most so many stages, with stages that begin and that end side by side."""
    n = draw(st.integers(2, n_stages))
    needs = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, s - 1), max_size=2)))) if s else () for s in range(n)
    )
    stages = tuple(PlanStage(f"s{s}", draw(seconds), draw(loads), fits=("whole",)) for s in range(n))
    devices = tuple(PlanDevice(f"d{d}", draw(speeds)) for d in range(draw(st.integers(1, n_devices))))
    return Problem(stages, devices, draw(st.integers(1, n_items)), needs=needs)


def shortest(problem: Problem, known_s: float) -> float:
    """The least makespan of all schedules, by trying every one that is below ``known_s``: the slow twin."""
    graph, stages = problem.graph, problem.stages
    best = [known_s]
    fastest = max(device.speed for device in problem.devices)
    tails = graph.longest_after([stage.item_s / fastest for stage in stages])
    left = [(stage, item) for stage in range(len(stages)) for item in range(problem.n_items)]

    def go(free: tuple[float, ...], loaded: tuple[frozenset[int], ...], ends: dict[tuple[int, int], float]):
        if len(ends) == len(left):
            best[0] = min(best[0], max(ends.values()))
            return
        seen = set()
        for stage, item in left:
            if (stage, item) in ends or any((need, item) not in ends for need in graph.needs[stage]):
                continue
            ready = max((ends[need, item] for need in graph.needs[stage]), default=0.0)
            mine = (stage, *(ends.get((s, item)) for s in range(len(stages))))
            if mine in seen:  # items that have come equally far are alike
                continue
            seen.add(mine)
            for number, device in enumerate(problem.devices):
                load_s = 0.0 if stage in loaded[number] else stages[stage].load_s
                stop = max(free[number] + load_s, ready) + stages[stage].item_s / device.speed
                if stop + tails[stage] < best[0] * (1 - 1e-9):
                    go(
                        (*free[:number], stop, *free[number + 1 :]),
                        (*loaded[:number], loaded[number] | {stage}, *loaded[number + 1 :]),
                        {**ends, (stage, item): stop},
                    )

    go((0.0,) * len(problem.devices), (frozenset(),) * len(problem.devices), {})
    return best[0]


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(4, 2, 2))
def test_tiny_graphs_against_every_schedule(problem: Problem) -> None:
    plan = make_plan(problem)
    assert plan.makespan_s is not None
    best = shortest(problem, plan.makespan_s) if len(problem.stages) * problem.n_items <= 6 else None
    assert plan.bound_s == least_time(problem)
    if best is not None:
        assert least_time(problem) <= best * (1 + 1e-9)
        assert plan.makespan_s <= best * 1.5


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(5, 12, 3))
def test_no_stage_begins_more_items_than_what_it_needs_has_ended(problem: Problem) -> None:
    bound_s = least_time(problem)
    for candidate in generate_candidates(problem, bound_s):
        outcome = simulate_phases(problem, candidate.phases)
        assert outcome.makespan_s >= bound_s * (1 - 1e-9)
        if not math.isfinite(outcome.makespan_s):
            continue  # a limit was too small
        begins, ends = _times(problem, outcome.slices)
        for stage, needs in enumerate(problem.graph.needs):
            assert len(ends[stage]) == problem.n_items
            for need in needs:
                for n_before, begin in enumerate(begins[stage]):
                    assert bisect.bisect_right(ends[need], begin + 1e-9) > n_before


def _times(problem: Problem, slices) -> tuple[list[list[float]], list[list[float]]]:
    work = [one for one in slices if one.kind == "work"]
    names = [stage.name for stage in problem.stages]
    begins = [sorted(one.start_s for one in work if one.stage == name) for name in names]
    return begins, [sorted(one.stop_s for one in work if one.stage == name) for name in names]


@settings(max_examples=examples(40), deadline=None)
@given(draw=st.data())
def test_what_is_half_done_can_be_planned(draw) -> None:
    """Also where some samples or parts of an item are done that others wait for."""
    counts = [draw.draw(st.integers(1, 3))]
    for more in draw.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        counts.append(counts[-1] * more if draw.draw(st.booleans()) else more)
    stages = tuple(
        PlanStage(f"s{n}", 1.0, 0.5, n_tasks=count, fits=("whole",)) for n, count in enumerate(counts)
    )
    n_items, done = draw.draw(st.integers(1, 6)), []
    for stage, count in enumerate(counts):
        most = n_items * count if not stage else done[-1] * count // counts[stage - 1]
        done.append(draw.draw(st.integers(0, most)))
    problem = Problem(stages, (PlanDevice("d0"), PlanDevice("d1", 0.5)), n_items, done=tuple(done))
    assume(any(problem.n_left(stage) for stage in range(len(stages))))
    plan = make_plan(problem)
    assert plan.makespan_s is not None
    assert math.isfinite(plan.makespan_s)


def test_equal_branches_run_side_by_side_and_the_bound_knows_it() -> None:
    stages = tuple(PlanStage(name, 1.0, 1.0, fits=("whole",)) for name in ("encode", "mask"))
    devices = (PlanDevice("d0"), PlanDevice("d1"))
    problem = Problem(stages, devices, 10, needs=((), ()))
    plan = make_plan(problem)
    assert (plan.mode, plan.makespan_s) == ("stage_parallel", 11.0)
    assert plan.ratio is not None
    assert plan.ratio < 1.001
    in_turn = make_plan(Problem(stages, devices, 10))
    assert in_turn.makespan_s is not None
    assert in_turn.makespan_s > 11.0


def test_a_single_item_is_bound_by_its_longest_way() -> None:
    stages = tuple(
        PlanStage(f"s{n}", item_s, fits=("whole",)) for n, item_s in enumerate((1.0, 5.0, 2.0, 1.0))
    )
    problem = Problem(stages, tuple(PlanDevice(f"d{n}") for n in range(4)), 1, needs=DIAMOND)
    assert abs(least_time(problem) - 7.0) < 1e-6
    assert abs((make_plan(problem).makespan_s or 0) - 7.0) < 1e-6


def test_a_graph_knows_who_comes_before_and_after() -> None:
    graph = StageGraph(DIAMOND)
    assert (graph.next, graph.ends, graph.is_chain) == (((1, 2), (3,), (3,), ()), {3}, False)
    assert (graph.before[3], graph.after[0], graph.beside(1)) == ({0, 1, 2}, {1, 2, 3}, {2})
    assert chain(3).needs == ((), (0,), (1,))
    assert chain(3).is_chain
