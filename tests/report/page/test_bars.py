"""Bins that double their width hold what a table made in one go would; the load over time in them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.events import DeviceSample, Queued, RunStarted, Span
from evenload.report.page.bars import Bins, LoadOverTime

N = 8
moments = st.tuples(st.floats(0, 1e4), st.integers(0, 9))


@given(st.lists(moments, min_size=1, max_size=30))
def test_bins_are_those_of_their_last_width_from_the_beginning(given):
    """Oracle: each bin filled by a plain loop over all moments, at the width that was reached last."""
    bins = Bins(N, 1e-3)
    for t, amount in given:
        bins.add("row", t, amount)
        bins.peak("row", t, amount)
    of_bin = [[amount for t, amount in given if int(t / bins.width) == at] for at in range(N)]
    assert bins.end == max(t for t, _ in given) < N * bins.width
    assert bins.sums["row"] == [sum(amounts) for amounts in of_bin]
    assert bins.peaks["row"] == [max(amounts, default=None) for amounts in of_bin]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), min_size=1, max_size=20))
def test_each_bin_has_the_seconds_that_lie_in_it(given):
    """Oracle: the overlap of every stretch with every bin, at the width that was reached last."""
    bins = Bins(N, 1e-3)
    for start, length in given:
        bins.spread("row", start, start + length)
    for at, seconds in enumerate(bins.sums["row"]):
        left, right = at * bins.width, (at + 1) * bins.width
        overlaps = [min(start + length, right) - max(start, left) for start, length in given]
        assert seconds == pytest.approx(sum(max(0.0, one) for one in overlaps), abs=1e-6)


def shown(events, n_bins=16):
    load = LoadOverTime(n_bins)
    for event in events:
        load.add(event)
    return load.to_json()


def test_busy_is_less_than_the_span_when_the_task_was():
    load = shown([Span("s", "a", "w", 0, 1, 0.0, 10.0, 5.0)])
    assert set(load["busy"]["a"]) == {0.5}


def test_imbalance_is_of_all_devices():
    load = shown([RunStarted(0.0, "r", 0.0, 1, {"a": {}, "b": {}}), Span("s", "a", "w", 0, 1, 1.0, 2.0)])
    assert {value for value in load["imbalance"] if value is not None} == {2.0}
    assert load["imbalance"][0] is None


def test_a_moment_before_the_start_is_let_be():
    load = shown([Span("s", "a", "w", 0, 1, -5.0, -4.0), DeviceSample(-1.0, "a", 0.5)])
    assert load["busy"].get("a", [0.0]) == [0.0]


def test_each_stage_has_its_own_queue():
    told = [Queued(0.0, "a", 9), Queued(0.5, "a", 4), Queued(0.5, "b", 2), Queued(1.0, "b", None)]
    load = shown([*told, Queued(40.0, "a", 0)])
    assert list(load["waiting"]) == ["a", "b"]
    assert all(len(row) == load["n"] for row in load["waiting"].values())
    assert [value for value in load["waiting"]["a"] if value is not None] == [9, 0]
    assert [value for value in load["waiting"]["b"] if value is not None] == [2]
