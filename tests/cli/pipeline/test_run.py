"""``evenload run`` as a person or a script meets it: what is printed where, and the exit codes."""

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from evenload.events import Event, EventFile
from evenload.pipeline import PipelineResult

STAGES = """
class Double:
    def __init__(self, context, *, by=2): self.by = by
    def __call__(self, inputs, item):
        return {"value": inputs["n"] * self.by}
"""
JOB = """\
version: 1
job: {name: doubled, inputs: {jsonl: rows.jsonl, group_by: kind}, out: runs/x}
stages:
  - {name: double, target: 'stages.py:Double'}
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "stages.py").write_text(STAGES)
    rows = '{"id": "a", "n": 1, "kind": "x"}\n{"id": "b", "n": 2, "kind": "y"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


@pytest.fixture
def evenload(command):
    return partial(command, "run")


def test_a_run_prints_its_result_and_where_it_is(job, evenload):
    code, out, err = evenload(job, "--devices", "cpu*1", "--backend", "inline", "--no-progress")
    assert (code, err) == (0, "")
    assert "2 of 2 done" in out
    assert str(job.parent / "runs/x/report.html") in out
    assert (job.parent / "runs/x/report.html").is_file()


def test_json_is_one_object_and_nothing_else(job, evenload):
    options = ("--backend", "inline", "--devices", "cpu*2", "--set", "double.by=5", "--seed", "3")
    code, out, _ = evenload(job, "--json", *options)
    said = json.loads(out)
    assert (code, said["schema"], said["status"], said["n_done"]) == (0, 1, "done", 2)
    rows = [json.loads(line) for line in Path(said["folder"], "results.jsonl").read_text().splitlines()]
    assert [row["outputs"]["value"] for row in rows] == [5, 10]
    assert "seed: 3" in Path(said["folder"], "config.yaml").read_text()


def test_report_and_out_go_where_they_are_told_or_are_refused_at_once(job, evenload):
    code, out, err = evenload(job, "--backend", "inline", "--report", job.parent / "no/dir/r.html")
    assert (code, out, "the report cannot be written" in err) == (2, "", True)
    for own in ("stages.py", "rows.jsonl"):
        before = (job.parent / own).read_bytes()
        code, _, err = evenload(job, "--backend", "inline", "--report", job.parent / own)
        assert (code, "is no page of HTML" in err, (job.parent / own).read_bytes()) == (2, True, before)
    assert not (job.parent / "runs").exists()
    page, folder = job.parent / "page.html", job.parent / "elsewhere"
    code, out, _ = evenload(job, "--backend", "inline", "-o", folder, "--report", page, "-q")
    assert (code, str(page) in out, page.is_file()) == (0, True, True)
    assert (folder / "results.jsonl").is_file()
    assert evenload(job, "--backend", "inline", "-o", folder, "--report", page, "-q")[0] == 0


def test_failed_items_are_listed_and_the_exit_code_is_1(job, evenload):
    (job.parent / "rows.jsonl").write_text('{"id": "a", "n": 1, "kind": "x"}\n{"id": "b", "kind": "x"}\n')
    code, out, _ = evenload(job, "--backend", "inline", "-q")
    assert code == 1
    assert f"failed b in double: KeyError: 'n' ({job.parent / 'stages.py'} line 5)" in out
    assert "1 done, 1 failed of 2 items in " in out


def test_dry_run_prints_the_plan_and_makes_nothing(job, evenload):
    code, out, err = evenload(job, "--dry-run", "--devices", "cpu*3", "--policy", "pull")
    assert (code, err) == (0, "")
    told = ("doubled: 2 items", "policy pull", "x (1), y (1)", "double = stages.py:Double", "cpu:2", "runs/x")
    for text in told:
        assert text in out
    code, out, _ = evenload(job, "--dry-run", "--json")
    assert json.loads(out)["n_items"] == 2
    assert not (job.parent / "runs").exists()


def test_every_fault_is_listed_before_any_work(job, evenload):
    job.write_text(
        JOB.replace("Double", "Duble").replace("jsonl: rows", "jsnl: rows") + "schedule: mesured\n"
    )
    code, out, err = evenload(job)
    assert (code, out) == (2, "")
    assert "has 3 faults" in err
    for text in ("did you mean 'jsonl'", "did you mean 'Double'", "did you mean 'measured'"):
        assert text in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--devices", "cpu*0"), "0 CPU slots"),
        (("--devices", "gpux"), "gpux"),
        (("--policy", "mesured"), "did you mean 'measured'"),
        (("--backend", "proces"), "did you mean 'process'"),
        (("--set", "job.seed"), "is not key=value"),
        (("--seed", "-1"), "not in the range"),
        (("--devise", "cpu"), "No such option"),
    ],
)
def test_wrong_usage_is_exit_code_2(job, evenload, arguments, said):
    code, out, err = evenload(job, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_without_a_job_the_schema_is_all_that_can_be_had(tmp_path, evenload):
    assert evenload()[0] == 2
    code, _, err = evenload(tmp_path / "no.yaml")
    assert (code, "cannot read" in err) == (2, True)
    code, out, _ = evenload("--schema")
    assert (code, bool(json.loads(out)["properties"]["stages"])) == (0, True)


def test_a_second_run_goes_on_and_does_what_is_asked_for_again(job, evenload):
    options = ("--backend", "inline", "-q")
    assert evenload(job, *options)[0] == 0
    code, out, _ = evenload(job, *options, "--json", "--resume")
    assert (code, json.loads(out)["n_restored"]) == (0, json.loads(out)["total"])
    code, out, _ = evenload(job, *options, "--json", "--fresh", "double")
    assert (code, json.loads(out)["n_restored"]) == (0, 0)
    assert evenload(job, *options, "--dry-run", "--fresh", "doubel")[0] == 2
    assert "since it is asked for" in evenload(job, "--dry-run", "--fresh", "double")[1]
    assert evenload("--fresh", job, *options)[0] == 0
    assert evenload(job, *options, "--resume", "--fresh")[0] == 2


def test_what_no_terminal_can_show_is_shown_as_its_escape(job, evenload):
    (job.parent / "rows.jsonl").write_text('{"id": "a\\ud800", "kind": "x"}\n')
    code, out, err = evenload(job, "--backend", "inline", "-q")
    assert (code, err) == (1, "")
    assert "failed a\\ud800 in double: KeyError" in out
    code, out, _ = evenload(job, "--backend", "inline", "-q", "--json", "--overwrite")
    assert json.loads(out)["failures"][0]["id"] == "a\ud800"


def test_a_record_that_stops_early_is_told_on_stderr(job, evenload, monkeypatch):
    def full(self: EventFile, event: Event) -> None:
        self.error = OSError(28, "No space left on device")
        raise self.error

    monkeypatch.setattr(EventFile, "__call__", full)
    code, _, err = evenload(job, "--backend", "inline", "-q")
    assert code == 0
    assert "warning: events.jsonl stops early (OSError: [Errno 28] No space left" in err
    assert len((job.parent / "runs/x/results.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_the_result_is_printed_wait(job, evenload, monkeypatch, number):
    def signalled(result: PipelineResult) -> str:
        signal.raise_signal(number)
        return f"{result.status}, and said so"

    monkeypatch.setattr("evenload.cli.pipeline.run._text", signalled)
    code, out, _ = evenload(job, "--backend", "inline", "-q")
    assert (code, out) == (0, "done, and said so\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_to_do_about_failures_is_said_once(job, evenload):
    """Both items fail of the same: `by` makes lists of them."""
    code, out, _ = evenload(job, "--backend", "inline", "--set", "double.by=[1]", "--no-progress")
    assert code == 1
    assert out.count("that is of type list") == 2
    assert out.count("hint: return a number or text") == 1
