"""Every surface says the same words and figures of where the time went."""

import json
import re
from pathlib import Path

import pytest
from chromium import CHROMIUM, Shown, drawn

from evenload.balance.factors import FACTORS
from evenload.cli import main
from evenload.cli.monitoring.top import FollowedJobs
from evenload.cli.report import text_report
from evenload.devices.jobs import announced
from evenload.events import EventFile, Idle, RunFinished, RunStarted, Span, StageStarted, WorkerStarted
from evenload.report.html import write_report
from evenload.report.source import open_run
from evenload.report.tally import summarise

DOCS = Path(__file__).parents[2] / "docs"
EVENTS = [
    RunStarted(0.0, "two stages", 0.0, 4, {d: {"name": "X", "kind": "cpu"} for d in "ab"}, {"stages": ["x"]}),
    StageStarted(0.0, "x", 4),
    WorkerStarted(1.0, "a", "a", None, 1.0),
    WorkerStarted(2.0, "b", "b", None, 2.0),
    Idle("a", 1.0, 4.0, "loads x"),
    Idle("b", 2.0, 4.5, "loads x"),
    Span("x", "a", "a", 0, 1, 4.0, 7.0, busy_s=2.7, waited_s=0.9, cpu_s=1.5),
    Span("x", "b", "b", 1, 1, 4.5, 8.0),
    Span("x", "a", "a", 2, 1, 7.0, 10.5),
    Span("x", "b", "b", 3, 1, 8.0, 9.1, cpu_s=0.1),
    RunFinished(11.0, "done"),
]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with EventFile(folder / "events.jsonl") as sink:
        for event in EVENTS:
            sink(event)
    return folder


def factors_of_table(text, page):
    """The first table whose first rows are the factors: their names, and what is said of each."""
    rows = re.findall(r"^\| ([^|]+?) +\| ([^|]+?) +\|.*$", text, re.MULTILINE)
    at = next(n for n, row in enumerate(rows) if row[0] == "start-up" and not row[1].startswith("2"))
    return dict(rows[at : at + len(FACTORS)])


def test_docs_have_the_words_of_the_program():
    page = (DOCS / "how-to" / "read-a-report.md").read_text(encoding="utf-8")
    assert factors_of_table(page, "read-a-report") == FACTORS
    page = (DOCS / "explanation" / "bounds.md").read_text(encoding="utf-8")
    assert list(factors_of_table(page, "bounds")) == list(FACTORS)
    product = " × ".join(FACTORS)
    assert f"share = {product}" in page


def test_terminal_json_metrics_and_top_say_the_same(run, monkeypatch, tmp_path, capsys):
    found = summarise(EVENTS).factors
    values = {part.name: part.value for part in found.parts}

    with pytest.raises(SystemExit, match="0"):
        main(["report", str(run), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {part["name"]: part["value"] for part in told["factors"]["parts"]} == values
    assert [worker["name"] for worker in told["factors"]["workers"]] == ["a", "b"]

    lines = "\n".join(text_report(open_run(run), 100))
    assert found.text() in lines
    for part in found.parts:
        assert re.search(
            rf"^{part.name} +{'not known' if part.value is None else f'{part.value:.3f}'}", lines, re.M
        )

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    with announced("two stages", events=run / "events.jsonl"):
        (row,) = FollowedJobs().look()
    assert (row.factors, row.useful) == (values, found.share)
    assert row.lost_most == f"{found.largest.name} {found.largest.lost_s:.3g} s"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_says_the_same_and_its_workers_add_up(run, tmp_path):
    summary = write_report(run, tmp_path / "x.html")
    found = summary.factors
    words = [one for one in Shown(drawn(tmp_path / "x.html", tmp_path / "profile")).seen if one.strip()]
    assert summary.advice.text() in [one.replace("\u00a0", " ") for one in words]
    for part in found.parts:
        assert part.name in words
        assert any(part.says in one for one in words)
        if part.value is not None and part.value <= 0.9995:
            assert f"−{part.lost_s:.2f}\u202fs" in words
    at = words.index("by price")
    assert words[at + 1] == "1.000"
    shown = [
        one
        for one in ("start-up", "balance", "waiting", "overhead", "not known")
        if any(w.lost_s.get(one) for w in found.workers)
    ]
    assert {"waiting", "not known"} <= {*shown}
    sums = [sum(w.price * w.lost_s[name] for w in found.workers) for name in shown]
    assert words[at + 2 : at + 2 + len(shown)] == [f"{one:.2f}" if one > 0 else "–" for one in sums]
    assert words[at + 3 + len(shown)] == f"{found.wall_s:.2f}"
