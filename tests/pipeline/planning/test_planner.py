"""No plan beats the bound, the chosen is the quickest tried, memory is respected, more devices never hurt."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import POLICIES

from evenload.errors import ConfigError
from evenload.pipeline.plan import Plan
from evenload.pipeline.planning.candidates import generate_candidates
from evenload.pipeline.planning.job_plan import best_of_each_mode
from evenload.pipeline.planning.least_time import least_time
from evenload.pipeline.planning.planner import MODES, make_plan
from evenload.pipeline.planning.simulate_plan import simulate_phases
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

GIB = 2**30
SPLIT = Weights(1, 1, 8)
seconds = st.sampled_from([0.1, 1.0, 2.5, 4.0, 10.0])
loads = st.sampled_from([0.0, 1.0, 5.0, 20.0])
speeds = st.sampled_from([0.25, 0.5, 1.0])


def stages_of(times: list[tuple[float, float]], **more) -> tuple[PlanStage, ...]:
    return tuple(PlanStage(f"s{n}", item_s, load_s, **more) for n, (item_s, load_s) in enumerate(times))


def problem_of(times: list[tuple[float, float]], fleet: list[float], n_items: int, **more) -> Problem:
    devices = tuple(PlanDevice(f"d{n}", speed) for n, speed in enumerate(fleet))
    return Problem(stages_of(times, fits=("whole",)), devices, n_items, **more)


problems = st.builds(
    problem_of,
    st.lists(st.tuples(seconds, loads), min_size=1, max_size=3),
    st.lists(speeds, min_size=1, max_size=5),
    st.integers(1, 25),
)


def shortest(problem: Problem) -> float:
    """The least makespan of all schedules, by trying every one of them: the slow twin.

    A device keeps what it loaded and may load while it waits: no real plan has it easier.
    """
    stages, n_devices = problem.stages, len(problem.devices)
    best = [math.inf]

    def go(
        free: tuple[float, ...], loaded: tuple[frozenset[int], ...], ready: tuple[tuple[float, ...], ...]
    ) -> None:
        if all(not times for times in ready):
            best[0] = min(best[0], max(free))
            return
        if max(free) >= best[0]:
            return
        for stage, times in enumerate(ready):
            if not times:
                continue
            for device in range(n_devices):
                load_s = 0.0 if stage in loaded[device] else stages[stage].load_s
                start = max(free[device] + load_s, times[0])
                stop = start + stages[stage].item_s / problem.devices[device].speed
                if stop >= best[0]:
                    continue
                following = [*ready]
                following[stage] = times[1:]
                if stage + 1 < len(stages):
                    following[stage + 1] = tuple(sorted((*ready[stage + 1], stop)))
                go(
                    (*free[:device], stop, *free[device + 1 :]),
                    (*loaded[:device], loaded[device] | {stage}, *loaded[device + 1 :]),
                    tuple(following),
                )

    go((0.0,) * n_devices, (frozenset(),) * n_devices, ((0.0,) * problem.n_items, *((),) * (len(stages) - 1)))
    return best[0]


@settings(max_examples=examples(60), deadline=None)
@given(
    times=st.lists(st.tuples(seconds, loads), min_size=1, max_size=2),
    fleet=st.lists(speeds, min_size=1, max_size=2),
    n_items=st.integers(1, 3),
)
def test_tiny_jobs_against_every_schedule(times, fleet, n_items) -> None:
    problem = problem_of(times, fleet, n_items)
    best = shortest(problem)
    plan = make_plan(problem)
    assert least_time(problem) <= best * (1 + 1e-9)
    assert plan.makespan_s is not None
    assert best * (1 - 1e-9) <= plan.makespan_s <= best * 1.35


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems, has_models=st.booleans(), chance=st.randoms(use_true_random=False))
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
    check_complete(problem, plan)


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
        units = [unit for phase in plan.phases for unit in phase.units if unit.stage == stage.name]
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
@given(problem=problems, mode=st.sampled_from(MODES))
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
@given(problem=problems, mode=st.sampled_from(["auto", *MODES]), seed=st.integers(0, 10**6))
def test_no_stage_is_planned_where_it_may_not_run(problem: Problem, mode: str, seed: int) -> None:
    rng, names = random.Random(seed), [stage.name for stage in problem.stages]
    devices = tuple(
        replace(device, barred=frozenset(name for name in names if rng.random() < 0.4))
        for device in problem.devices
    )
    problem = replace(
        problem, stages=tuple(replace(s, weights=SPLIT) for s in problem.stages), devices=devices
    )
    problem = replace(problem, stages=tuple(replace(s, fits=PlanStage("", 1.0).fits) for s in problem.stages))
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
@given(problem=problems, n_over=st.integers(1, 3), more=st.integers(0, 25))
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


@settings(max_examples=examples(30), deadline=None)
@given(problem=problems, policy=st.sampled_from(POLICIES), slower=st.sampled_from([0.01, 0.25, 0.5, 1.0]))
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


@settings(max_examples=examples(20), deadline=None)
@given(problem=problems, policy=st.sampled_from(POLICIES))
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
    n_items=st.integers(1, 10**15), n_times=st.integers(1, 3), fleet=st.lists(speeds, min_size=1, max_size=4)
)
def test_the_items_of_a_plan_are_those_that_were_given(
    n_items: int, n_times: int, fleet: list[float]
) -> None:
    plan = make_plan(problem := problem_of([(1.0, 1.0), (0.5, 0.0)], fleet * n_times, n_items))
    for stage in problem.stages:
        units = [unit for phase in plan.phases for unit in phase.units if unit.stage == stage.name]
        assert sum(unit.n_items for unit in units) == n_items
        assert all(0 <= unit.n_items <= (unit.limit or n_items) for unit in units)


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


def test_the_job_asked_for_layers_split_over_three_devices_each() -> None:
    stages = (
        PlanStage("encode", 0.11, 15.0, Weights(int(15.45 * GIB)), GIB),
        PlanStage(
            "denoise",
            17.8,
            30.0,
            Weights(GIB // 4, int(0.633 * GIB), 60),
            int(2.5 * GIB),
            int(0.06 * GIB),
            50,
        ),
        PlanStage("score", 1.0, 15.0, Weights(int(15.45 * GIB)), GIB),
    )
    devices = tuple(PlanDevice(f"cuda:{n}", 1.0, int(22.35 * GIB)) for n in range(6))
    problem = Problem(stages, devices, 250, context_bytes=int(0.6 * GIB))
    plan = make_plan(problem)
    groups = {len(u.devices) for phase in plan.phases for u in phase.units if u.stage == "denoise"}
    assert groups == {3}
    assert plan.ratio is not None
    assert plan.ratio < 1.12
    whole = replace(stages[1], fits=("whole",))
    with pytest.raises(ConfigError) as caught:
        make_plan(replace(problem, stages=(stages[0], whole, stages[2])))
    assert "denoise needs 41.3 GiB, the largest device has 22.3 GiB free" in caught.value.message
    assert caught.value.hint is not None
    assert "split its layers over 3 devices" in caught.value.hint
    assert "stream its blocks" in caught.value.hint


def test_samples_and_the_best_of_them() -> None:
    stages = (
        PlanStage("make", 1.0, 2.0, n_tasks=4),
        PlanStage("score", 0.5, 1.0, n_tasks=4),
        PlanStage("finish", 2.0, 1.0, n_tasks=1),
    )
    problem = Problem(stages, (PlanDevice("a"), PlanDevice("b", 0.5)), 6)
    plan = make_plan(problem)
    check_complete(problem, plan)
    assert plan.makespan_s is not None
    assert plan.makespan_s >= (24 * 1.0 + 24 * 0.5 + 6 * 2.0) / 1.5


def test_very_many_items_are_taken_together_and_say_so() -> None:
    problem = problem_of([(1.0, 5.0), (0.5, 5.0)], [1.0, 0.5, 1.0], 2_000_000)
    plan = make_plan(problem)
    assert plan.ratio is not None
    assert 1.0 <= plan.ratio < 1.02
    assert any("simulated as" in note for note in plan.notes)


def mixed_fleet(n_devices: int) -> tuple[PlanDevice, ...]:
    """Four kinds of unequal speed and memory."""
    kinds = [(1.0, 76), (0.6, 44), (0.35, 22), (0.5, 70)]
    return tuple(
        PlanDevice(f"d{n}", kinds[n * 4 // n_devices][0], kinds[n * 4 // n_devices][1] * GIB)
        for n in range(n_devices)
    )


@pytest.mark.slow
def test_a_stage_that_fits_few_kinds_is_known_to_the_bound_and_shared_by_the_plan() -> None:
    stages = (
        PlanStage("encode", 0.3, 15.0, Weights(15 * GIB), GIB),
        PlanStage("denoise", 17.8, 30.0, Weights(38 * GIB), 3 * GIB),
        PlanStage("decode", 0.6, 5.0, Weights(GIB), 3 * GIB),
        PlanStage("finish", 3.4, 20.0, Weights(24 * GIB), GIB),
    )
    problem = Problem(tuple(replace(s, fits=("whole",)) for s in stages), mixed_fleet(64), 4000)
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
        replace(problem, **change)


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown mode 'fast'"):
        make_plan(problem_of([(1.0, 0.0)], [1.0], 3), "fast")


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


def test_more_than_one_of_the_samples_goes_on() -> None:
    stages = (PlanStage("make", 1.0, n_tasks=4), PlanStage("end", 1.0, n_tasks=2))
    problem = Problem(stages, (PlanDevice("a"), PlanDevice("b")), 3)
    check_complete(problem, make_plan(problem))


@pytest.mark.parametrize("mode", ["stage_parallel", "swap", "data_parallel", "single", "auto"])
@pytest.mark.parametrize("done", [(0, 0), (6, 0), (6, 5)])
def test_a_job_is_gone_on_with_in_its_mode_also_when_its_first_stage_is_done(
    mode: str, done: tuple[int, int]
) -> None:
    problem = replace(problem_of([(1.0, 0.5), (1.0, 0.5)], [1.0, 1.0, 1.0], 6), done=done)
    plan = make_plan(problem, mode)
    assert plan.mode == mode or mode == "auto"
