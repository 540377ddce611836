"""``evenload report``: files where they were asked for, talk on stderr, codes as documented."""

import json
import webbrowser

import click
import pytest
from click.testing import CliRunner

from evenload.cli.report import report
from evenload.events import EventFile, RunFinished, RunStarted, Span


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with EventFile(folder / "events.jsonl") as sink:
        sink(RunStarted(0.0, "two items", 0.0, 2, {"a": {}, "b": {}}))
        sink(Span("map", "a", "a", 0, 1, 0.0, 2.0))
        sink(Span("map", "b", "b", 1, 1, 0.0, 1.0))
        sink(RunFinished(2.0, "done"))
    return folder


def call(*args):
    return CliRunner().invoke(report, list(map(str, args)), standalone_mode=False)


def test_the_report_goes_into_the_run_folder(run):
    result = call(run)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [str(run / "report.html")]
    assert "2 of 2 done" in result.stderr
    assert (run / "report.html").is_file()


def test_files_where_they_are_asked_for(run, tmp_path):
    result = call(run / "events.jsonl", "-o", tmp_path / "x.html", "--trace", tmp_path / "t.json.gz")
    assert result.stdout.splitlines() == [str(tmp_path / "x.html"), str(tmp_path / "t.json.gz")]
    assert not (run / "report.html").exists()
    assert (tmp_path / "t.json.gz").stat().st_size > 0


def test_json_is_one_object_with_a_schema_and_writes_what_is_asked_for(run, tmp_path):
    shown = json.loads(call(run, "--json").stdout)
    assert (shown["schema"], shown["n_done"], shown["files"], shown["faults"]) == (1, 2, [], [])
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl"]
    shown = json.loads(call(run, "--json", "-o", tmp_path / "x.html").stdout)
    assert shown["files"] == [str(tmp_path / "x.html")]


def test_open_shows_the_file(run, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    call(run, "--open")
    assert opened == [(run / "report.html").as_uri()]


def test_a_damaged_run_is_shown_and_its_faults_are_said(run):
    with (run / "events.jsonl").open("a") as events:
        events.write('{"event":"Spa')
    result = call(run)
    assert result.exit_code == 0
    assert "1 line was damaged" in result.stderr


def test_no_run_and_a_place_that_cannot_be_written_are_usage_errors(run, tmp_path, command):
    code, out, err = command("report", tmp_path / "nothing")
    assert (code, out, "error: there is no run" in err, "hint:" in err) == (2, "", True, True)
    code, _, err = command("report", run, "-o", tmp_path / "no" / "x.html")
    assert (code, "-o" in err) == (2, True)


def test_two_runs_are_compared(run, tmp_path):
    result = call(run, run, "-o", tmp_path / "both.html")
    assert result.stdout.splitlines() == [str(tmp_path / "both.html")]
    assert "1.000" in result.stderr
    page = json.loads(call(run, run, "--json").stdout)
    assert [one["n_done"] for one in page["runs"]] == [2, 2]
    assert page["files"] == []


def test_a_trace_is_of_one_run(run, tmp_path):
    assert isinstance(call(run, run, "--trace", tmp_path / "t.json").exception, click.UsageError)
    assert isinstance(call(run, "--merge", tmp_path / "t.json").exception, click.UsageError)
