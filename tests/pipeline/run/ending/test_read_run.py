"""A run whose events cannot be read or counted at its end: its results and summary are there all the same."""

import errno
import inspect
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pipeline.written_jobs import write_job

from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.run.ending.read_run import read_run
from evenload.report.html import RunView, write_report
from evenload.report.tally import Tally

JOB = """\
  - {name: step, target: 'stages.py:Step'}
on_done: {command: [touch, told]}
"""
STEP = """\
class Step:
    def __call__(self, inputs, item):
        if item.index == 2:
            raise ValueError('two')
        return {'n': item.index}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STEP, JOB, 4, job="out: run", devices="cpu*1", more="")


class Faults:
    """A hook that has calls of the report's functions raise ``error``, the ``number``th and ``n_more``.

    Not of generators: they are called once more when they are disposed of, where Python hides what is raised.
    """

    def __init__(self, error: Exception, number: int, n_more: int):
        self.error, self.first, self.last, self.n_calls = error, number, number + n_more, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_usual = not code.co_flags & inspect.CO_GENERATOR
        if event == "call" and is_usual and "/evenload/report/" in code.co_filename:
            self.n_calls += 1
            if self.first <= self.n_calls <= self.last:
                raise self.error

    def during(self, do: Callable[[], Any]) -> Any:
        usual = sys.getprofile()
        sys.setprofile(self)
        try:
            return do()
        finally:
            sys.setprofile(usual)


def test_whatever_goes_wrong_there_is_a_summary_and_what_it_lacks_is_said(job: Path) -> None:
    rng, run = random.Random(3), job.parent / "run"
    assert Pipeline.from_yaml(job).run(backend="inline").n_done == 3
    none = Faults(ValueError(), 0, 0)
    _, whole, view, faults = none.during(lambda: read_run(run, is_shown=True))
    assert (view is not None, faults) == (True, [])
    for number in [1, *rng.choices(range(1, none.n_calls), k=40)]:
        error = rng.choice([OSError(errno.EIO, "Input/output error"), KeyError("x"), RecursionError("deep")])
        gather = Faults(error, number, rng.choice([0, 0, 10, none.n_calls]))
        _, summary, view, faults = gather.during(lambda: read_run(run, is_shown=True))
        assert summary == whole or len(faults) == 2, (number, error)
        assert view is not None or faults[0].startswith("no report: events.jsonl could not be"), number
    _, summary, view, faults = read_run(run, is_shown=False)
    assert (summary, view, faults) == (whole, None, [])


def test_what_is_counted_during_a_run_is_what_its_file_says(job: Path) -> None:
    """The oracle is a reading of the file, with and without an earlier session in it."""
    for _ in range(2):
        result = Pipeline.from_yaml(job).run(retry_failed=True)
        assert result.report is not None
        shown = result.report.read_text()
        assert write_report(job.parent / "run") == result.summary
        assert result.report.read_text() == shown


@pytest.mark.parametrize(("broken", "n_said"), [((RunView,), 1), ((RunView, Tally), 2)])
def test_a_run_ends_as_usual_without_its_report(
    job: Path, broken: tuple[type, ...], n_said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, event: Any) -> None:
        raise KeyError("a bug")

    for counts in broken:
        monkeypatch.setattr(counts, "add", fails)
    result: PipelineResult = Pipeline.from_yaml(job).run(backend="inline")
    assert (result.n_done, result.status, result.exit_code, result.report) == (3, "failures", 1, None)
    assert len(result.faults) == n_said
    assert result.faults[0].startswith("no report: ")
    rows = [json.loads(line) for line in (job.parent / "run/results.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done"]
    written = json.loads((job.parent / "run/summary.json").read_text())
    assert written["faults"] == result.faults
    assert (written["n_done"], written["counts"]["items"]["done"]) == (3 if n_said == 1 else 0, 3)
    assert (job.parent / "told").exists()
