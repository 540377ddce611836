"""Workers that outlive a run: models are built once, another job's are not mistaken for them."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pipeline.written_jobs import write_job

from evenload.devices import DevicePool
from evenload.errors import ConfigError
from evenload.events import Event, Note, WorkerStarted
from evenload.executor.backends import WorkerOptions
from evenload.executor.decide.record import Record
from evenload.executor.loop.control import exchange
from evenload.executor.supervisor.group_environment import group_environment
from evenload.executor.supervisor.start_watch import StartLimits
from evenload.executor.task.prepare import Tasks
from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.artifacts import write_atomically
from evenload.pipeline.dispatch.worker_protocol import ADOPT, HostSpec, Order
from evenload.pipeline.run.workers.worker_cache import KeptWorkers
from evenload.pipeline.worker.stage_host import StageHost

STAGES = """
import os
from pathlib import Path

BUILT = []

class Model:
    def __init__(self, context, *, size=1):
        BUILT.append(size)
        self.size = size
    def __call__(self, inputs, item, *, times=1):
        if inputs.get("poison"):
            os._exit(3)
        return {"made": f"{item.seed * self.size * times}", "pid": os.getpid(), "n_built": len(BUILT)}

class After:
    def __init__(self, context): BUILT.append("after")
    def __call__(self, inputs, item):
        return {"text": Path(inputs["made"]).read_text() + "!"}
"""
JOB = """\
  - {name: model, target: 'stages.py:Model', outputs: {made: txt}, params: {size: 2}, call: {times: 1}}
  - {name: after, target: 'stages.py:After', outputs: {text: text}}
schedule: {mode: data_parallel}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STAGES, JOB)


def run(job: Path, workers: KeptWorkers | str, out: str, *changes: str, **more) -> PipelineResult:
    return Pipeline.from_yaml(job, changes).run(backend=workers, out=job.parent / out, **more)


def seen(result: PipelineResult, name: str) -> set:
    return {row.outputs[name] for row in result}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_next_run_finds_its_models_there(job: Path) -> None:
    with KeptWorkers("process") as workers:
        first = run(job, workers, "first")
        second = run(job, workers, "second", "model.times=3")
        alone = run(job, "inline", "alone", "model.times=3")
    assert (first.status, second.status) == ("done", "done")
    assert seen(second, "pid") == seen(first, "pid")
    assert seen(second, "n_built") == {2}
    assert [row.outputs["text"] for row in second] == [row.outputs["text"] for row in alone]
    assert (job.parent / "second/outputs/model/i0.txt").is_file()
    assert not (job.parent / "first/outputs/model/i0.txt").samefile(
        job.parent / "second/outputs/model/i0.txt"
    )


def test_another_model_is_built(job: Path) -> None:
    with KeptWorkers("inline") as workers:
        run(job, workers, "first")
        other = run(job, workers, "other", "model.size=5")
        seeded = run(job, workers, "seeded", "model.size=5", "job.seed=1")
        assert seen(other, "n_built") == {3}, "After stays, Model is built again"
        assert seen(seeded, "n_built") <= {4, 5}, "stages of one's own may have taken the seed"
        text = {row.id: row.outputs["text"] for row in run(job, "inline", "alone", "model.size=5")}
        assert {row.id: row.outputs["text"] for row in other} == text


def test_a_worker_that_died_meanwhile_is_replaced(job: Path, until: Callable[..., None]) -> None:
    events: list[Event] = []
    with KeptWorkers("process") as workers:
        first = run(job, workers, "first")
        for pid in seen(first, "pid"):
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: not is_alive(pid), "the killed worker is gone")
        second = run(job, workers, "second", sinks=[events.append])
        assert second.status == "done"
        assert not seen(second, "pid") & seen(first, "pid")
        assert any(isinstance(event, WorkerStarted) for event in events)
        (job.parent / "rows.jsonl").write_text('{"id": "a", "poison": 1}\n{"id": "b"}\n{"id": "c"}\n')
        third = run(job, workers, "third")
        assert [row.status for row in third] == ["failed", "done", "done"]
        (job.parent / "rows.jsonl").write_text('{"id": "b"}\n{"id": "c"}\n')
        assert run(job, workers, "fourth").status == "done"


def test_closing_ends_the_processes_and_a_new_run_starts_others(job: Path) -> None:
    workers = KeptWorkers("process")
    first = run(job, workers, "first")
    workers.make(WorkerOptions())
    with pytest.raises(ConfigError, match="another run"):
        run(job, workers, "second")
    workers.give_back()
    workers.close()
    assert not any(psutil.pid_exists(pid) for pid in seen(first, "pid"))
    workers.close()
    assert run(job, workers, "third").status == "done"
    workers.close()


def test_a_forked_process_starts_its_own_and_leaves_its_parents(job: Path) -> None:
    def in_child(parents: set) -> None:
        result = run(job, workers, "child")
        workers.close()
        os._exit(0 if result.status == "done" and not seen(result, "pid") & parents else 1)

    with KeptWorkers("process") as workers:
        first = run(job, workers, "first")
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(seen(first, "pid"),))
        child.start()
        child.join(100)
        assert child.exitcode == 0
        second = run(job, workers, "second")
        assert (second.status, seen(second, "pid")) == ("done", seen(first, "pid"))


def test_who_was_being_told_of_a_job_when_its_run_ended_does_not_stay(job: Path) -> None:
    """As on Ctrl-C: its answer would come in the next run."""
    with KeptWorkers("inline") as workers:
        run(job, workers, "first")
        assert list(workers._supervisor.waiting) == ["cpu:0"]
        workers.make(WorkerOptions())
        pool = DevicePool.discover().select("cpu*1")
        driver: Any = SimpleNamespace()  # is told nothing
        supervisor = workers.supervisor(Record(None, echo=False), driver, StartLimits())
        worker = supervisor.start("cpu:0", pool.device("cpu:0"), pool, group_environment(pool, ("cpu:0",)))
        assert worker is not None
        host = Tasks().prepare(functools.partial(StageHost, HostSpec(())), sends=False)
        supervisor.adopt(worker, SimpleNamespace(number=99), host, Order(ADOPT, spec=HostSpec(())))
        workers.give_back(["cpu:0"])
        assert not workers._supervisor.waiting
        assert run(job, workers, "second").status == "done"


def test_who_still_writes_files_when_its_run_ended_does_not_stay(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run takes its outcomes for those of its own tasks, which have the same numbers.

    The oracle is a run by workers of its own.
    """
    begun: list[Path] = []
    may_write = threading.Event()

    def stop() -> None:
        exchange(job.parent / "late", "stop", wait_s=60)
        may_write.set()

    def write_late(path: Path, content: bytes) -> None:
        begun.append(path)
        if len(begun) == 2:  # the loop knows that the first item is computed, and goes on with the second
            threading.Thread(target=stop, daemon=True).start()
        assert may_write.wait(60)
        write_atomically(path, content)

    with KeptWorkers("inline") as workers:
        run(job, workers, "first")
        monkeypatch.setattr("evenload.pipeline.worker.file_saver.write_output", write_late)
        assert run(job, workers, "late").status == "interrupted"
        assert not workers._supervisor.waiting
        second = run(job, workers, "second", "model.times=3")
        alone = run(job, "inline", "alone", "model.times=3")
    assert [row.outputs["text"] for row in second] == [row.outputs["text"] for row in alone]


def test_devices_of_another_run_are_started_beside_those_that_wait(job: Path) -> None:
    events: list[Event] = []
    with KeptWorkers("inline") as workers:
        run(job, workers, "first", devices="cpu*1")
        result = run(job, workers, "second", devices="cpu*3", sinks=[events.append])
    assert result.status == "done"
    assert not [one for one in events if isinstance(one, Note) and one.level == "error"]
