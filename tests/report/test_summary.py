"""The numbers of a run: counted once, bounded below, and the same whenever they are asked for."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.balance.bound import bound_of_spans
from evenload.events import (
    Idle,
    ItemFailed,
    ItemFinished,
    Moved,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)
from evenload.report.tally import N_RECENT_NAMES, Tally, summarise

DEVICES = {"a": {"name": "A"}, "b": {"name": "B"}}


def span(index, start, stop, device="a", n=1, stage="map", **more):
    return Span(stage, device, more.pop("worker", device), index, n, start, stop, **more)


def test_a_whole_run(sample_run):
    events = list(sample_run(n_items=24))
    summary = summarise(events)
    assert (summary.total, summary.n_done, summary.n_failed, summary.status) == (24, 24, 0, "done")
    assert summary.startup_s == pytest.approx(0.6 + 0.002)
    assert summary.bound_s < summary.work_s < summary.wall_s
    assert summary.ratio == pytest.approx(summary.work_s / summary.bound_s)
    assert summary.bound_s == pytest.approx(sum(stage.bound_s for stage in summary.stages))
    assert [stage.stage for stage in summary.stages] == ["restore", "score"]
    assert summary.n_duplicates >= 1
    assert summary.wasted_s > 0
    assert {device.device for device in summary.devices} == {"cuda:0", "cuda:1", "cpu:0", "cpu:1"}
    assert all(0 < device.utilisation <= 1 for device in summary.devices)
    assert summary.slowest[0].seconds == max(one.seconds for one in summary.slowest)
    assert summary.slowest[0].item.startswith("picture-")


def test_the_bound_is_that_of_the_good_spans():
    rows = [span(0, 0.0, 4.0), span(1, 0.0, 2.0, "b"), span(2, 2.0, 4.0, "b")]
    summary = summarise([RunStarted(0.0, "r", 0.0, 3, DEVICES), *rows, RunFinished(4.0, "done")])
    expected = bound_of_spans([("a", 4.0, 1), ("b", 2.0, 1), ("b", 2.0, 1)])
    assert summary.bound_s == pytest.approx(expected.bound_s)
    assert summary.imbalance == pytest.approx(1.0)
    assert summary.utilisation == pytest.approx(1.0)


def test_busy_time_counts_not_the_way_there_and_back():
    summary = summarise([span(0, 0.0, 4.0, busy_s=3.0)])
    device = summary.devices[0]
    assert (device.busy_s, device.overhead_s, device.idle_s) == (3.0, 1.0, 0.0)
    assert summary.bound_s == pytest.approx(3.0)


def test_failures_are_final_and_counted_once():
    rows = [
        span(0, 0.0, 1.0, n=4, status="failed"),
        ItemFailed(1.0, "map", 2, "two", "ValueError", "no", "a", "Traceback"),
        ItemFailed(1.0, "map", 2, "two", "ValueError", "no", "a", "Traceback"),
    ]
    summary = summarise([RunStarted(0.0, "r", 0.0, 4, DEVICES), *rows, RunFinished(1.0, "failures")])
    assert (summary.n_done, summary.n_failed) == (3, 1)
    assert summary.failures_by_error == {"ValueError": 2}
    assert summary.failures[0].traceback == "Traceback"


def test_lost_and_superseded_work_is_waste_not_progress():
    rows = [
        span(0, 0.0, 2.0, status="lost"),
        WorkerExited(2.0, "a", "a", "killed by signal 9"),
        span(0, 0.0, 3.0, "b"),
        span(0, 2.0, 3.0, "a", worker="a2", status="superseded", duplicate=True),
    ]
    summary = summarise(rows)
    assert (summary.n_done, summary.n_lost_workers, summary.n_duplicates, summary.n_redone) == (1, 1, 1, 1)
    assert summary.wasted_s == pytest.approx(3.0)
    assert summary.bound_s == pytest.approx(3.0)
    assert summary.unmeasured == ("a",)


def test_waits_are_split_by_reason():
    waits = [Idle("b", 1.0, 3.0, "tail"), Idle("b", 3.0, 4.0, "empty")]
    summary = summarise([span(0, 0.0, 4.0), span(1, 0.0, 1.0, "b"), *waits])
    assert summary.waits == {"tail": 2.0, "empty": 1.0}
    assert summary.devices[1].idle_s == pytest.approx(3.0)


def test_a_device_that_did_nothing_is_part_of_the_imbalance():
    summary = summarise([RunStarted(0.0, "r", 0.0, 1, DEVICES), span(0, 0.0, 1.0)])
    assert summary.imbalance == pytest.approx(2.0)
    assert summary.unmeasured == ("b",)
    assert summary.status == "unfinished"


def test_a_device_with_two_workers_is_two_machines():
    rows = [
        WorkerStarted(0.0, "a", "one"),
        WorkerStarted(0.0, "a", "two"),
        span(0, 0.0, 2.0, worker="one"),
        span(1, 0.0, 2.0, worker="two"),
    ]
    summary = summarise(rows)
    assert summary.devices[0].n_workers == 2
    assert summary.devices[0].utilisation == pytest.approx(1.0)
    assert summary.bound_s == pytest.approx(2.0)


def test_stages_in_turn_add_up_and_stages_at_once_do_not():
    in_turn = [span(0, 0.0, 2.0, stage="x"), span(0, 5.0, 7.0, stage="y")]
    summary = summarise(in_turn)
    assert (summary.work_s, summary.bound_s) == pytest.approx((4.0, 4.0))
    at_once = [span(0, 0.0, 2.0, stage="x"), span(0, 0.5, 2.5, "b", stage="y")]
    summary = summarise(at_once)
    assert summary.work_s == pytest.approx(2.5)
    assert summary.bound_s <= 2.5


def test_items_that_do_not_follow_one_another_are_known_one_by_one():
    rows = [span(0, 0.0, 1.0, n=2, items=(0, 7)), span(7, 0.0, 1.0, "b", n=2, items=[7, 3])]
    assert summarise(rows).n_done == 3


def test_restored_items_are_done_without_any_work():
    summary = summarise(
        [Restored(0.0, "map", 0, 4), Restored(0.0, "map", 6, 2, (6, 9)), span(4, 0.0, 1.0, n=2)]
    )
    assert (summary.n_done, summary.n_failed, summary.bound_s) == (8, 0, 1.0)


def test_size_hints_are_used_for_speeds():
    rows = [span(0, 0.0, 10.0, cost=100.0), span(1, 0.0, 20.0, "b", n=1000, cost=20.0)]
    assert summarise(rows).bound_s == pytest.approx(120 / 11)


def test_an_item_is_done_when_it_is_through_the_last_stage_that_was_planned():
    started = RunStarted(0.0, "r", 0.0, 1, DEVICES, {"stages": ["x", "y"]})
    assert summarise([started, span(0, 0.0, 1.0, stage="x")]).n_done == 0
    assert summarise([started, span(0, 0.0, 1.0, stage="x"), span(0, 1.0, 2.0, stage="y")]).n_done == 1


def test_moves_are_counted():
    summary = summarise([Moved(1.0, "a", "b", 3), Moved(2.0, "a", "b", 2)])
    assert (summary.n_moves, summary.n_moved_items) == (2, 5)


def test_a_plain_map_is_over_when_its_stage_is():
    rows = [StageStarted(0.0, "map", 1), span(0, 0.0, 1.0)]
    assert summarise(rows).status == "unfinished"
    finished = summarise([*rows, StageFinished(1.0, "map")])
    assert (finished.status, finished.name) == ("done", "map")
    failed = ItemFailed(1.0, "map", 0, "0", "ValueError", "no")
    assert summarise([*rows, failed, StageFinished(1.0, "map")]).status == "failures"


def test_nothing_at_all():
    summary = summarise([])
    assert (summary.ratio, summary.n_done, summary.status, summary.imbalance) == (None, 0, "unfinished", 1.0)
    json.dumps(summary.to_json(), allow_nan=False)
    assert "0 done" in summary.headline()


def test_json_has_a_schema_and_no_nan():
    rows = [RunStarted(0.0, "r", 0.0, 1, DEVICES, {"loss": float("nan")}), span(0, 0.0, 1.0)]
    shown = summarise(rows).to_json()
    assert shown["schema"] == 1
    assert shown["facts"] == {"loss": None}
    json.dumps(shown, allow_nan=False)


def test_names_of_the_slowest_survive_a_long_run():
    tally = Tally()
    tally.add(span(0, 0.0, 100.0))
    tally.add(ItemFinished(100.0, "map", 0, "the long one"))
    for index in range(1, N_RECENT_NAMES * 2):
        tally.add(span(index, 100.0, 100.1))
        tally.add(ItemFinished(100.1, "map", index, f"item {index}"))
    assert tally.summary().slowest[0].item == "the long one"
    assert len(tally._names) <= N_RECENT_NAMES + 20


def test_it_may_be_asked_at_any_time(sample_run):
    tally, seen = Tally(), 0
    for event in sample_run(n_items=12, fails=(2,), loses=(5,)):
        tally.add(event)
        now = tally.summary()
        assert now.n_done >= 0
        seen += 1
    assert seen > 20
    assert tally.summary() == tally.summary()


spans = st.lists(
    st.builds(
        lambda stage, device, index, n, start, length, status: Span(
            stage, device, device, index, n, start, start + length, 0.0, status
        ),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 30),
        st.integers(1, 5),
        st.floats(0, 50),
        st.floats(0.001, 20),
        st.sampled_from(["ok", "ok", "failed", "lost", "superseded"]),
    ),
    max_size=30,
)


@given(spans)
def test_any_spans_make_sense(rows):
    summary = summarise([RunStarted(0.0, "r", 0.0, None, {"a": {}}), *rows, StageFinished(80.0, "x")])
    assert 0 <= summary.n_done <= 70
    assert summary.imbalance >= 1.0
    assert all(0 <= device.utilisation <= 1 for device in summary.devices)
    json.dumps(summary.to_json(), allow_nan=False)


@given(spans)
def test_spans_that_do_not_overlap_take_no_less_than_the_bound(rows):
    """The ratio is at least one in any run whose devices do one thing at a time."""
    clock, laid = {}, [StageStarted(0.0, "x")]
    for one in rows:
        start = clock.get(one.device, 0.0)
        clock[one.device] = start + one.stop_s - one.start_s
        laid.append(Span("x", one.device, one.device, one.index, one.n_items, start, clock[one.device]))
    summary = summarise(laid)
    assert summary.ratio is None or summary.ratio >= 1 - 1e-9


def test_an_item_counts_for_the_device_whose_result_came_first():
    """Oracle: three items were given; b had the last of them before a had gone through all."""
    spans = [Span("map", "b", "b", 2, 1, 1.0, 2.0, duplicate=True), Span("map", "a", "a", 0, 3, 0.0, 3.0)]
    told = summarise([RunStarted(0.0, "r", 0.0, 3, {"a": {}, "b": {}}), *spans, RunFinished(3.0, "done")])
    assert {one.device: one.n_items for one in told.devices} == {"a": 2, "b": 1}
    assert sum(stage.n_done for stage in told.stages) == 3
