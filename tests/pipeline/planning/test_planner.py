"""No plan beats the bound, the chosen is the quickest tried, memory is respected, more devices never hurt."""

import bisect
import itertools
import math
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from examples_count import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import POLICIES

from evenload.errors import ConfigError
from evenload.pipeline.plan import Plan, TimelineSlice, Unit
from evenload.pipeline.planning import planner
from evenload.pipeline.planning.candidates import generate_candidates
from evenload.pipeline.planning.job_plan import best_of_each_mode
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.planner import MODES, make_plan
from evenload.pipeline.planning.simulate_plan import simulate_phases
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights
from evenload.pipeline.stage_graph import StageGraph, chain

GIB = 2**30
SPLIT = Weights(1, 1, 8)
seconds = st.sampled_from([0.1, 1.0, 2.5, 4.0, 10.0])
loads = st.sampled_from([0.0, 1.0, 5.0, 20.0])
speeds = st.sampled_from([0.25, 0.5, 1.0])


@st.composite
def problems(draw, n_stages: int = 3, n_items: int = 25, n_devices: int = 5, graphs: bool = False) -> Problem:
    """Whole models on any devices; ``graphs``: any graph, with stages that begin and end side by side."""
    n = draw(st.integers(1, n_stages))
    stages = tuple(PlanStage(f"s{s}", draw(seconds), draw(loads), fits=("whole",)) for s in range(n))
    devices = tuple(PlanDevice(f"d{d}", draw(speeds)) for d in range(draw(st.integers(1, n_devices))))
    needs = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, s - 1), max_size=2)))) if s else () for s in range(n)
    )
    is_graph = graphs and draw(st.booleans())
    return Problem(stages, devices, draw(st.integers(1, n_items)), needs=needs if is_graph else ())


def problem_of(times: list[tuple[float, float]], fleet: list[float], n_items: int, **more) -> Problem:
    stages = tuple(PlanStage(f"s{n}", *one, fits=("whole",)) for n, one in enumerate(times))
    return Problem(
        stages, tuple(PlanDevice(f"d{n}", speed) for n, speed in enumerate(fleet)), n_items, **more
    )


def units_of(plan: Plan, stage: str) -> list[Unit]:
    return [unit for phase in plan.phases for unit in phase.units if unit.stage == stage]


def shortest(problem: Problem, known_s: float) -> float:
    """The least makespan of all schedules, by trying every one that is below ``known_s``: the slow twin.

    A device keeps what it loaded, and loads while it waits, ahead, too: no real plan has it easier.
    """
    graph, stages = problem.graph, problem.stages
    best = [known_s]
    fastest = max(device.speed for device in problem.devices)
    tails = graph.longest_after([stage.item_s / fastest for stage in stages])
    left = [(stage, item) for stage in range(len(stages)) for item in range(problem.n_items)]

    def go(free: tuple, loaded: tuple, ends: dict) -> None:  # free: from when, and how long it waited before
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
                (since, waited), load_s = free[number], stages[stage].load_s * (stage not in loaded[number])
                begin = max(since + max(0.0, load_s - waited), ready)
                stop = begin + stages[stage].item_s / device.speed
                if stop + tails[stage] < best[0] * (1 - 1e-9):
                    go(
                        (*free[:number], (stop, waited + begin - since - load_s), *free[number + 1 :]),
                        (*loaded[:number], loaded[number] | {stage}, *loaded[number + 1 :]),
                        {**ends, (stage, item): stop},
                    )

    go(((0.0, 0.0),) * len(problem.devices), (frozenset(),) * len(problem.devices), {})
    return best[0]


@settings(max_examples=examples(80), deadline=None)
@given(problem=problems(4, 3, 2, graphs=True))
@example(problem_of([(1.0, 0.0), (0.1, 1.0), (0.1, 1.0)], [0.25, 0.5], 1))  # both are loaded ahead
def test_tiny_jobs_against_every_schedule(problem: Problem) -> None:
    assume(len(problem.stages) * problem.n_items <= 6)
    plan = make_plan(problem)
    assert plan.makespan_s is not None
    best = shortest(problem, plan.makespan_s * 1.001)
    assert least_time(problem) <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= plan.makespan_s <= best * (1.35 if problem.graph.is_chain else 1.5)


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(5, graphs=True), has_models=st.booleans(), chance=st.randoms(use_true_random=False))
def test_never_below_the_bound_and_never_above_a_candidate(
    problem: Problem, has_models: bool, chance
) -> None:
    """``has_models``: a replan's devices, which hold models, or have them parked and so back sooner."""
    problem = with_models(problem, chance) if has_models else problem
    plan = make_plan(problem)
    bound_s = least_time(problem)
    assert plan.makespan_s is not None
    assert plan.bound_s == bound_s
    assert plan.makespan_s >= bound_s
    for candidate in generate_candidates(problem, bound_s):
        outcome = simulate_phases(problem, candidate.phases)
        assert outcome.makespan_s >= bound_s * (1 - 1e-9)
        assert plan.makespan_s <= outcome.makespan_s * (1 + 1e-9)
        if math.isfinite(outcome.makespan_s):  # else a limit was too small
            check_order(problem, outcome.slices)
    check_complete(problem, plan)


def check_order(problem: Problem, slices: list[TimelineSlice]) -> None:
    """No stage begins more items than what it needs has ended."""
    work = [[one for one in slices if (one.kind, one.stage) == ("work", s.name)] for s in problem.stages]
    begins = [sorted(one.start_s for one in mine) for mine in work]
    ends = [sorted(one.stop_s for one in mine) for mine in work]
    for stage, needs in enumerate(problem.graph.needs):
        assert len(ends[stage]) == problem.n_items
        for need in needs:
            for n_before, begin in enumerate(begins[stage]):
                assert bisect.bisect_right(ends[need], begin + 1e-9) > n_before


def with_models(problem: Problem, chance: random.Random) -> Problem:
    devices = []
    for device in problem.devices:
        parked = [stage for stage in problem.stages if chance.random() < 0.5]
        returns = tuple((stage.name, stage.load_s * chance.choice([0, 0.1, 0.7])) for stage in parked)
        held = tuple(stage.name for stage in problem.stages if stage not in parked and chance.random() < 0.2)
        devices.append(replace(device, returns=returns, holds=held[:1]))
    return replace(problem, devices=tuple(devices))


def planned(problem: Problem, mode: str = "auto") -> tuple[Plan | None, ConfigError | None]:
    try:
        return make_plan(problem, mode), None
    except ConfigError as error:
        return None, error


def check_complete(problem: Problem, plan: Plan) -> None:
    """Every task is dealt once, no device does two things at a time, nothing is worked on before its load."""
    for number, stage in enumerate(problem.stages):
        units = units_of(plan, stage.name)
        assert sum(unit.n_items for unit in units) == problem.n_left(number)
        assert all(unit.limit is None or unit.n_items <= unit.limit for unit in units)
    for device in problem.devices:
        slices = sorted((s for s in plan.slices if s.device == device.id), key=lambda s: s.start_s)
        in_flight = {
            unit.fit.in_flight for phase in plan.phases for unit in phase.units if device.id in unit.devices
        }
        if in_flight <= {1}:
            assert all(a.stop_s <= b.start_s + 1e-6 for a, b in itertools.pairwise(slices))
        assert all(s.stop_s <= (plan.makespan_s or 0) + 1e-6 or s.kind == "load" for s in slices)


@settings(max_examples=examples(30), deadline=None)
@given(problem=problems(), mode=st.sampled_from(MODES))
def test_every_mode_is_that_mode_or_says_why_not(problem: Problem, mode: str) -> None:
    plan, refused = planned(problem, mode)
    if plan is None:
        assert refused is not None
        assert refused.hint
        return
    assert plan.mode == mode
    assert plan.makespan_s is not None
    assert plan.makespan_s >= make_plan(problem).makespan_s * (1 - 1e-9)  # type: ignore[operator]
    check_complete(problem, plan)


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(), mode=st.sampled_from(["auto", *MODES]), seed=st.integers(0, 10**6))
def test_no_stage_is_planned_where_it_may_not_run(problem: Problem, mode: str, seed: int) -> None:
    rng, names = random.Random(seed), [stage.name for stage in problem.stages]
    devices = tuple(
        replace(device, barred=frozenset(name for name in names if rng.random() < 0.4))
        for device in problem.devices
    )
    stages = tuple(replace(s, weights=SPLIT, fits=PlanStage("", 1.0).fits) for s in problem.stages)
    problem = replace(problem, stages=stages, devices=devices)
    can_run = all(any(name not in device.barred for device in devices) for name in names)
    plan, refused = planned(problem, mode)
    if plan is None:
        assert refused is not None
        assert refused.hint
        assert mode != "auto" or not can_run
        assert can_run or "may run on" in refused.message
        return
    barred = {device.id: device.barred for device in devices}
    units = [unit for phase in plan.phases for unit in phase.units]
    assert not any(unit.stage in barred[device] for unit in units for device in unit.devices)
    assert plan.makespan_s is not None
    assert plan.makespan_s >= least_time(problem) * (1 - 1e-9)
    check_complete(problem, plan)


@settings(max_examples=examples(30), deadline=None)
@given(problem=problems(), n_over=st.integers(1, 3), more=st.integers(0, 25))
def test_a_stage_of_which_nothing_is_left_costs_nothing_and_need_not_fit(
    problem: Problem, n_over: int, more: int
) -> None:
    n_over = min(n_over, len(problem.stages) - 1)
    rest = replace(problem, stages=problem.stages[n_over:])
    rest = replace(rest, done=(min(more, problem.n_items - 1), *(0,) * (len(rest.stages) - 1)))
    huge = Weights(10**15)
    over = tuple(replace(stage, weights=huge) for stage in problem.stages[:n_over])
    devices = tuple(replace(device, free_bytes=1) for device in problem.devices)
    done = (problem.n_items,) * n_over + rest.done
    whole = replace(problem, stages=over + rest.stages, done=done, devices=devices)
    plan, alone = make_plan(whole), make_plan(replace(rest, devices=devices))
    assert plan == alone
    assert {unit.stage for phase in plan.phases for unit in phase.units} == {s.name for s in rest.stages}


@settings(max_examples=examples(20), deadline=None)
@given(problems(n_items=12, n_devices=4), st.sampled_from(POLICIES), st.sampled_from([0.01, 0.25, 0.5, 1.0]))
def test_another_device_never_makes_it_longer(problem: Problem, policy: str, slower: float) -> None:
    """A plan may leave it out, by whatever policy. One that may run nothing is as good as none."""
    problem = replace(problem, policy=policy)
    barred = PlanDevice("barred", 1.0, barred=frozenset(stage.name for stage in problem.stages))
    speed = min(slower, *(device.speed for device in problem.devices))
    before, same, more = (
        (make_plan(one).makespan_s, least_time(one))
        for one in (
            replace(problem, devices=(*problem.devices, *others))
            for others in ((), (barred,), (PlanDevice("more", speed),))
        )
    )
    assert same == pytest.approx(before)
    assert all(after <= first * (1 + 1e-9) for after, first in zip(more, before, strict=True))  # type: ignore[operator]


@pytest.mark.parametrize(("policy", "makespan_s"), [("static", 6.0), ("pull:4", 8.0)])
def test_a_slow_device_is_left_out(policy: str, makespan_s: float) -> None:
    """Counted by hand: 18 items of 1 s on three equal devices are six rounds, or by four 8, 6 and 4 s."""
    problem = problem_of([(1.0, 0.0)], [1.0] * 3, 18, policy=policy)
    more = problem_of([(1.0, 0.0)], [*[1.0] * 3, 0.05], 18, policy=policy)
    for one in (problem, more):
        assert make_plan(one).makespan_s == pytest.approx(makespan_s)
    assert "d3" in make_plan(more).candidates[0].label


@settings(max_examples=examples(12), deadline=None)
@given(problem=problems(n_items=12, n_devices=4), policy=st.sampled_from(POLICIES))
def test_a_plan_has_one_time_however_it_is_asked_for(problem: Problem, policy: str) -> None:
    problem = replace(problem, policy=policy)
    for told in best_of_each_mode(make_plan(problem)):
        if told.makespan_s is not None:
            best = make_plan(problem, told.mode)
            assert best.makespan_s is not None
            assert best.makespan_s <= told.makespan_s * (1 + 1e-9)
            if best.candidates[0].label == told.label:
                assert best.makespan_s == pytest.approx(told.makespan_s)


def test_what_was_not_compared_is_not_called_impossible() -> None:
    plan = make_plan(problem_of([(1.0, 1.0)] * 2, [1.0] * 3, 8), watch=lambda _: True)
    assert {one.why for one in plan.candidates[1:]} == {"not compared: the search ended before"}
    assert any("search" in note for note in plan.notes)


@settings(max_examples=examples(12), deadline=None)
@given(
    n_items=st.integers(1, 10**12), n_times=st.integers(1, 3), fleet=st.lists(speeds, min_size=1, max_size=4)
)
def test_the_items_of_a_plan_are_those_that_were_given(
    n_items: int, n_times: int, fleet: list[float]
) -> None:
    """As coarse a search of fewer tasks, which takes a fifteenth of the time."""
    problem = problem_of([(1.0, 1.0), (0.5, 0.0)], fleet * n_times, n_items)
    with patch.multiple(planner, FEWEST_TASKS=100, ROUNDS=3, MOST_EXACT_TASKS=1000):
        plan = make_plan(problem)
    for stage in problem.stages:
        assert sum(unit.n_items for unit in units_of(plan, stage.name)) == n_items
        assert all(0 <= unit.n_items <= (unit.limit or n_items) for unit in units_of(plan, stage.name))


fleets = st.lists(st.sampled_from([4, 8, 12, 22, 45]), min_size=1, max_size=6)
weights = st.builds(Weights, st.integers(0, 2 * GIB), st.just(GIB // 2), st.sampled_from([0, 4, 30, 60]))


@settings(max_examples=examples(50), deadline=None)
@given(held=st.lists(weights, min_size=1, max_size=3), free=fleets, activation=st.sampled_from([0, GIB]))
def test_memory_is_respected_or_refused_with_figures(held, free, activation) -> None:
    stages = tuple(
        PlanStage(f"s{n}", 2.0, 5.0, weights=w, activation_bytes=activation, n_passes=4)
        for n, w in enumerate(held)
    )
    devices = tuple(PlanDevice(f"d{n}", 1.0, size * GIB) for n, size in enumerate(free))
    problem = Problem(stages, devices, 8, context_bytes=GIB // 2)
    plan, refused = planned(problem)
    if plan is None:
        assert refused is not None
        assert "GiB" in refused.message
        assert refused.hint
        return
    assert plan.makespan_s is not None
    assert plan.bound_s is not None
    assert plan.makespan_s >= plan.bound_s
    for memory in plan.memory:
        assert memory.free_bytes is not None
        assert all(needed is not None and needed <= memory.free_bytes for needed in memory.phase2bytes)
    for phase in plan.phases:
        for unit in phase.units:
            stage = next(s for s in stages if s.name == unit.stage)
            assert len(unit.fit.device2bytes) == len(unit.devices)
            if unit.fit.name == "layer_split":
                assert sum(unit.fit.device2blocks) == stage.weights.n_blocks  # type: ignore[union-attr]
    check_complete(problem, plan)


def test_a_model_that_fits_nowhere_whole_is_refused_with_what_it_needs_and_what_to_do() -> None:
    stage = PlanStage("denoise", 17.8, 30.0, Weights(GIB // 4, int(0.633 * GIB), 60), int(2.5 * GIB))
    devices = tuple(PlanDevice(f"cuda:{n}", 1.0, int(22.35 * GIB)) for n in range(6))
    with pytest.raises(ConfigError) as caught:
        make_plan(Problem((replace(stage, fits=("whole",)),), devices, 250, context_bytes=int(0.6 * GIB)))
    assert "denoise needs 41.3 GiB, the largest device has 22.3 GiB free" in caught.value.message
    assert caught.value.hint is not None
    assert "split its layers over 2 devices" in caught.value.hint
    assert "stream its blocks" in caught.value.hint


@pytest.mark.parametrize("n_tasks", [(4, 4, 1), (4, 2, 2)])
def test_samples_and_the_best_of_them(n_tasks: tuple[int, ...]) -> None:
    stages = tuple(PlanStage(f"s{at}", 1.0, 2.0, n_tasks=n) for at, n in enumerate(n_tasks))
    problem = Problem(stages, (PlanDevice("a"), PlanDevice("b", 0.5)), 6)
    plan = make_plan(problem)
    check_complete(problem, plan)
    assert plan.makespan_s is not None
    assert plan.makespan_s >= 6 * sum(n_tasks) / 1.5


@pytest.mark.parametrize("n_devices", [1, 3, 64])
def test_very_many_items_are_taken_together_and_say_so(n_devices: int) -> None:
    """Oracle: all work by the sum of speeds, and the loads; the 64 are nearly alike, and part late."""
    n_items, rel = {1: (300_000, 1e-9), 3: (2_000_000, 0.02), 64: (10_000, 0.04)}[n_devices]
    fleet = [1.0, 0.5, 1.0][:n_devices] if n_devices < 64 else [1 + n / 3400 for n in range(64)]
    with patch.object(planner, "MOST_EVENTS", 6000):
        plan = make_plan(problem_of([(1.0, 5.0), (0.5, 5.0)], fleet, n_items))
    assert plan.makespan_s == pytest.approx(1.5 * n_items / sum(fleet) + 10, rel=rel)
    assert any("simulated as" in note for note in plan.notes)


@pytest.mark.slow
def test_a_stage_that_fits_few_kinds_is_known_to_the_bound_and_shared_by_the_plan() -> None:
    stages = (
        PlanStage("encode", 0.3, 15.0, Weights(15 * GIB), GIB),
        PlanStage("denoise", 17.8, 30.0, Weights(38 * GIB), 3 * GIB),
        PlanStage("decode", 0.6, 5.0, Weights(GIB), 3 * GIB),
        PlanStage("finish", 3.4, 20.0, Weights(24 * GIB), GIB),
    )
    kinds = [(1.0, 76), (0.6, 44), (0.35, 22), (0.5, 70)]
    fleet = tuple(PlanDevice(f"d{n}", speed, gib * GIB) for n in range(64) for speed, gib in [kinds[n // 16]])
    problem = Problem(tuple(replace(s, fits=("whole",)) for s in stages), fleet, 4000)
    plan = make_plan(problem)
    assert plan.ratio is not None
    assert plan.ratio <= 1.08
    for memory in plan.memory:
        assert memory.free_bytes is not None
        assert all(needed is not None and needed <= memory.free_bytes for needed in memory.phase2bytes)
    check_complete(problem, plan)
    able_s = sum(device.speed for device in problem.devices if device.free_bytes > 41 * GIB)  # type: ignore[operator]
    assert plan.bound_s is not None
    assert plan.bound_s >= 4000 * (17.8 + 3.4) / able_s


def test_the_bound_lets_a_device_that_is_ready_later_load_by_then() -> None:
    stages = (PlanStage("a", 0.1, 5.0), PlanStage("b", 1.0, 1.0))
    problem = Problem(stages, (PlanDevice("x"), PlanDevice("y", ready_s=4.0)), 20)
    # y is ready before the first item of b is there: it loses only what it takes to load beyond that.
    assert least_time(problem) <= 5.1 + 20 * 1.0
    assert make_plan(problem).makespan_s >= least_time(problem)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": ()}, "nothing to plan"),
        ({"devices": ()}, "nothing to plan"),
        ({"devices": (PlanDevice("a"), PlanDevice("a"))}, "two devices have the same name: a"),
        ({"devices": (PlanDevice("a", 0.0),)}, "speed 0.0"),
        ({"stages": (PlanStage("s", -1.0),)}, "-1.0 s an item"),
        ({"done": (1, 1)}, "2 counts"),
    ],
)
def test_what_cannot_be_planned(change, said) -> None:
    problem = problem_of([(1.0, 0.0)], [1.0], 3)
    with pytest.raises(ConfigError, match=said):
        make_plan(replace(problem, **change))
    with pytest.raises(ConfigError, match="unknown mode 'fast'"):
        make_plan(problem, "fast")


def test_host_memory_is_a_budget_for_all_devices_that_stream() -> None:
    stage = PlanStage(
        "denoise", 17.8, 30.0, Weights(GIB, GIB, 40), GIB, n_passes=50, fits=("resident_stream",)
    )
    devices = tuple(PlanDevice(f"cuda:{n}", 1.0, 22 * GIB) for n in range(4))
    problem = Problem((stage,), devices, 12, host_bytes=100 * GIB)
    plan = make_plan(problem)
    held = {unit.fit.host_bytes for phase in plan.phases for unit in phase.units}
    assert held == {22 * GIB}
    assert "18 blocks resident, the rest streamed" in {str(u.fit) for p in plan.phases for u in p.units}
    with pytest.raises(ConfigError, match="denoise needs"):
        make_plan(replace(problem, host_bytes=80 * GIB))


@pytest.mark.parametrize("mode", ["stage_parallel", "swap", "data_parallel", "single", "auto"])
@pytest.mark.parametrize("done", [(0, 0), (6, 0), (6, 5)])
def test_a_job_is_gone_on_with_in_its_mode_also_when_its_first_stage_is_done(
    mode: str, done: tuple[int, int]
) -> None:
    problem = replace(problem_of([(1.0, 0.5), (1.0, 0.5)], [1.0, 1.0, 1.0], 6), done=done)
    plan = make_plan(problem, mode)
    assert plan.mode == mode or mode == "auto"


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
    problem = Problem(stages, tuple(PlanDevice(f"d{n}") for n in range(4)), 1, needs=((), (0,), (0,), (1, 2)))
    assert abs(least_time(problem) - 7.0) < 1e-6
    assert abs((make_plan(problem).makespan_s or 0) - 7.0) < 1e-6


def test_a_graph_knows_who_comes_before_and_after() -> None:
    graph = StageGraph(((), (0,), (0,), (1, 2)))
    assert (graph.next, graph.ends, graph.is_chain) == (((1, 2), (3,), (3,), ()), {3}, False)
    assert (graph.before[3], graph.after[0], graph.beside(1)) == ({0, 1, 2}, {1, 2, 3}, {2})
    assert chain(3).needs == ((), (0,), (1,))
    assert chain(3).is_chain
