"""Other tools' traces beside a run's own."""

import gzip
import json
import math

import pytest

from evenload.errors import ConfigError
from evenload.events import RunStarted, Span
from evenload.report.trace import read_guest, write_trace

RUN = [RunStarted(0.0, "x", 1_800_000_000.0, 1, {"a": {}}), Span("map", "a", "a", 0, 1, 1.0, 2.0)]


def rows_of(path):
    return json.loads(path.read_text())["traceEvents"]


def test_torch_slices_land_on_the_runs_clock(tmp_path):
    guest = {
        "baseTimeNanoseconds": 1_799_999_990_000_000_000,
        "traceEvents": [
            {"ph": "X", "name": "aten::mm", "ts": 11_500_000.0, "dur": 20.0, "pid": 77, "tid": 3},
            {"ph": "s", "id": 1, "name": "flow", "ts": 11_500_000.0, "pid": 77, "tid": 3},
            {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "python"}},
            {"ph": "?"},
            "nonsense",
        ],
    }
    with gzip.open(tmp_path / "torch.json.gz", "wt") as file:
        json.dump(guest, file)
    write_trace(RUN, tmp_path / "t.json", [tmp_path / "torch.json.gz", tmp_path / "torch.json.gz"])
    rows = rows_of(tmp_path / "t.json")
    found = [row for row in rows if row["name"] == "aten::mm"]
    assert [row["ts"] for row in found] == [1_500_000.0] * 2
    assert len({row["pid"] for row in found}) == 2
    assert len({row["id"] for row in rows if row["name"] == "flow"}) == 2
    names = [row["args"]["name"] for row in rows if row["name"] == "process_name"]
    assert "torch.json.gz: process 77" in names


def test_a_guest_with_numbers_that_are_none_leaves_a_trace_that_every_viewer_reads(tmp_path):
    """Oracle: a parser that takes JSON and nothing else, as those of viewers do."""
    row = {
        "ph": "X",
        "name": "aten::mm",
        "ts": 1.0,
        "dur": 2.0,
        "pid": 1,
        "tid": 1,
        "args": {"loss": math.nan},
    }
    (tmp_path / "torch.json").write_text(json.dumps({"traceEvents": [row]}))
    write_trace(RUN, tmp_path / "t.json", [tmp_path / "torch.json"])
    told = json.loads((tmp_path / "t.json").read_text(), parse_constant=pytest.fail)
    assert [one["args"] for one in told["traceEvents"] if one["name"] == "aten::mm"] == [{"loss": None}]


def test_nvtx_ranges_begin_with_the_run(tmp_path):
    ranges = [
        {"Start (ns)": 5000, "End (ns)": 9000, "Name": "forward", "PID": 1, "TID": 2},
        {"Start (ns)": "damaged", "End (ns)": 1},
    ]
    (tmp_path / "nvtx.json").write_text(json.dumps(ranges))
    write_trace(RUN, tmp_path / "t.json", [tmp_path / "nvtx.json"])
    (row,) = [row for row in rows_of(tmp_path / "t.json") if row.get("cat") == "nvtx"]
    assert (row["ts"], row["dur"], row["name"]) == (5.0, 4.0, "forward")


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": 1}', "[" * 100_000, "\x00"])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        read_guest(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="cannot read"):
        read_guest(tmp_path / "missing.json")


def test_the_real_profiler(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        torch.ones(8) @ torch.ones(8)
    profiled.export_chrome_trace(str(tmp_path / "torch.json"))
    guest = read_guest(tmp_path / "torch.json")
    assert guest.base_unix_us is not None
    assert any(event.get("name") == "aten::dot" for event in guest.events)
