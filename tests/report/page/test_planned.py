"""Plan against reality: bars stay true when they are made coarser, and the page's view holds both sides."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.events import Idle, Planned, Replanned, Restored, RunStarted, Span
from evenload.pipeline.plan import Plan, TimelineSlice
from evenload.pipeline.run.run_events import MOST_SLICES, planned_event
from evenload.report.page.bars import Bars
from evenload.report.page.planned import PlanAndRun

SLICES = [
    ("cpu:0", "edit", "load", 0.0, 2.0, 0),
    ("cpu:0", "edit", "work", 2.0, 8.0, 3),
    ("cpu:1", "score", "work", 0.0, 4.0, 4),
]


def view(*events) -> dict:
    shown = PlanAndRun()
    for event in events:
        shown.add(event)
    return dict(shown.to_json() or {})


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.5, 20), st.sampled_from("ab")), min_size=1))
def test_bars_keep_items_and_end_where_the_work_does(pieces):
    bars = Bars(n_bins=64)
    now = 0.0
    for pause, length, kind in pieces:
        bars.add("row", kind, now + pause, now + pause + length, 1)
        now += pause + length
    (row,) = bars.rows().values()
    assert all(one.start_s < one.stop_s for one in row)
    assert all(a.stop_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(row))
    assert max((one.stop_s for one in row), default=0.0) <= now + 1e-9
    assert len(row) <= 64
    assert sum(one.n_items for one in row) <= len(pieces)


def test_work_that_fills_its_time_is_one_bar():
    bars = Bars()
    for number in range(500):
        bars.add("cpu:0", "work edit", number * 0.1, number * 0.1 + 0.099, 1)
    ((bar,),) = bars.rows().values()
    assert (bar.kind, bar.start_s, bar.n_items) == ("work edit", 0.0, 500)
    assert bar.stop_s == pytest.approx(49.999)
    bars.add("cpu:0", "work edit", 1.0, float("inf"))
    bars.add("cpu:0", "work edit", 2.0, 1.0)
    assert len(bars.rows()["cpu:0"]) == 1


def test_what_ran_stands_beside_what_was_planned():
    plan = Planned(1.0, "swap", "it fits", 8.0, 7.5, SLICES)
    shown = view(
        RunStarted(0.0, "r", 0.0, 3),
        plan,
        Idle("cpu:0", 1.5, 4.0, "loads edit"),
        Idle("cpu:0", 4.0, 4.5, "nothing was ready"),
        *(Span("edit", "cpu:0", "w", n, 1, 4.5 + 2 * n, 6.5 + 2 * n) for n in range(3)),
        *(Span("score", "cpu:1", "w", n, 1, 2.0 + n, 3.0 + n) for n in range(4)),
    )
    assert (shown["planned_s"], shown["bound_s"], shown["measured_s"]) == (8.0, 7.5, 9.5)
    assert shown["stages"] == ["edit", "score"]
    first, second = shown["rows"]
    assert first["device"] == "cpu:0"
    assert [bar[2:] for bar in first["planned"]] == [[0, 1, 0], [0, 0, 3]]
    assert [bar[2:] for bar in first["measured"]] == [[0, 1, 0], [0, 0, 3]]
    assert first["measured"][1][:2] == pytest.approx([3.5, 9.5], abs=0.02)
    assert [bar[2:] for bar in second["measured"]] == [[1, 0, 4]]
    edit, score = shown["by_stage"]
    assert (edit["planned_s"], edit["measured_s"]) == (6.0, 6.0)
    assert (edit["planned_load_s"], edit["measured_load_s"]) == (2.0, 2.5)
    assert (score["n_planned"], score["n_measured"]) == (4, 4)


def test_a_group_of_devices_is_drawn_on_each_and_the_first_plan_stays():
    plan = Planned(0.0, "model_parallel", "", 4.0, 4.0, [("a", "s", "work", 0.0, 4.0, 2)])
    other = Replanned(2.0, "b joined", 3.0, 2.0)
    again = Planned(3.0, "single", "", 1.0, 1.0, [])
    shown = view(plan, Span("s", "a+b", "w", 0, 1, 0.0, 3.0), other, again, Restored(0.0, "s", 0, 5))
    assert {row["device"]: len(row["measured"]) for row in shown["rows"]} == {"a": 1, "b": 1}
    assert (shown["mode"], shown["n_replans"], shown["n_restored"]) == ("model_parallel", 1, 5)


@pytest.mark.parametrize(
    "slices", [3, None, "xx", [[1]], [["d", "s", "work", None, 1, 2]], [[0, "s", "work", 0, 1, 2]]]
)
def test_a_plan_that_somebody_has_edited_costs_no_report(slices):
    seen = PlanAndRun()
    seen.add(Planned(0.0, "swap", "", 2.0, 1.0, slices))  # type: ignore[arg-type]
    seen.add(Planned(0.0, "swap", "", "long"))  # type: ignore[arg-type]
    assert seen.to_json() is None


def test_without_a_plan_in_seconds_there_is_nothing_to_compare():
    assert view(RunStarted(0.0, "r", 0.0)) == {}
    assert view(Planned(0.0, "swap", "it fits")) == {}
    assert view(Span("s", "a", "w", 0, 1, 0.0, 3.0), Planned(4.0, "swap", "it fits")) == {}


@pytest.mark.parametrize("n", [10, MOST_SLICES + 1])
def test_a_plan_is_told_in_one_line_of_bounded_length(n):
    slices = tuple(TimelineSlice("cpu:0", "ab"[i % 2], "work", i * 2.0, i * 2.0 + 2.0, 1) for i in range(n))
    event = planned_event(Plan("swap", (), 2.0 * n, 2.0 * n, "why", slices=slices), 0.5)
    assert (event.t, event.makespan_s) == (0.5, 2.0 * n)
    assert len(event.slices) <= MOST_SLICES
    assert max(one[4] for one in event.slices) == pytest.approx(2.0 * n, rel=0.02)
    assert {one[2] for one in event.slices} == {"work"}
