"""The numbers of a run: counted once, bounded below, and the same whenever they are asked for."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.events import (
    Idle,
    ItemFailed,
    ItemFinished,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
)
from evenload.report.items import ItemSet
from evenload.report.tally import Tally, summarise

DEVICES = {"a": {"name": "A"}, "b": {"name": "B"}}


def span(index, start, stop, device="a", n=1, stage="map", **more):
    return Span(stage, device, more.pop("worker", device), index, n, start, stop, **more)


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


def test_waits_are_split_by_reason_and_who_did_nothing_is_part_of_the_imbalance():
    waits = [Idle("b", 1.0, 3.0, "tail"), Idle("b", 3.0, 4.0, "empty")]
    summary = summarise([span(0, 0.0, 4.0), span(1, 0.0, 1.0, "b"), *waits])
    assert summary.waits == {"tail": 2.0, "empty": 1.0}
    assert summary.devices[1].idle_s == pytest.approx(3.0)
    summary = summarise([RunStarted(0.0, "r", 0.0, 1, DEVICES), span(0, 0.0, 1.0)])
    assert (summary.imbalance, summary.unmeasured, summary.status) == (2.0, ("b",), "unfinished")


def test_restored_items_are_done_without_any_work():
    summary = summarise(
        [Restored(0.0, "map", 0, 4), Restored(0.0, "map", 6, 2, (6, 9)), span(4, 0.0, 1.0, n=2)]
    )
    assert (summary.n_done, summary.n_failed, summary.bound_s) == (8, 0, 1.0)


def test_an_item_is_done_when_it_is_through_the_last_stage_that_was_planned():
    started = RunStarted(0.0, "r", 0.0, 1, DEVICES, {"stages": ["x", "y"]})
    assert summarise([started, span(0, 0.0, 1.0, stage="x")]).n_done == 0
    assert summarise([started, span(0, 0.0, 1.0, stage="x"), span(0, 1.0, 2.0, stage="y")]).n_done == 1


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


def test_names_of_the_slowest_survive_a_long_run(monkeypatch):
    monkeypatch.setattr("evenload.report.tally.N_RECENT_NAMES", 100)
    tally = Tally()
    tally.add(span(0, 0.0, 100.0))
    tally.add(ItemFinished(100.0, "map", 0, "the long one"))
    for index in range(1, 200):
        tally.add(span(index, 100.0, 100.1))
        tally.add(ItemFinished(100.1, "map", index, f"item {index}"))
    assert tally.summary().slowest[0].item == "the long one"
    assert len(tally._names) <= 120


def test_an_item_counts_for_the_device_whose_result_came_first():
    """Oracle: three items were given; b had the last of them before a had gone through all."""
    spans = [Span("map", "b", "b", 2, 1, 1.0, 2.0, duplicate=True), Span("map", "a", "a", 0, 3, 0.0, 3.0)]
    told = summarise([RunStarted(0.0, "r", 0.0, 3, {"a": {}, "b": {}}), *spans, RunFinished(3.0, "done")])
    assert {one.device: one.n_items for one in told.devices} == {"a": 2, "b": 1}
    assert sum(stage.n_done for stage in told.stages) == 3


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 60), st.just(1)),
    ),
    max_size=60,
)


@given(steps)
def test_counts_as_sets_would(rows):
    items, done, failed = ItemSet(), set(), set()
    for what, index, n in rows:
        if what == "add":
            items.add(index, n)
            done |= set(range(index, index + n))
        else:
            items.fail(index)
            failed.add(index)
    assert items.n_failed == len(failed)
    assert items.n_done == len(done - failed)


def test_an_absurd_index_takes_no_memory():
    items = ItemSet()
    items.add(10**14, 5)
    items.add(-3, 5)
    items.fail(10**14)
    assert (items.n_done, items.n_failed) == (5, 1)
