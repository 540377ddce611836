"""Items, samples and attempts are counted apart, and failures between stages told: by a whole run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pipeline.written_jobs import write_job

from evenload.cli import cli
from evenload.events import Counted, ItemFailed, read_events
from evenload.pipeline import Pipeline
from evenload.report.tally import summarise

STAGES = """
class Rate:
    def __call__(self, inputs, item):
        return dict([("sc" + "ore", item.seed % 97)] if item.index != 1 else [])
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    rows = [{"id": f"i{n}", "weight": n} for n in range(5)]
    stage = '  - {name: rate, target: "stages.py:Rate", when: "weight < 4", samples: 2, best: {by: score}}\n'
    return write_job(tmp_path, STAGES, stage, [*rows, {"id": "i5", "wait": 1}], job="out: run")


def test_counts_are_named_and_failures_between_stages_are_told(job: Path) -> None:
    result = Pipeline.from_yaml(job).run(backend="inline")
    assert [item.status for item in result] == ["done", "failed", "done", "done", "filtered", "failed"]
    ends = {"done": 3, "filtered": 1, "failed": 2, "unfinished": 0, "skipped": 0}
    assert result.item_counts == {"total": 6, **ends}
    assert result.sample_counts["total"] == 8
    assert (result.sample_counts["done"], result.sample_counts["not_chosen"]) == (3, 3)
    assert result.counts["attempts"] == 8
    assert result.status == "failures"
    written = json.loads((job.parent / "run/summary.json").read_text())
    assert written["counts"] == result.counts
    told = [one for one in read_events(job.parent / "run") if isinstance(one, ItemFailed)]
    assert sorted(one.item for one in told) == ["i1", "i1 #1", "i5"]
    assert all("'score'" in one.message or "'weight'" in one.message for one in told)
    again = Pipeline.from_yaml(job).run(backend="inline")
    assert again.item_counts == result.item_counts
    assert len([one for one in read_events(job.parent / "run") if isinstance(one, ItemFailed)]) == 3
    text = "3 done, 1 filtered, 2 failed of 6 items (8 samples)"
    said = CliRunner().invoke(cli, ["status", str(job.parent / "run")]).output
    assert f"failures: {text} in" in said
    assert text in again.summary.headline()
    assert json.loads((job.parent / "run/summary.json").read_text())["n_done"] == 3
    page = job.parent / "page.html"
    assert CliRunner().invoke(cli, ["report", str(job.parent / "run"), "-o", str(page)]).exit_code == 0
    assert text in page.read_text()


def test_a_run_counts_items_while_it_goes_on(job: Path) -> None:
    seen: list[Counted] = []

    def count(event: object) -> None:
        if isinstance(event, Counted):
            seen.append(event)

    result = Pipeline.from_yaml(job).run(backend="inline", sinks=[count])
    assert seen[0].ends == {"total": 6, "done": 0, "filtered": 1, "failed": 1, "unfinished": 4, "skipped": 0}
    assert seen[-1].ends == result.item_counts
    assert seen[-1].samples == result.sample_counts
    assert summarise([*read_events(result.folder)][:-1]).counts["items"] == result.item_counts


def test_the_first_failure_between_stages_may_stop_the_run(job: Path) -> None:
    text = job.read_text().replace("report:", "errors: {on_error: stop}\nreport:")
    job.write_text(text)
    result = Pipeline.from_yaml(job).run(backend="inline", out=job.parent / "stopped")
    assert result.status == "failed"
    assert result.item_counts["unfinished"] > 0
