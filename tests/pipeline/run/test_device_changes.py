"""Devices drained from and added to a run that is under way, through its folder."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline.written_jobs import write_job

from evenload.errors import ConfigError
from evenload.events import Event, ItemFinished, Span
from evenload.executor.loop.control import ask
from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.dispatch.device_group import AHEAD
from evenload.pipeline.run import device_changes
from evenload.pipeline.run.device_changes import DeviceChanges

JOB = "  - {name: nap, target: 'stages.py:Nap'}\n"
NAP = """
import time
from pathlib import Path
ALLOWED = Path(__file__).with_name("allowed")  # how many may end: the test goes on as fast as it can
class Nap:
    def __call__(self, inputs, item):
        while item.index >= int(ALLOWED.read_text() or 0):
            time.sleep(0.02)
        return {"napped": item.index}
"""


def test_devices_leave_and_come_back(tmp_path: Path, until: Callable[..., None]) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text("10")
    job = write_job(tmp_path, NAP, JOB, 80, job="out: run", devices="cpu*2")
    seen: list[Event] = []
    results: list[PipelineResult] = []
    run = threading.Thread(target=lambda: results.append(Pipeline.from_yaml(job).run(sinks=[seen.append])))
    run.start()
    try:
        until(lambda: any(isinstance(event, ItemFinished) for event in seen), "an item is finished")
        assert ask(tmp_path / "run", "drain", ["cpu:1"]) == ["cpu:0"]
        with pytest.raises(ConfigError, match="all that works"):
            ask(tmp_path / "run", "drain", ["cpu:0"])
        n_before = len(seen)
        allowed.write_text("40")
        until(lambda: sum(isinstance(event, Span) for event in seen[n_before:]) >= 5, "five tasks more")
        later = [event.device for event in seen[n_before:] if isinstance(event, Span)]
        assert later.count("cpu:1") <= 1 + AHEAD  # what it had when it was drained
        assert ask(tmp_path / "run", "add", ["cpu:1"]) == ["cpu:0", "cpu:1"]
    finally:
        allowed.write_text("80")
        run.join(250)
    assert results[0].status == "done"
    assert [row.outputs["napped"] for row in results[0]] == list(range(80))
    with pytest.raises(ConfigError, match="no job runs"):
        ask(tmp_path / "run", "list")


def test_what_is_asked_after_the_last_look_is_refused_as_soon_as_the_run_ends(
    tmp_path: Path, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, is_asked, results = tmp_path / "allowed", threading.Event(), []
    allowed.write_text("1")
    pipeline = Pipeline.from_yaml(write_job(tmp_path, NAP, JOB, 4, job="out: run", devices="cpu*2"))

    def looks_no_more(changes: DeviceChanges) -> None:
        if changes._requests:
            is_asked.set()

    monkeypatch.setattr(device_changes, "WAIT_S", threading.TIMEOUT_MAX)
    monkeypatch.setattr(DeviceChanges, "attend", looks_no_more)
    run = threading.Thread(target=lambda: results.append(pipeline.run()), daemon=True)
    run.start()
    until((tmp_path / "run" / "control" / "owner").exists, "it listens")
    with ThreadPoolExecutor(1) as others:
        asked = others.submit(ask, tmp_path / "run", "drain", ["cpu:1"], wait_s=250.0)
        assert is_asked.wait(timeout=250)
        allowed.write_text("4")
        with pytest.raises(ConfigError, match="refuses: the run has ended"):
            asked.result(timeout=250)
    run.join(timeout=250)
    assert results[0].status == "done"


def test_machines_that_come_or_go_after_the_end_change_nothing() -> None:
    told: list[object] = []
    driver: Any = SimpleNamespace(wake=lambda: None, leave=told.append, join=told.append, pool=())
    flow: Any = None
    changes = DeviceChanges(driver, flow)
    changes.lose(["cpu:1"], "was lost")
    changes.close()
    changes.lose(["cpu:1"], "was lost")
    changes.enter([])
    with pytest.raises(ConfigError, match="the run has ended"):
        changes.drain("cpu:1")
    assert not told


PLACED = """\
  - {name: where, target: 'stages.py:Where', devices: 'cpu:1'}
  - {name: again, target: 'stages.py:Again'}
"""
WHERE = """
import time
from pathlib import Path
import evenload
IS_OPEN = Path(__file__).with_name("open")
class Where:
    def __init__(self, context):
        self.device = context.device.id
    def __call__(self, inputs, item):
        while item.index and not IS_OPEN.exists():
            time.sleep(0.02)
        assert evenload.current_device().id == self.device
        return {"where": self.device}
class Again(Where):
    def __call__(self, inputs, item):
        return {"again": evenload.current_device().id}
"""


def test_a_stage_runs_only_where_the_job_says_and_its_last_device_stays(tmp_path: Path, until) -> None:
    is_open, seen, results = tmp_path / "open", [], []
    pipeline = Pipeline.from_yaml(write_job(tmp_path, WHERE, PLACED, 12, job="out: run", devices="cpu*2"))
    with pytest.raises(ConfigError, match=r"stages\[0\].devices \(line 5\): 'cpu:1' is not among"):
        pipeline.run(devices="cpu*1")
    with pytest.raises(ConfigError, match="not among"):
        pipeline.plan(devices="cpu*1")
    assert not (tmp_path / "run").exists(), "nothing is begun"
    assert "weights unknown on each of cpu:1" in pipeline.plan().to_text()
    run = threading.Thread(target=lambda: results.append(pipeline.run(sinks=[seen.append])))
    run.start()
    try:
        until(lambda: any(isinstance(event, Span) for event in seen), "a task has ended")
        with pytest.raises(ConfigError, match="'where' may run on no other device"):
            ask(tmp_path / "run", "drain", ["cpu:1"])
        assert ask(tmp_path / "run", "add", ["cpu*3"])
    finally:
        is_open.touch()
        run.join(250)
    assert results[0].status == "done"
    assert {row.outputs["where"] for row in results[0]} == {"cpu:1"}
