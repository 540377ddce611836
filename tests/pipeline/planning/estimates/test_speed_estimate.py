"""Tests estimates of speeds and times, and the snapshot of a run that the planner is given."""

from collections.abc import Sequence

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.plan import Fit, Phase, Unit
from evenload.pipeline.planning.estimates.speed_estimate import MeanTime, estimate_speeds, find_drift
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem
from evenload.pipeline.run.replanner import described, state_of_run, tasks_left, timings_of
from evenload.pipeline.stage import Item

NAMES = ("edit", "score")


def asked(n_devices: int = 3, n_items: int = 10, **tasks: int) -> Problem:
    stages = tuple(PlanStage(name, seconds, 1.0, n_tasks=tasks.get(name, 1)) for name, seconds in
                   zip(NAMES, (5.0, 3.0), strict=True))  # fmt: skip
    return Problem(stages, tuple(PlanDevice(f"d{n}") for n in range(n_devices)), n_items)


@given(
    st.lists(st.floats(0.25, 4.0), min_size=2, max_size=5), st.floats(0.3, 3.0), st.floats(0.3, 3.0),
)  # fmt: skip
@settings(deadline=None, max_examples=examples(60))
def test_with_every_pair_measured_the_predictions_are_right(speeds, edit, score) -> None:
    """Speeds and seconds by themselves are known but for a common factor; what they predict is not."""
    problem = asked(len(speeds))
    item_s = {"edit": 5.0 * edit, "score": 3.0 * score}
    timings = {
        (f"d{d}", name): MeanTime(20, seconds / speed)
        for d, speed in enumerate(speeds) for name, seconds in item_s.items()
    }  # fmt: skip
    seen = estimate_speeds(problem, timings)
    for (device, stage), timing in timings.items():
        assert seen.item_s[stage] / seen.speed[device] == pytest.approx(timing.mean_s, rel=0.1)


def test_nothing_measured_is_as_planned_and_what_is_far_off_is_believed() -> None:
    problem = asked()
    nothing = estimate_speeds(problem, {})
    assert nothing.item_s == pytest.approx({"edit": 5.0, "score": 3.0})
    assert nothing.speed == pytest.approx({"d0": 1.0, "d1": 1.0, "d2": 1.0})
    slow = estimate_speeds(problem, {("d0", "edit"): MeanTime(1, 20.0)}, {"edit": "measured"})
    assert 0.25 < slow.speed["d0"] < 0.5
    assert slow.item_s["edit"] < 6.5
    little = estimate_speeds(problem, {("d0", "edit"): MeanTime(1, 6.0)}, {"edit": "measured"})
    assert 0.9 < little.speed["d0"] < 1.0


def test_devices_that_did_different_stages_are_slow_rather_than_a_stage_long_that_is_known() -> None:
    timings = {("d0", "edit"): MeanTime(10, 5.0), ("d1", "score"): MeanTime(10, 12.0)}
    known = estimate_speeds(asked(2), timings, {"edit": "given", "score": "given"})
    unknown = estimate_speeds(asked(2), timings, {"edit": "given"})
    assert known.speed["d1"] < 0.5 < unknown.speed["d1"]
    assert known.item_s["score"] < 6 < unknown.item_s["score"]


def test_drift_is_what_chance_does_not_explain() -> None:
    problem = asked()
    sources = dict.fromkeys(NAMES, "given")

    def drift(n: int, mean_s: float) -> dict[str, float]:
        others = {(f"d{d}", "edit"): MeanTime(n, 5.0) for d in (1, 2)}
        seen = estimate_speeds(problem, {**others, ("d0", "edit"): MeanTime(n, mean_s)}, sources)
        return find_drift(estimate_speeds(problem, {}), seen, 0.2)

    assert drift(2, 7.5) == {}
    assert list(drift(20, 7.5)) == ["d0"]
    assert list(drift(2, 12.0)) == ["d0"]
    assert drift(20, 5.8) == {}
    twice = estimate_speeds(problem, {(f"d{d}", "edit"): MeanTime(20, 10.0) for d in range(3)}, sources)
    assert find_drift(estimate_speeds(problem, {}), twice, 0.2)["edit"] == pytest.approx(2.0, rel=0.2)
    assert twice.speed == pytest.approx({"d0": 1.0, "d1": 1.0, "d2": 1.0})


def test_what_is_left_counts_samples_failures_and_the_best() -> None:
    rules = [StageRule("edit", samples=4), StageRule("score", best_by="s")]
    flow = ItemFlow(rules, [(Item(at, str(at)), {}) for at in range(3)])
    problem = asked(n_items=3, edit=4, score=4)
    counts = [stage.n_tasks for stage in problem.stages]
    flow.begin()
    assert tasks_left(flow, counts) == [12, 12]
    first, second, third, fourth = flow.strands_of[0]
    flow.done(StageTask(0, first), {})
    flow.done(StageTask(0, second), {})
    flow.done(StageTask(1, second), {"s": 1.0})
    flow.failed(StageTask(0, third), ItemFailure("edit", "E", "no"))
    assert tasks_left(flow, counts) == [8 + 1, 8 + 2]
    assert fourth in flow.strands_of[0]


def test_where_a_run_is() -> None:
    problem = asked(4)
    flow = ItemFlow([StageRule(name) for name in NAMES], [(Item(at, str(at)), {}) for at in range(10)])
    dispatcher = GroupScheduler(_swap_phases(NAMES, ["d0", "d1", "d2", "d3"]), NAMES)
    dispatcher.add(flow.begin())
    for device in ("d0", "d1"):
        dispatcher.up(device)
        dispatcher.loaded(device, 0, Fit())
    dispatcher.decide(100.0)
    dispatcher.ended("d0", StageTask(0, 0), 4.0)
    dispatcher.answered("d0", 0.0)
    dispatcher.drain("d2")
    dispatcher.refused("d3", 1, "no memory")
    flow.done(StageTask(0, 0), {})
    seen = estimate_speeds(problem, timings_of(dispatcher, 102.0))
    state = state_of_run(problem, dispatcher, flow, seen, 102.0)
    assert state.done == (2, 0)
    devices = {device.id: device for device in state.devices}
    assert set(devices) == {"d0", "d1"}
    assert devices["d0"].holds == ("edit",)
    assert devices["d0"].ready_s == 0.0
    assert 0 < devices["d1"].ready_s <= 5.0
    late = timings_of(dispatcher, 140.0)
    assert late["d0", "edit"] == MeanTime(1, 4.0)
    assert late["d1", "edit"] == MeanTime(1, 40.0)


def test_whose_partner_left_takes_part_in_the_next_plan() -> None:
    """A group of both can work no more, which says nothing against the one that is there."""
    split = Fit("layer_split")
    phases = tuple(Phase((Unit(("d0", "d1"), name, split),), (name,)) for name in NAMES)
    flow = ItemFlow([StageRule(name) for name in NAMES], [(Item(at, str(at)), {}) for at in range(10)])
    dispatcher = GroupScheduler(phases, NAMES)
    dispatcher.add(flow.begin())
    dispatcher.leave("d1", "it was lost")
    seen = estimate_speeds(asked(2), {})
    state = state_of_run(asked(2), dispatcher, flow, seen, 0.0)
    assert [device.id for device in state.devices] == ["d0"]


def test_a_device_that_joins_is_as_fast_as_it_is_beside_one_that_is_known() -> None:
    stages = asked().stages
    again = Problem(stages, (PlanDevice("d0", speed=0.5), PlanDevice("new", speed=1.0)), 10)
    found = described(asked(), again, "new")
    assert found is not None
    assert found.speed == 2.0
    assert described(asked(), again, "gone") is None


def _swap_phases(stages: Sequence[str], devices: Sequence[str]) -> tuple[Phase, ...]:
    """Stage after stage, each whole on every device."""
    return tuple(Phase(tuple(Unit((device,), stage) for device in devices), (stage,)) for stage in stages)
