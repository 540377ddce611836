"""Slices on lanes: as they happened while they fit, merged without losing any when they do not."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.events import Idle, ItemFailed, Moved, RunStarted, Span, WorkerExited, WorkerStarted
from evenload.report.page.timeline import MAX_MARKS, Timeline
from evenload.report.worker_tracks import WorkerTracks


def rows_of(events, **options):
    timeline = Timeline(**options)
    for event in events:
        timeline.add(event)
    return timeline.to_json()


def test_every_slice_is_there_while_they_fit(sample_run):
    events = list(sample_run(n_items=40, fails=(3,), loses=(7,)))
    shown = rows_of(events)
    n_spans = sum(isinstance(event, Span) for event in events)
    n_others = sum(isinstance(event, (Idle, WorkerStarted)) for event in events)
    assert sum(len(row["start"]) for row in shown["rows"]) == n_spans + n_others
    assert shown["step_s"] == 0
    assert [row["device"] for row in shown["rows"]] == ["cuda:0", "cuda:1", "cpu:0", "cpu:1"]
    assert {mark["kind"] for mark in shown["marks"]} == {"failed", "lost"}


def test_starts_are_distances_in_microseconds():
    shown = rows_of([Span("s", "a", "a", 0, 1, 1.0, 1.5), Span("s", "a", "a", 1, 1, 2.0, 2.25, why="x")])
    row = shown["rows"][0]
    assert (row["start"], row["length"]) == ([1_000_000, 1_000_000], [500_000, 250_000])
    assert [shown["reasons"][why] for why in row["why"]] == ["", "x"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e-3), st.floats(1e-6, 1e-2)), max_size=300),
    st.integers(4, 40),
)
def test_merging_loses_no_item_and_no_second(rows, limit):
    events, clock = [], {"a": 0.0, "b": 0.0}
    for index, (device, gap, length) in enumerate(rows):
        start = clock[device] + gap
        clock[device] = start + length
        events.append(Span("s", device, device, index, 1, start, start + length, length))
    shown = rows_of(events, max_slices=limit)
    n_slices = sum(len(row["start"]) for row in shown["rows"])
    assert n_slices <= max(limit, 8)
    assert sum(sum(row["n_items"]) for row in shown["rows"]) == len(rows)
    assert sum(sum(row["n_chunks"]) for row in shown["rows"]) == len(rows)
    busy_us = sum(sum(row["busy"]) for row in shown["rows"])
    assert busy_us == pytest.approx(sum(length for *_, length in rows) * 1e6, abs=len(rows) + 1)
    for row in shown["rows"]:
        starts = list(itertools.accumulate(row["start"]))
        assert starts == sorted(starts)


def test_unlike_neighbours_are_merged_only_where_nobody_can_see_them():
    events = [Span("xy"[i % 2], "a", "a", i, 1, i * 1e-3, i * 1e-3 + 5e-4) for i in range(20_000)]
    shown = rows_of(events, max_slices=10_000)
    assert max(shown["rows"][0]["length"]) <= 2e6 * shown["step_s"] < 2e6 * 20 / 1000
    assert sum(shown["rows"][0]["n_chunks"]) == 20_000


def test_marks_and_reasons_are_bounded():
    failures = [ItemFailed(i / 1e4, "s", i, f"item {i}", "E", "m") for i in range(MAX_MARKS + 50)]
    waits = [Idle("a", i, i + 0.5, f"reason {i}") for i in range(2000)]
    shown = rows_of([*failures, *waits])
    assert (len(shown["marks"]), shown["n_marks"]) == (MAX_MARKS, MAX_MARKS + 50)
    assert len(shown["reasons"]) <= 500


def test_lost_workers_and_moves_are_marked():
    shown = rows_of(
        [
            RunStarted(0.0, "r", 0.0, 1, {"b": {}, "a": {}}),
            WorkerExited(1.0, "a", "w", "killed by signal 9"),
            WorkerExited(2.0, "b", "w"),
            Moved(3.0, "a", "b", 4, 0.5),
        ]
    )
    assert [mark["text"] for mark in shown["marks"]] == ["worker lost: killed by signal 9"]
    assert shown["moves"] == [{"t": 3.0, "source": "a", "target": "b", "n_items": 4, "imbalance": 0.5}]
    assert [row["device"] for row in shown["rows"]] == ["b", "a"], "in the order of the run, else of people"
    events = [Span("s", f"cuda:{i}", "w", 0, 1, 0.0, 1.0) for i in (10, 2, 1)]
    assert [row["device"] for row in rows_of(events)["rows"]] == ["cuda:1", "cuda:2", "cuda:10"]


def test_a_replacement_takes_the_lane_of_the_dead():
    lanes = WorkerTracks()
    lanes.see(WorkerStarted(0.0, "cuda:0", "a"))
    lanes.see(WorkerStarted(0.0, "cuda:0", "b"))
    lanes.see(WorkerExited(1.0, "cuda:0", "a", "killed"))
    assert lanes.of("cuda:0", "a") == 0, "a late span"
    lanes.see(WorkerExited(1.0, "cuda:0", "a", "said twice"))
    lanes.see(WorkerStarted(2.0, "cuda:0", "c"))
    assert [lanes.of("cuda:0", one) for one in "cbd"] == [0, 1, 2]


def test_devices_have_lanes_of_their_own():
    lanes = WorkerTracks()
    assert lanes.key("cpu:0", "a") == "cpu:0"
    assert lanes.key("cpu:1", "a") == "cpu:1"
    assert lanes.key("cpu:0", "b") == "cpu:0/1"
    assert lanes.n("cuda:7") == 0
