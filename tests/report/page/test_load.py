"""Load over time adds up, whatever the bins."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.events import DeviceSample, Queued, RunStarted, Span
from evenload.report.page.bars import LoadOverTime


def shown(events, n_bins=16):
    load = LoadOverTime(n_bins)
    for event in events:
        load.add(event)
    return load.to_json()


def seconds(load, device, end_s):
    """Busy seconds of a device from its bins; the last bin ends where the run does."""
    widths = [load["width_s"]] * (load["n"] - 1) + [end_s - (load["n"] - 1) * load["width_s"]]
    return sum(share * width for share, width in zip(load["busy"][device], widths, strict=True))


rows_of_spans = st.tuples(st.floats(0, 100), st.floats(0.01, 30), st.integers(1, 9))


@given(st.lists(rows_of_spans, min_size=1, max_size=20))
def test_seconds_and_items_are_kept(rows):
    events = [Span("s", "a", "w", 0, n, start, start + length) for start, length, n in rows]
    load = shown(events)
    end_s = max(start + length for start, length, _ in rows)
    busy_s = sum(length for _, length, _ in rows)
    assert seconds(load, "a", end_s) == pytest.approx(busy_s, rel=0.01, abs=0.01)
    assert load["n"] <= 16


def test_busy_is_less_than_the_span_when_the_task_was():
    load = shown([Span("s", "a", "w", 0, 1, 0.0, 10.0, 5.0)])
    assert set(load["busy"]["a"]) == {0.5}


def test_imbalance_is_of_all_devices():
    load = shown([RunStarted(0.0, "r", 0.0, 1, {"a": {}, "b": {}}), Span("s", "a", "w", 0, 1, 1.0, 2.0)])
    assert {value for value in load["imbalance"] if value is not None} == {2.0}
    assert load["imbalance"][0] is None


def test_samples_keep_their_peaks():
    samples = [DeviceSample(t / 10, "a", 0.5, 100 + t, 1000) for t in range(1000)]
    load = shown(samples)
    memory = [value for value in load["samples"]["a"]["memory_bytes"] if value is not None]
    assert memory[-1] == 1099
    assert memory == sorted(memory)
    assert "temperature_c" not in load["samples"]["a"]


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
