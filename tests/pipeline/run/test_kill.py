"""Tests the run folder and the ledger through runs that are killed: nothing lost, doubled or half there."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from evenload.executor.journal.journal import Journal
from evenload.pipeline import Pipeline
from evenload.pipeline.store.ledger import LedgerEntry

STAGES = """
import os, time
import numpy as np

class Draw:
    def __init__(self, context, *, seconds, slower=1):
        self.seconds = seconds * (slower if os.getpid() % 2 else 1)
    def __call__(self, inputs, item):
        time.sleep(self.seconds)
        return {"drawn": item.rng().random((40, 50, 3)), "at": item.index}

class Weigh:
    def __init__(self, context, *, seconds): self.seconds = seconds
    def __call__(self, inputs, item):
        from evenload.pipeline import read_picture
        time.sleep(self.seconds)
        return {"weight": float(read_picture(inputs["drawn"]).mean()), "copy": f"{item.id} {item.seed}"}
"""
JOB = """\
version: 1
job: {name: kill, inputs: {jsonl: rows.jsonl}, seed: 11, out: run}
devices: cpu*2
schedule: {mode: MODE, copies: true}
stages:
  - {name: draw, target: 'stages.py:Draw', params: {seconds: SECONDS}, outputs: {drawn: png}}
  - {name: weigh, target: 'stages.py:Weigh', params: {seconds: SECONDS}, outputs: {copy: txt}}
report: {html: false, trace: false}
"""


def make_job(folder: Path, n: int, mode: str, seconds: float) -> Path:
    (folder / "stages.py").write_text(STAGES)
    (folder / "rows.jsonl").write_text("".join(f'{{"id": "item {at}"}}\n' for at in range(n)))
    (folder / "job.yaml").write_text(JOB.replace("MODE", mode).replace("SECONDS", str(seconds)))
    return folder / "job.yaml"


Start = Callable[[Path, str], subprocess.Popen]


@pytest.fixture
def start(popen: Callable[..., subprocess.Popen]) -> Start:
    return partial(start_run, popen)


def start_run(popen: Callable[..., subprocess.Popen], job: Path, out: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "evenload", "run", str(job), "-o", str(job.parent / out), "-q"]
    with (job.parent / "said").open("ab") as said:
        return popen(command, stdout=said, stderr=said)


def outputs_of(folder: Path) -> dict[str, bytes]:
    """Every file that the stages made, and the rows."""
    files = [path for path in (folder / "outputs").rglob("*") if path.is_file()]
    made = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return made | {"results": (folder / "results.jsonl").read_bytes()}


def kill_at_random(
    start: Start, job: Path, out: str, n_kills: int, rng: random.Random, longest_s: float
) -> int:
    """Start and kill, the driver or a worker, until ``n_kills`` were made; then let it finish."""
    n_driver = 0
    process = start(job, out)
    for _ in range(n_kills):
        time.sleep(rng.uniform(0.0, longest_s))
        if process.poll() is not None:
            assert process.returncode == 0, (job.parent / "said").read_text()
            (job.parent / out / "results.jsonl").unlink()
            victims = []
        else:
            victims = psutil.Process(process.pid).children(recursive=True)
        if victims and rng.random() < 0.5:
            victim = rng.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
            continue
        process.kill()
        process.wait(timeout=500)
        n_driver += 1
        process = start(job, out)
    assert process.wait(550) == 0, (job.parent / "said").read_text()
    return n_driver


def check(job: Path, n: int) -> None:
    assert outputs_of(job.parent / "run") == outputs_of(job.parent / "calm")
    rows = [json.loads(line) for line in (job.parent / "run/results.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"item {at}" for at in range(n)]
    assert {row["status"] for row in rows} == {"done"}
    assert not list((job.parent / "run" / "outputs").rglob("*.tmp"))
    fingerprint = json.loads((job.parent / "run/journal/journal.json").read_text())["fingerprint"]
    with Journal.open(job.parent / "run" / "journal", fingerprint) as journal:
        results = [key for key in journal.keys() if not key.startswith("made-of:")]  # noqa: SIM118 (no mapping)
        assert len(results) == 2 * n
        assert all(LedgerEntry.from_bytes(journal.done(key) or b"") for key in results)


def test_a_few_kills(tmp_path: Path, start: Start) -> None:
    job = make_job(tmp_path, n := 24, "data_parallel", 0.05)
    quick = [f"{stage}.seconds=0" for stage in ("draw", "weigh")]
    Pipeline.from_yaml(job, quick).run(out=tmp_path / "calm", backend="inline")
    kill_at_random(start, job, "run", 3, random.Random(1), 2.0)
    check(job, n)


def test_kills_while_copies_run(tmp_path: Path, start: Start) -> None:
    """Slow workers have their last items run by others, too. The oracle is the bytes of a calm run."""
    job = make_job(tmp_path, n := 5, "swap", 0.05)
    quick = [f"{stage}.seconds=0" for stage in ("draw", "weigh")]
    Pipeline.from_yaml(job, quick).run(out=tmp_path / "calm", backend="inline")
    job.write_text(
        job.read_text().replace(
            "seconds: 0.05}, outputs: {drawn", "seconds: 0.05, slower: 40}, outputs: {drawn"
        )
    )
    kill_at_random(start, job, "run", 3, random.Random(0), 2.0)
    check(job, n)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills(tmp_path: Path, start: Start) -> None:
    """0 lost, 0 done twice, 0 corrupt, and the bytes of an undisturbed run."""
    job = make_job(tmp_path, n := 300, "swap", 0.15)
    calm = start(job, "calm")
    n_driver = kill_at_random(start, job, "run", 100, random.Random(2), 3.0)
    assert calm.wait(300) == 0
    assert n_driver >= 20
    check(job, n)
