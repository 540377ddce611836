"""Tests the plan's event and the queue lengths through whole runs and reports."""

from pathlib import Path

import pytest
from pipeline.written_jobs import write_job

from evenload.events import Event, Planned, Queued, RunStarted
from evenload.pipeline import Pipeline
from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.run.run_events import declared_work
from evenload.report.html import view_of

STAGES = """
import time

class Slow:
    def __init__(self, context, *, seconds=0.01): self.seconds = seconds
    def __call__(self, inputs, item, *, true_cfg_scale=1.0):
        time.sleep(self.seconds)
        return {f"after_{len(inputs)}": 1}
"""
JOB = """\
  - {name: first, target: 'stages.py:Slow', estimate: {item_s: 0.01, load_s: 0.0}}
  - {name: second, target: 'stages.py:Slow', estimate: {item_s: 0.01, load_s: 0.0}}
"""
SORTED = "report: {html: false, trace: false, sort: score}\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STAGES, JOB, devices="cpu*2", more=SORTED)


def test_a_run_tells_its_plan_and_its_queues(job: Path) -> None:
    seen: list[Event] = []
    assert Pipeline.from_yaml(job).run(backend="inline", sinks=[seen.append]).status == "done"
    started = next(event for event in seen if isinstance(event, RunStarted))
    assert started.facts["sort"] == "score"
    (plan,) = (event for event in seen if isinstance(event, Planned))
    assert plan.makespan_s
    assert plan.bound_s
    assert plan.makespan_s >= plan.bound_s
    assert {one[1] for one in plan.slices} == {"first", "second"}
    shown = view_of(seen).plan.to_json()
    assert shown is not None
    assert [one["n_measured"] for one in shown["by_stage"]] == [6, 6]
    assert sum(one["n_planned"] for one in shown["by_stage"]) == 12
    last = {event.stage: event for event in seen if isinstance(event, Queued)}
    assert (last["first"].waiting, dict(last["first"].running)) == (0, {})


def test_without_known_times_the_plan_has_no_seconds(job: Path) -> None:
    seen: list[Event] = []
    job.write_text(job.read_text().replace(", estimate: {item_s: 0.01, load_s: 0.0}", ""))
    Pipeline.from_yaml(job).run(backend="inline", sinks=[seen.append])
    (plan,) = (event for event in seen if isinstance(event, Planned))
    assert (plan.makespan_s, list(plan.slices)) == (None, [])
    assert view_of(seen).plan.to_json() is None


def test_of_what_stages_say_of_their_work_only_what_is_said_is_told() -> None:
    said = {"a": {"flop": 2e12}, "b": {}, "c": {"flop": 1e9, "bytes": 1e6}}
    stages = [{"name": name, "target": "x.py:X", "estimate": work} for name, work in said.items()]
    assert declared_work(list(map(StageSpec.model_validate, stages))) == {"a": said["a"], "c": said["c"]}
