"""Bars, histograms and timelines in text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.cli.report import text_report
from evenload.cli.terminal.text_charts import bar, gantt_lines, histogram_lines, short_seconds, sparkline
from evenload.events import EventFile, ItemFailed, RunStarted, Span
from evenload.report.page.bars import Durations
from evenload.report.source import open_run

shares = st.floats(-1.0, 2.0) | st.none()


@given(share=shares, width=st.integers(1, 80), ascii_only=st.booleans())
def test_a_bar_is_as_wide_as_asked(share, width, ascii_only):
    text = bar(share, width, ascii_only=ascii_only)
    assert len(text) == width
    assert text.isascii() or not ascii_only


@given(values=st.lists(shares, max_size=50), width=st.integers(1, 40))
def test_a_sparkline_is_as_wide_as_asked(values, width):
    assert len(sparkline(values, width)) == width


@given(seconds=st.floats(1e-9, 1e6))
def test_seconds_are_short_and_near(seconds):
    number, unit = short_seconds(seconds).split()
    size = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert float(number) * size == pytest.approx(seconds, rel=0.06)


@given(
    items=st.lists(st.tuples(st.floats(1e-8, 1e4), st.integers(1, 1000)), min_size=1, max_size=60),
    most=st.integers(1, 40),
)
def test_no_item_is_lost_in_a_histogram(items, most):
    durations = Durations()
    for seconds, n in items:
        durations.add(Span("s", "a", "a", 0, n, 0.0, seconds * n, seconds * n))
    bins = durations.bins("s", most)
    assert sum(n for _, _, n in bins) == sum(n for _, n in items)
    assert len(bins) <= most
    assert bins[0][0] <= min(s for s, _ in items) * 1.000001
    assert bins[-1][1] >= max(s for s, _ in items) * 0.999999
    lines = histogram_lines(bins, 80, ascii_only=True)
    assert len(lines) == len(bins)
    assert all(len(line) <= 80 for line in lines)


def test_a_run_as_text_shows_everything_and_obeys_nothing(tmp_path):
    bad = "x\x1b[2J\x07\u202e"
    with EventFile(tmp_path / "events.jsonl") as sink:
        sink(RunStarted(0.0, bad, 0.0, 2, {bad: {}}))
        sink(Span(bad, bad, "w", 0, 1, 0.0, 1.0))
        sink(ItemFailed(1.0, bad, 1, bad, bad, bad, bad))
    text = "\n".join(text_report(open_run(tmp_path), 80))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "1 of 2 done" in text
    assert "seconds per item" in text
    assert "failed: x" in text


def test_a_column_shows_what_fills_it():
    rows = {"a": [(0.0, 5.0, "work"), (5.0, 8.0, "work")], "b": [(0.0, 2.0, "copy"), (2.0, 4.0, "lost")]}
    lines = gantt_lines(rows, 10.0, width=12, ascii_only=True)
    assert lines[0] == "a #####===.."
    assert lines[1] == "b ccxx......"
    assert lines[2] == "  0 s   10 s"


def test_every_line_fits_the_width():
    rows = {f"device {n}": [(0.0, 1.0 + n, "work")] for n in range(5)}
    for width in (30, 80, 200):
        assert {len(line) for line in gantt_lines(rows, 6.0, width)} == {width}


def test_nothing_to_show():
    assert gantt_lines({"a": []}, 0.0, 80) == []
