"""The report of an audit in a real browser, where there is one: it draws, and hostile names do nothing."""

import json
from pathlib import Path

import pytest
from chromium import CHROMIUM, drawn

from evenload.audit.audit import AuditParts, audit_of
from evenload.audit.page import audit_view, write_audit
from evenload.audit.traces import read_traces

BAD = "</script><img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def parts_of_hostile_names(folder: Path) -> AuditParts:
    rows = [(0, 0.0, 6e6), (1, 2e6, 1e6), (1, 5e6, 2e6)]
    events = [
        {"ph": "X", "name": BAD, "cat": BAD, "pid": f"{BAD}{pid}", "tid": BAD, "ts": ts, "dur": dur}
        for pid, ts, dur in rows
    ]
    (folder / "trace.json").write_text(json.dumps(events))
    return AuditParts(read_traces([folder / "trace.json"]))


def test_the_timeline_has_the_seconds_of_the_audit(tmp_path):
    parts = parts_of_hostile_names(tmp_path)
    shown = audit_view(parts, audit_of(parts))["timeline"]
    second = shown["rows"][1]
    kinds = [shown["statuses"][at] for at in second["status"]]
    assert list(zip(kinds, second["length"], strict=True)) == [
        ("start-up", 2_000_000),
        ("ok", 1_000_000),
        ("waiting", 2_000_000),
        ("ok", 2_000_000),
    ]
    assert [shown["reasons"][at] for at in second["why"]][2].endswith("(serial)")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_draws_itself_and_hostile_names_do_nothing(tmp_path):
    parts = parts_of_hostile_names(tmp_path)
    write_audit(parts, audit_of(parts), tmp_path / "x.html")
    dom = drawn(tmp_path / "x.html", tmp_path / "profile")
    assert "<title>Audit: Chrome trace" in dom
    assert "With other dealing" in dom
    assert "Longest stretches" in dom
    assert "<canvas" in dom
    assert "<img src" not in dom
