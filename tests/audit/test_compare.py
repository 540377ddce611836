"""Two audits beside one another: traces whose operators and times are known beforehand."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evenload.audit.compare import compare, operator_s
from evenload.audit.traces import AuditOptions, read_traces
from evenload.cli.audit import audit

BY_OPERATOR = AuditOptions(by_operator=True)


def trace(path: Path, kernel: str, times_us: dict[str, float]) -> Path:
    """Each operator launches a kernel that is called after the device; one kernel has no operator."""
    events: list[dict[str, Any]] = []
    for at, (operator, took) in enumerate(times_us.items()):
        row = {"ph": "X", "ts": 1000.0 * at, "args": {"External id": at + 1}}
        events.append({**row, "cat": "kernel", "name": f"{kernel}_{at}", "pid": 0, "tid": 7, "dur": took})
        events.append({**row, "cat": "cpu_op", "name": operator, "pid": 9, "tid": 9, "dur": 3.0})
    events.append({"ph": "X", "ts": 9e5, "cat": "kernel", "name": "own", "pid": 0, "tid": 7, "dur": 50.0})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_kernels_of_two_devices_are_compared_by_operator(tmp_path):
    before = trace(tmp_path / "a.json", "sm90", {"aten::mm": 400, "aten::add": 100})
    after = trace(tmp_path / "b.json", "Cijk", {"aten::mm": 200, "aten::add": 150})
    found = compare(read_traces([before], BY_OPERATOR), read_traces([after], BY_OPERATOR))
    assert {one.name: one.before_s * 1e6 for one in found.operators} == pytest.approx(
        {"aten::mm": 400, "aten::add": 100, "own": 50}
    )
    assert {one.name: one.after_s * 1e6 for one in found.operators} == pytest.approx(
        {"aten::mm": 200, "aten::add": 150, "own": 50}
    )
    assert found.operators[0].name == "aten::mm"
    (work,) = [one for one in found.causes if one.name == "work"]
    assert (work.before_s * 1e6, work.after_s * 1e6) == pytest.approx((550, 400))


def test_the_command(tmp_path):
    before = trace(tmp_path / "a.json", "sm90", {"aten::mm": 350})
    after = trace(tmp_path / "b.json", "Cijk", {"aten::mm": 150})
    done = CliRunner().invoke(audit, [str(after), "--before", str(before)], standalone_mode=False)
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("aten::mm")]
    assert line.split()[1:] == ["350", "µs", "150", "µs", "−200", "µs"]
    assert "shares of 33.3% and 66.7%" in done.stdout


def test_operators_of_a_trace_without_them(tmp_path):
    path = trace(tmp_path / "a.json", "sm90", {"aten::mm": 400})
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["cat"] == "kernel"]
    path.write_text(json.dumps({"traceEvents": events}))
    assert operator_s(read_traces([path], BY_OPERATOR)) == pytest.approx({"sm90_0": 400e-6, "own": 50e-6})
