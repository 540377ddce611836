"""The trace is what Perfetto expects: whole JSON, named tracks, slices that nest, arrows that arrive."""

import gzip
import io
import json
from collections import defaultdict

import pytest

from evenload.errors import ConfigError
from evenload.events import RunStarted, Span
from evenload.report import trace as module
from evenload.report.trace import DEALS_TID, RUN_PID, TraceWriter, write_trace


def trace_of(events):
    out = io.StringIO()
    writer = TraceWriter(out)
    for event in events:
        writer(event)
    writer.close()
    return json.loads(out.getvalue())["traceEvents"]


@pytest.fixture
def rows(sample_run):
    return trace_of(sample_run(n_items=40, fails=(3,), loses=(9,), moves=2))


def of_kind(rows, kind):
    return [row for row in rows if row["ph"] == kind]


def test_every_track_has_a_name(rows):
    named = {(row["pid"], row["tid"]) for row in of_kind(rows, "M") if row["name"] == "thread_name"}
    assert {(row["pid"], row["tid"]) for row in of_kind(rows, "X")} <= named
    processes = {row["args"]["name"] for row in of_kind(rows, "M") if row["name"] == "process_name"}
    assert {"cuda:0 Sample GPU", "cpu:1 Sample CPU", "run restore sample pictures"} <= processes


def test_slices_of_a_track_follow_or_nest(rows):
    tracks = defaultdict(list)
    for row in of_kind(rows, "X"):
        tracks[row["pid"], row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
    for slices in tracks.values():
        open_until = []
        for start, stop in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or stop <= open_until[-1]
            open_until.append(stop)


def test_a_chunk_is_a_slice_with_its_facts_and_incidents_are_instants(rows):
    (lost,) = [row for row in of_kind(rows, "X") if row["name"].endswith("(lost)")]
    assert lost["args"]["status"] == "lost"
    duplicate = [row for row in of_kind(rows, "X") if row["args"].get("duplicate")]
    assert duplicate
    assert all("superseded" in row["name"] for row in duplicate)
    names = [row["name"] for row in of_kind(rows, "i")]
    assert any("failed: ValueError" in name for name in names)
    assert any("worker lost" in name for name in names)
    assert sum("moved" in name for name in names) == 4
    assert "run failures" in names


def test_arrows_lead_from_a_deal_to_a_chunk(rows):
    starts, ends = of_kind(rows, "s"), of_kind(rows, "f")
    assert {row["id"] for row in starts} == {row["id"] for row in ends}
    slices = {(row["pid"], row["tid"], row["ts"]) for row in of_kind(rows, "X")}
    for row in starts:
        assert (RUN_PID, DEALS_TID, row["ts"]) in slices
    for row in ends:
        assert (row["pid"], row["tid"], row["ts"]) in slices


def test_counters_end_where_they_should(rows):
    running = [row["args"]["chunks"] for row in of_kind(rows, "C") if row["name"] == "running chunks"]
    assert running[-1] == 0
    assert 1 <= max(running) <= 4
    done = [row["args"]["items"] for row in of_kind(rows, "C") if row["name"] == "items back"]
    assert done == sorted(done)
    assert any(row["name"] == "memory MiB" for row in of_kind(rows, "C"))


def test_running_is_sampled_in_a_long_run(monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTER_POINTS", 50)
    spans = [Span("s", "a", "a", i, 1, i * 1e-3, i * 1e-3 + 5e-4) for i in range(5000)]
    running = [row for row in of_kind(trace_of(spans), "C") if row["name"] == "running chunks"]
    assert len(running) <= 52


def test_an_empty_run_is_whole_json():
    assert trace_of([]) != []
    assert trace_of([RunStarted(0.0, "</script>\x00\ud800", 0.0)])


def test_files_plain_and_packed(tmp_path, sample_run):
    with pytest.raises(ConfigError, match="cannot write"):
        write_trace([], tmp_path / "nowhere" / "t.json")
    write_trace(sample_run(n_items=3), tmp_path / "t.json")
    write_trace(sample_run(n_items=3), tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz", "rt", encoding="utf-8") as packed:
        assert json.load(packed) == json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
