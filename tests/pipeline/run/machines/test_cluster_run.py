"""Runs a pipeline over a Ray cluster of real nodes on this machine: they are killed, join, and lack files."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import NoUsableDevice
from evenload.events import Note, Span
from evenload.executor import Ray
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch.worker_protocol import Order
from evenload.pipeline.run.machines.remote_workers import RemoteWorkers
from evenload.pipeline.worker.site import ScratchFolder

STAGES = """
import os, time
from pathlib import Path
import helper

class Draw:
    '''The first item of west is drawn at once; all others wait for the gate, for ever if west is dead.'''
    def __init__(self, context, *, factor):
        self.gate, self.is_west = "GATE", context.device.id.startswith("west/")
        self.is_first = self.is_west
        self.factor = float(context.path(factor).read_text())
    def __call__(self, inputs, item):
        if self.is_west and not self.is_first:
            open(self.gate + ".west", "w").close()
        while not self.is_first and not (os.path.exists(self.gate) and not self.is_of_a_dead_node()):
            time.sleep(0.01)
        self.is_first = False
        grey = len(Path(inputs["path"]).read_bytes()) if "path" in inputs else item.index
        return {"drawn": helper.picture(item, grey * self.factor), "at": item.index}
    def is_of_a_dead_node(self):  # its processes may live on for a moment, and would give results
        return self.is_west and os.path.exists(self.gate + ".dead")

class Weigh:
    def __init__(self, context): pass
    def __call__(self, inputs, item):
        from evenload.pipeline import read_picture
        return {"weight": float(read_picture(inputs["drawn"]).mean()), "copy": f"{item.id} {item.seed}"}
"""
HELPER = """
def picture(item, grey):
    return (item.rng().random((40, 50, 3)) + grey) % 1.0
"""
JOB = """\
version: 1
job: {name: cluster, inputs: {folder: items}, seed: 11, out: run}
devices: cpu*1
stages:
  - name: draw
    target: 'stages.py:Draw'
    params: {factor: settings/factor.txt}
    outputs: {drawn: png}
  - {name: weigh, target: 'stages.py:Weigh', outputs: {copy: txt}}
report: {html: false, trace: false}
"""
N_ITEMS = 12


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job file; what its items wait for is ``gate`` beside it."""
    folder = tmp_path / "job"
    for name, text in (
        ("stages.py", STAGES.replace("GATE", str(tmp_path / "gate"))),
        ("helper.py", HELPER),
        ("settings/factor.txt", "0.25"),
        ("job.yaml", JOB),
        *((f"items/{at}.txt", "x" * at) for at in range(N_ITEMS)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "job.yaml"


@pytest.fixture
def no_scratch() -> Iterator[None]:
    """What killed workers leave in the machine's folder for temporary files is swept."""
    yield
    ScratchFolder().close()


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch, no_scratch: None) -> None:
    """Workers of other nodes are asked for folders that are there by name only, as another machine's are."""
    greeting = RemoteWorkers.greeting

    def of_elsewhere(visits: RemoteWorkers, worker: Any) -> Order:
        order = greeting(visits, worker)
        if not worker.device.node:
            return order
        assert order.check is not None
        files = tuple(given._replace(mark="another") for given in order.check.job_files)
        return order._replace(check=replace(order.check, token="another", job_files=files))

    monkeypatch.setattr(RemoteWorkers, "greeting", of_elsewhere)


class Watch:
    """A sink that has something done once, at the first result of a device whose name begins so."""

    def __init__(self, device: str, act: Callable[[], object]):
        self.device, self.act, self.notes = device, act, list[str]()
        self.is_done = False

    def __call__(self, event: Any) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, Span) and event.device.startswith(self.device) and not self.is_done:
            self.is_done = True
            self.act()


def outputs_of(folder: Path) -> dict[str, bytes]:
    """Every file that the stages made, and the rows."""
    files = [path for path in (folder / "outputs").rglob("*") if path.is_file()]
    made = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return made | {"results": (folder / "results.jsonl").read_bytes()}


def made_here(job: Path, tmp_path: Path) -> dict[str, bytes]:
    """What the job gives on this machine; it opens the gate for that time."""
    (tmp_path / "gate").touch()
    result = Pipeline.from_yaml(job).run(backend="inline", out=tmp_path / "here")
    assert result.status == "done"
    (tmp_path / "gate").unlink()
    return outputs_of(tmp_path / "here")


@pytest.fixture
def killer(machines: Any, tmp_path: Path, until: Callable[..., None]) -> Iterator[threading.Thread]:
    """A thread that kills west when it works on its second item; then the others need not wait any more."""

    def kill() -> None:
        until(lambda: (tmp_path / "gate.west").exists() or is_over.is_set(), "west works")
        if not is_over.is_set():
            (tmp_path / "gate.dead").touch()
            machines.kill("west")
        (tmp_path / "gate").touch()

    is_over = threading.Event()
    thread = threading.Thread(target=kill)
    yield thread
    is_over.set()
    thread.join(timeout=500)


def kill_west(job: Path, tmp_path: Path, machines: Any, killer: threading.Thread) -> list[str]:
    """Run over two nodes, one of which is killed while it works; returns the notes."""
    machines.join("west")
    expected = made_here(job, tmp_path)
    killer.start()
    watch = Watch("west/", lambda: None)
    result = Pipeline.from_yaml(job).run(backend=Ray(reserve=False), sinks=[watch])
    killer.join(timeout=500)
    assert watch.is_done, "it had a result before"
    assert result.status == "done"
    assert outputs_of(job.parent / "run") == expected
    assert {path.name for path in (job.parent / "run").iterdir()} == {
        path.name for path in (tmp_path / "here").iterdir()
    }, "neither a token nor half a file is left"
    return watch.notes


def test_a_node_that_is_killed_costs_what_ran_there(
    ray_head: Any, machines: Any, killer: threading.Thread, far_west: None, job: Path, tmp_path: Path
) -> None:
    """Its files were fetched, as it has neither the run folder nor the job's."""
    notes = kill_west(job, tmp_path, machines, killer)
    assert any("what is made there is fetched" in text for text in notes)
    assert any("is sent there" in text and "job" in text for text in notes)


@pytest.mark.slow
@pytest.mark.parametrize("is_far", [False, True])
def test_a_node_that_joins_is_used_when_asked_to(
    ray_head: Any,
    machines: Any,
    job: Path,
    tmp_path: Path,
    until: Callable[..., None],
    request: pytest.FixtureRequest,
    is_far: bool,
) -> None:
    """Without it nothing would be done here: the items wait until it has made one."""
    if is_far:
        request.getfixturevalue("far_west")
    expected = made_here(job, tmp_path)
    job.write_text(job.read_text() + "backend: {name: ray, follow: true, reserve: false}\n")
    joins = Watch("", lambda: None)
    opens = Watch("west/", (tmp_path / "gate").touch)

    def join_when_begun(event: Any) -> None:
        if type(event).__name__ == "WorkerStarted" and not joins.is_done:
            joins.is_done = True
            machines.join("west")

    result = Pipeline.from_yaml(job).run(sinks=[join_when_begun, opens])
    assert opens.is_done
    assert result.status == "done"
    assert outputs_of(job.parent / "run") == expected
    assert any("west/cpu:0 joined" in text for text in opens.notes)


@pytest.mark.slow
def test_what_may_not_run_twice_fails_with_its_node(
    ray_head: Any, machines: Any, killer: threading.Thread, job: Path, tmp_path: Path
) -> None:
    once = job.read_text().replace("outputs: {drawn: png}", "outputs: {drawn: png}\n    repeatable: false")
    job.write_text(once)
    machines.join("west")
    killer.start()
    result = Pipeline.from_yaml(job).run(backend=Ray(reserve=False))
    killer.join(timeout=500)
    assert result.status == "failures"
    for failure in result.failures:  # all that ran there
        assert failure.error is not None
        assert failure.error.type == "WorkerLost"
        assert "repeatable: false" in failure.error.message
    again = Pipeline.from_yaml(job).run(backend="inline", retry_failed=True)
    assert again.status == "done"


@pytest.mark.slow
def test_a_run_whose_nodes_are_all_lost_is_gone_on_with(
    ray_head: Any, machines: Any, far_west: None, job: Path, tmp_path: Path
) -> None:
    expected = made_here(job, tmp_path)
    machines.join("west")
    watch = Watch("west/", lambda: machines.kill("west"))
    with pytest.raises(NoUsableDevice, match="draw"):
        Pipeline.from_yaml(job).run(devices="west/cpu*1", backend=Ray(reserve=False), sinks=[watch])
    (tmp_path / "gate").touch()
    result = Pipeline.from_yaml(job).run(backend="inline")
    assert (result.status, result.n_restored > 0) == ("done", True)
    assert outputs_of(job.parent / "run") == expected


@pytest.mark.slow
def test_what_a_machine_lacks_is_named_and_others_do_it(
    ray_head: Any, machines: Any, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gate").touch()
    greeting = RemoteWorkers.greeting

    def asks_for_more(visits: RemoteWorkers, worker: Any) -> Order:
        order = greeting(visits, worker)
        assert order.check is not None
        paths = {0: ("/nowhere/weights.pt",)} if worker.device.node else {}
        return order._replace(check=replace(order.check, paths=paths))

    monkeypatch.setattr(RemoteWorkers, "greeting", asks_for_more)
    machines.join("west")
    watch = Watch("", lambda: None)
    result = Pipeline.from_yaml(job).run(backend=Ray(reserve=False), sinks=[watch])
    assert result.status == "done"
    assert any("west/cpu:0 takes no part in draw: west has no /nowhere/weights.pt" in x for x in watch.notes)
    done = [json.loads(line) for line in (job.parent / "run" / "results.jsonl").read_text().splitlines()]
    assert len(done) == N_ITEMS
