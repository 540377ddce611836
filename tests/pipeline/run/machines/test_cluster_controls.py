"""Everything that acts on a run acts on one over two nodes of a Ray cluster, too."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenload.events import Note
from evenload.executor import Ray
from evenload.executor.loop.control import exchange
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch import hang_watch
from evenload.pipeline.run.workers import slow_workers

STAGES = """
import os, time
class Draw:
    def __init__(self, context):
        self.is_west = context.device.id.startswith("west/")
    def __call__(self, inputs, item):
        while inputs.get("hangs") and not os.path.exists(inputs["gate"]):
            open(inputs["gate"] + ".begun", "w").close()
            time.sleep(0.02)
        return {"drawn": item.rng().random((20, 20, 3)), "at": item.index}
class Weigh:
    def __call__(self, inputs, item):
        from evenload.pipeline import read_picture
        return {"weight": float(read_picture(inputs["drawn"]).mean())}
"""
JOB = """\
version: 1
job: {name: controls, inputs: {jsonl: rows.jsonl}, seed: 5}
devices: cpu*1
stages:
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: png}, devices: 'west/cpu:0'}
  - {name: weigh, target: 'stages.py:Weigh'}
report: {html: false, trace: false}
"""
RAY = Ray(reserve=False)


@pytest.fixture
def job(ray_head: Any, machines: Any, tmp_path: Path) -> Path:
    """A job of eight items on two nodes, whose first stage is on west; ``h`` hangs until there is a gate."""
    machines.join("west")
    (tmp_path / "stages.py").write_text(STAGES)
    rows: list[dict[str, Any]] = [{"id": f"i{at}"} for at in range(7)]
    rows.insert(3, {"id": "h", "hangs": True, "gate": str(tmp_path / "gate")})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def results(folder: Path) -> bytes:
    return (folder / "results.jsonl").read_bytes()


@pytest.mark.slow
def test_time_limits_skips_the_cache_and_doing_again(job: Path, tmp_path: Path) -> None:
    limited = Pipeline.from_yaml(job, ["stages.draw.timeout_s=4"]).run(backend=RAY, out=tmp_path / "late")
    assert {row.id: row.status for row in limited if row.status != "done"} == {"h": "failed"}
    assert limited.failures[0].error is not None
    assert limited.failures[0].error.type == "TaskTimeout"
    plain = Pipeline.from_yaml(job)
    first = plain.run(backend=RAY, out=tmp_path / "one", skip=["h"], cache=tmp_path / "cache")
    assert {row.status for row in first if row.id != "h"} == {"done"}
    assert (first.status, first.item_counts["skipped"]) == ("done", 1)
    (tmp_path / "gate").touch()
    second = plain.run(backend=RAY, out=tmp_path / "two", cache=tmp_path / "cache")
    assert (second.status, second.n_restored) == ("done", 14), "all but h came from the cache"
    again = plain.run(backend=RAY, out=tmp_path / "two", fresh=["weigh"], cache="")
    assert (again.status, again.n_restored) == ("done", 8), "draw is kept, weigh is done again"
    here = Pipeline.from_yaml(job, ["stages.draw.devices=all"])
    assert here.run(backend="inline", out=tmp_path / "here").status == "done"
    assert results(tmp_path / "two") == results(tmp_path / "here")


@pytest.mark.slow
def test_an_item_is_given_up_and_a_run_is_stopped_and_gone_on_with(
    job: Path, tmp_path: Path, until: Callable[[Callable[[], object], str], None]
) -> None:
    run, begun, is_over = tmp_path / "run", tmp_path / "gate.begun", threading.Event()

    def stop(items: tuple[str, ...]) -> None:
        until(lambda: begun.exists() or is_over.is_set(), "h is at work")
        if not is_over.is_set():
            exchange(run, "stop", items=items, wait_s=150)

    for items, status in (((), "interrupted"), (("h",), "failures")):
        begun.unlink(missing_ok=True)
        is_over.clear()
        thread = threading.Thread(target=stop, args=(items,))
        thread.start()
        try:
            result = Pipeline.from_yaml(job).run(backend=RAY, out=run)
        finally:
            is_over.set()
            thread.join(timeout=500)
        assert result.status == status
    assert [row.id for row in result.failures] == ["h"]
    (tmp_path / "gate").touch()
    done = Pipeline.from_yaml(job).run(backend=RAY, out=run, retry_failed=True)
    assert done.status == "done"


@pytest.mark.slow
def test_what_hangs_on_another_node_is_named_with_its_stack(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_workers, "STACK_WAIT_S", 90.0)
    monkeypatch.setattr(hang_watch, "SLOW_S", 1.0)
    monkeypatch.setattr(hang_watch, "SLOW_TIMES", 0.0)
    notes: list[str] = []

    def note(event: Any) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
            if "draw of h" in event.text and "stages.py" in event.text:
                (tmp_path / "gate").touch()

    result = Pipeline.from_yaml(job).run(backend=RAY, sinks=[note])
    assert result.status == "done"
    named = [text for text in notes if "draw of h is running on west/cpu:0" in text]
    assert named, notes
    assert "stages.py" in named[0]
