"""Stages that hang in every way: all other items end with a plain loop's bytes, and what hangs is listed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipeline.written_jobs import write_job

from evenload.cli import cli
from evenload.errors import ConfigError
from evenload.events import Event, ItemFailed, ItemFinished, Note, Span
from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.dispatch import hang_watch
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask, TimeLimit
from evenload.pipeline.planning.job_plan import PlannedJob
from evenload.pipeline.run.workers import slow_workers

STAGES = """
import ctypes, threading, time
from pathlib import Path

HERE = Path(__file__).parent

def hang(how):
    while not (HERE / "released").exists():
        if how == "event":
            threading.Event().wait(1000)
        elif how == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        elif how == "gil":
            ctypes.PyDLL(None).sleep(1)  # nobody else gets the interpreter's lock
        else:
            time.sleep(0.02)

class Draw:
    def __init__(self, context, *, loads="", marker="", n_lanes=False):
        if loads and not (HERE / marker).exists():
            (HERE / marker).write_text("")
            hang(loads)
        if n_lanes:
            self.lane = lambda: Draw(context)
    def __call__(self, inputs, item):
        if inputs.get("draws"):
            (HERE / f"begun-{item.id}").write_text("")
            hang(inputs["draws"])
        return {"drawn": item.rng().random((8, 9, 3)), "at": item.index}
    def batch(self, inputs, items):
        return [self(*one) for one in zip(inputs, items)]

class Weigh:
    def __call__(self, inputs, item):
        if inputs.get("weighs"):
            hang(inputs["weighs"])
        return {"weight": item.seed % 1000 + inputs["at"]}
"""
JOB = """\
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: png}, params: {PARAMS}}
  - {name: weigh, target: 'stages.py:Weigh'}
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, a stack comes, and comes whole."""
    monkeypatch.setattr(slow_workers, "STACK_WAIT_S", 90.0)
    monkeypatch.setattr(slow_workers, "SETTLED_S", 1.0)


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the job for what is healthy, and a short one for what hangs: no machine is too busy."""
    limit_of = ItemFlow.limit_of

    def limit(flow: ItemFlow, task: StageTask) -> TimeLimit | None:
        asked, inputs = limit_of(flow, task), flow.inputs[flow.strands[task.strand].at]
        is_hung = ("draws", "weighs")[task.stage] in inputs
        return TimeLimit(0.5, asked.text) if is_hung and asked is not None else asked

    monkeypatch.setattr(ItemFlow, "limit_of", limit)


def make_job(folder: Path, hung: dict[int, dict[str, str]], n: int = 8, params: str = "") -> Path:
    rows = [{"id": f"r{at}", **hung.get(at, {})} for at in range(n)]
    stages = JOB.replace("PARAMS", params)
    return write_job(folder, STAGES, stages, rows, job="seed: 3, out: run", devices="cpu*2")


def with_lanes(make_plan: Callable[..., PlannedJob]) -> Callable[..., PlannedJob]:
    """A plan that is the same but for three items at once in a worker."""

    def planned(*args: Any) -> PlannedJob:
        made = make_plan(*args)
        phases = tuple(
            replace(phase, units=tuple(replace(u, fit=replace(u.fit, in_flight=3)) for u in phase.units))
            for phase in made.plan.phases
        )
        return made._replace(plan=replace(made.plan, phases=phases))

    return planned


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """What each item gives where nothing hangs, one after the other in this process."""
    job = make_job(tmp_path_factory.mktemp("plain"), {})
    return given(Pipeline.from_yaml(job).run(devices="cpu*1", backend="inline"))


def given(result: PipelineResult) -> dict[str, tuple]:
    return {
        one.id: (one.seed, one.outputs, (result.folder / one.outputs["drawn"]).read_bytes())
        for one in result
        if one.status == "done"
    }


@contextmanager
def running(job: Path, *changes: str) -> Iterator[tuple[list[PipelineResult], list[Event]]]:
    """A run in a thread, which ends what hangs when the block ends, so that nothing is left behind."""
    seen: list[Event] = []
    results: list[PipelineResult] = []
    pipeline = Pipeline.from_yaml(job, changes)
    thread = threading.Thread(target=lambda: results.append(pipeline.run(sinks=[seen.append])))
    thread.start()
    try:
        yield results, seen
    finally:
        (job.parent / "released").write_text("")
        thread.join(200)
    assert not thread.is_alive()


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("how", ["one by one", "batches", "lanes"])
def test_what_hangs_is_listed_and_all_others_are_a_plain_loops(
    tmp_path: Path, how: str, expected: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = {2: {"draws": "event"}, 4: {"draws": "gil"}, 5: {"weighs": "lock"}}
    job = make_job(tmp_path, hung, params="n_lanes: true" if how == "lanes" else "")
    batch = "batch: 3, " if how == "batches" else ""
    text = job.read_text().replace("{name: draw,", f"{{name: draw, {batch}timeout_s: 1000, ")
    job.write_text(f"{text}errors: {{timeout_s: 1000}}\n")
    if how == "lanes":
        monkeypatch.setattr(Pipeline, "_planned", with_lanes(Pipeline._planned))
    result = Pipeline.from_yaml(job).run()
    assert given(result) == {name: one for name, one in expected.items() if name not in ("r2", "r4", "r5")}
    assert (result.status, result.exit_code) == ("failures", 1)
    failed = {one.id: one.error for one in result.failures}
    assert {name: error.stage for name, error in failed.items() if error} == {
        "r2": "draw", "r4": "draw", "r5": "weigh"
    }  # fmt: skip
    for error in failed.values():
        assert error is not None
        assert error.type == "TaskTimeout"
        assert "longer than 1000 s and was ended on cpu:" in error.message
        assert "stages.py" in error.traceback
        assert "in hang" in error.traceback
    if how != "one by one":
        return
    again = Pipeline.from_yaml(job).run()
    assert [one.id for one in again.failures] == ["r2", "r4", "r5"]  # nobody waits for them again
    (tmp_path / "released").write_text("")
    said = CliRunner().invoke(cli, ["retry", "--failed", str(tmp_path / "run"), "-q"])
    assert said.exit_code == 0, said.output
    assert given(Pipeline.from_yaml(job).run()) == expected


@pytest.mark.usefixtures("short_limits")
def test_time_of_items_that_were_killed_is_no_useful_work(tmp_path: Path) -> None:
    job = make_job(tmp_path, {at: {"draws": "sleep"} for at in range(4)}, n=4)
    seen: list[Event] = []
    result = Pipeline.from_yaml(job, ["errors.timeout_s=1000"]).run(sinks=[seen.append])
    assert len(result.failures) == 4
    assert [event.busy_s for event in seen if isinstance(event, Span)] == [0.0] * 4
    assert result.summary is not None
    assert result.summary.factors is None


def test_a_load_that_hangs_is_tried_by_another_worker(tmp_path: Path, expected: dict) -> None:
    job = make_job(tmp_path, {}, params="loads: gil, marker: seen")
    result = Pipeline.from_yaml(job, ["errors.load_timeout_s=10"]).run(devices="cpu*1")
    assert given(result) == expected
    assert result.status == "done"


def test_the_time_of_the_job_is_up(tmp_path: Path, expected: dict) -> None:
    job = make_job(tmp_path, {0: {"weighs": "sleep"}, 1: {"draws": "gil"}})
    result = Pipeline.from_yaml(job, ["job.timeout_s=2"]).run()
    assert (result.status, result.exit_code) == ("timed out", 1)
    assert given(result).items() <= expected.items()
    assert {one.id for one in result if one.status == "unfinished"} >= {"r0", "r1"}
    rows = (tmp_path / "run/results.jsonl").read_text().splitlines()
    assert len(rows) == 8
    (tmp_path / "released").write_text("")
    assert given(Pipeline.from_yaml(job).run()) == expected


def test_without_a_limit_a_hang_is_named_and_holds_nobody_up(
    tmp_path: Path, expected: dict, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "SLOW_S", 1.0)
    monkeypatch.setattr(hang_watch, "SLOW_TIMES", 0.0)
    job = make_job(tmp_path, {3: {"draws": "gil"}})
    with running(job, "devices=cpu*1") as (results, seen):
        until(
            lambda: sum(isinstance(e, ItemFinished) and e.stage == "weigh" for e in seen) == 7, "all others"
        )
        until(
            lambda: any(
                "draw of r3 is running on cpu:0 for" in e.text and "in hang" in e.text
                for e in seen
                if isinstance(e, Note)
            ),
            "its name and its stack",
        )
        assert not any(isinstance(e, ItemFailed) for e in seen)
        said = CliRunner().invoke(cli, ["stop", str(tmp_path / "run"), "--item", "r33"])
        assert said.exit_code != 0
        assert isinstance(said.exception, ConfigError)
        assert "no item is called 'r33'" in said.exception.message
        said = CliRunner().invoke(cli, ["stop", str(tmp_path / "run"), "--item", "r3"])
        assert "given up: r3\n" in said.output
        until(lambda: results, "the end of the run")
    assert results[0].status == "failures"
    assert [(one.id, one.error.type) for one in results[0].failures if one.error] == [("r3", "Stopped")]
    assert given(results[0]) == {name: one for name, one in expected.items() if name != "r3"}


def test_a_run_is_stopped_from_outside_and_gone_on_with_without_an_item(
    tmp_path: Path, expected: dict, until: Callable[..., None]
) -> None:
    job = make_job(tmp_path, {1: {"draws": "event"}})
    with running(job) as (results, _):
        until((tmp_path / "begun-r1").exists, "the item that hangs is running")
        assert CliRunner().invoke(cli, ["stop", str(tmp_path / "run")]).exit_code == 0
        until(lambda: results, "the end of the run")
    assert (results[0].status, results[0].exit_code) == ("interrupted", 130)
    (tmp_path / "released").unlink()
    result = Pipeline.from_yaml(job).run(skip=["r1"])
    assert (result.status, result.exit_code, result.item_counts["skipped"]) == ("done", 0, 1)
    assert given(result) == {name: one for name, one in expected.items() if name != "r1"}
    assert CliRunner().invoke(cli, ["run", str(job), "--skip", "r1", "-q"]).exit_code == 0
    with pytest.raises(ConfigError, match="no item is called 'r9'"):
        Pipeline.from_yaml(job).run(skip=["r9"])
