"""What the progress bar knows, after each event."""

import pytest

from evenload.events import (
    Counted,
    ItemFailed,
    ItemFinished,
    Planned,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageStarted,
)
from evenload.report.pace import Pace, clock_text, pace_line


def pace_of(*events):
    pace = Pace()
    for event in events:
        pace(event)
    return pace


def span(index, start, stop, device="a", n=1, busy=0.0, status="ok"):
    return Span("map", device, device, index, n, start, stop, busy, status)


START = (RunStarted(0.0, "r", 0.0, 10, {"a": {}, "b": {}}), StageStarted(0.0, "map", 10))


def test_rate_and_eta_are_of_the_stage():
    pace = pace_of(*START, span(0, 5.0, 7.0, n=4))
    assert (pace.n_done, pace.items_per_s, pace.eta_s, pace.imbalance) == (4, 2.0, 3.0, 2.0)
    pace = pace_of(*START, span(0, 0.0, 4.0, n=10), StageStarted(4.0, "score", 10))
    assert (pace.stage, pace.n_done, pace.items_per_s, pace.eta_s) == ("score", 0, 0.0, None)
    assert set(pace.devices) == {"a", "b"}


def test_each_item_is_counted_once_and_only_what_came_back_is_progress():
    """A pipeline announces its items besides; what was restored says nothing of the rate."""
    events = [span(0, 0.0, 1.0, n=2), ItemFinished(1.0, "map", 0, "x"), ItemFinished(1.0, "map", 1, "y")]
    assert pace_of(*START, *events, span(2, 1.0, 2.0), ItemFinished(2.0, "map", 2, "z")).n_done == 3
    lost = [span(0, 0.0, 1.0, status=status) for status in ("lost", "superseded")]
    assert pace_of(*START, *lost).n_done == 0
    restored = (*START, Restored(0.0, "map", 0, 5))
    pace = pace_of(*restored, span(5, 0.0, 1.0, n=2))
    assert (pace.n_done, pace.items_per_s) == (7, 2.0)
    pace = pace_of(*restored, span(5, 0.0, 1.0), ItemFinished(1.0, "map", 5, "x"))
    assert (pace.n_done, pace.items_per_s) == (6, 1.0)


def test_load_follows_the_last_seconds():
    pace = pace_of(*START, *(span(i, i, i + 1.0, busy=1.0) for i in range(60)))
    assert pace.devices["a"].load == pytest.approx(1.0)
    for i in range(60, 200):
        pace(span(i, i, i + 1.0, busy=0.25))
    assert pace.devices["a"].load == pytest.approx(0.25, abs=0.02)


def test_the_line_reads_well_and_is_cut_short():
    failed = ItemFailed(2.0, "map", 4, "", "E", "m")
    pace = pace_of(*START, span(0, 0.0, 2.0, n=4), span(4, 0.0, 1.0, "b"), failed)
    assert pace_line(pace) == "map 5/10 · 2.5/s · ETA 0:02 · 1 failed | a 100% b 100% | imbalance 1.33"
    pace(RunFinished(2.0, "failures"))
    assert "ETA" not in pace_line(pace)
    assert pace_line(Pace()) == "run 0"
    many = RunStarted(0.0, "r", 0.0, 10, {f"cuda:{i}": {} for i in range(20)})
    assert "+12 more" in pace_line(pace_of(many, span(0, 0.0, 1.0, "cuda:0")))


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (760, "12:40"), (11_109, "3:05:09")])
def test_clock(seconds, text):
    assert clock_text(seconds) == text


def test_what_is_left_counts_where_nobody_knew_the_total_at_the_start():
    open_ = Counted(2.0, {"total": 14, "done": 4, "unfinished": 10})
    pace = pace_of(RunStarted(0.0, "r", 0.0, None, {"a": {}}), span(0, 0.0, 2.0, n=4))
    assert pace.eta_s is None
    pace(open_)
    assert (pace.items_per_s, pace.eta_s) == (2.0, 5.0)


def test_the_whole_run_is_told_beside_its_stage():
    """A world of known times: two devices, ten items, a second in `one` and three in `two`."""
    started = RunStarted(0.0, "r", 0.0, 10, {"a": {}, "b": {}}, {"stages": ["one", "two"]})
    slices = [("a", "one", "work", 0.0, 2.5, 5), ("b", "one", "work", 0.0, 2.5, 5)]
    slices += [("a", "two", "work", 2.5, 10.0, 5), ("b", "two", "load", 2.5, 3.0, 0)]
    pace, now = pace_of(started, Counted(0.0, {"total": 10, "done": 0, "unfinished": 10})), 0.0
    assert pace.run_eta_s is None
    pace(Planned(0.0, "swap", "", 10.0, 10.0, slices))
    for stage, item_s in (("one", 1.0), ("two", 3.0)):
        for n in range(5):
            for device in ("a", "b"):
                pace(Span(stage, device, device, n, 1, now, now + item_s, 0.0, "ok"))
            now += item_s
            if stage == "two":
                pace(Counted(now, {"total": 10, "done": 2 * n + 2, "unfinished": 8 - 2 * n}))
            assert pace.run_eta_s == pytest.approx(20.0 - now)
    first = pace_of(started, Counted(0.0, {"total": 10, "unfinished": 10}), span(0, 0.0, 1.0))
    assert first.run_eta_s is None, "nothing is known of the second stage"
    first(Planned(0.0, "swap", "", 1.0, 1.0, [("a", "two", "work", 0.0, "x", 1), None]))  # of a stranger
    assert "of all stages" not in pace_line(first)
