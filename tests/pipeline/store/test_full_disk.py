"""Tests a full disk through whole runs: it is reported once, and costs no item."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_workers import python_command
from pipeline.written_jobs import made_by, write_job

from evenload.errors import ConfigError, EvenloadError
from evenload.pipeline import Pipeline
from evenload.pipeline.store.run_folder import FinalWrites

STAGES = """
import numpy as np
from evenload.pipeline import read_picture

class Noise:
    def __call__(self, inputs, item):
        return {"noise": item.rng().integers(0, 255, (64, 64, 3), dtype=np.uint8)}

class Mean:
    def __call__(self, inputs, item):
        return {"mean": float(read_picture(inputs["noise"]).mean())}
"""
JOB = """\
  - {name: noise, target: 'stages.py:Noise', outputs: {noise: png}}
  - {name: mean, target: 'stages.py:Mean', outputs: {mean: number}}
report: {html: false}
"""
# 20 pictures of 12 kB, of which about a dozen fit at first.
SCRIPT = """
mount -t tmpfs -o size=2m tmpfs "$1" || exit 77
head -c 1800000 /dev/zero > "$1/filler"
"$2" -m evenload run job.yaml -o "$1/run" --backend inline --no-progress; echo "exit $?"
ls "$1/run/outputs/noise" | wc -l
rm "$1/filler"
"$2" -m evenload run job.yaml -o "$1/run" --backend inline --no-progress --json; echo "exit $?"
cp -r "$1/run" kept
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STAGES, JOB, 20, more="")


def test_a_full_disk_costs_nothing_that_was_done(job: Path) -> None:
    """On a file system of 1 MB of its own, in a mount namespace; as root, or with user namespaces."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    (job.parent / "small").mkdir()
    command = [*space, "sh", "-c", SCRIPT, "sh", str(job.parent / "small"), sys.executable]
    try:
        found = subprocess.run(command, cwd=job.parent, capture_output=True, text=True, timeout=550)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if "exit" not in found.stdout:
        pytest.skip(f"no file system can be mounted here: {found.stderr.strip()[:100]}")
    first, second = found.stdout.split("exit 1", maxsplit=1)
    assert "No space left on device" in found.stderr
    assert "what is done is not done again" in found.stderr
    n_before = int(second.split()[0])
    assert 0 < n_before < 20
    assert first == ""
    said = json.loads(second.strip().partition("\n")[2].rpartition("exit 0")[0])
    assert (said["n_done"], said["status"]) == (20, "done")
    assert 0 < said["n_restored"] <= 2 * n_before
    Pipeline.from_yaml(job).run(backend="inline", out=job.parent / "undisturbed")
    assert made_by(job.parent / "kept") == made_by(job.parent / "undisturbed")


def test_what_cannot_be_written_at_the_end_is_named_and_can_be_made_up_for(job: Path) -> None:
    """A limit on the size of files: pictures fit, results.jsonl and trace.json do not."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, 48_000)); "
    rows = "".join(f'{{"id": "n{n}", "more": "{"x" * 4000}"}}\n' for n in range(20))
    (job.parent / "rows.jsonl").write_text(rows)
    command = [*python_command(), "-c", f"{code}from evenload.__main__ import run; run()"]
    command += ["run", str(job), "--backend", "inline", "--no-progress"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
    assert found.returncode == 1, found.stderr
    assert "could not be written: " in found.stderr
    assert "results.jsonl" in found.stderr
    assert "File too large" in found.stderr
    again = Pipeline.from_yaml(job).run(backend="inline")
    assert (again.n_done, again.status) == (20, "done")
    assert again.n_restored > 0


@pytest.mark.parametrize("seed", range(2))
def test_writing_that_is_forbidden_meanwhile_costs_no_item(
    job: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticket of a network drive expires, a folder is made read-only: the open journal goes on."""
    rng, n_before = random.Random(seed), 0
    number = rng.choice([errno.EACCES, errno.EPERM, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ENOSPC])
    is_made, n_made = os.open, rng.randrange(20)

    def forbidden(path: str | Path | int, flags: int, *more: Any, **named: Any) -> int:
        nonlocal n_before
        if str(path).endswith(".tmp") and "/outputs/" in str(path):
            n_before += 1
            if n_before > n_made:
                raise OSError(number, os.strerror(number), str(path))
        return is_made(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidden)
        with pytest.raises(EvenloadError, match=os.strerror(number)) as caught:
            Pipeline.from_yaml(job).run(backend="inline")
    assert "run again" in str(caught.value)
    rows = [json.loads(line) for line in (job.parent / "runs/t/results.jsonl").read_text().splitlines()]
    assert "failed" not in {row["status"] for row in rows}
    again = Pipeline.from_yaml(job).run(backend="inline")
    assert (again.n_done, again.status) == (20, "done")
    assert again.n_restored >= min(n_made, 1)


def test_last_writes_keep_the_error_that_ended_the_run() -> None:
    last = FinalWrites()
    last.raise_with(None)
    with last.of("a"):
        raise OSError(28, "No space left on device")
    with pytest.raises(ValueError, match="a bug"), last.of("b"):
        raise ValueError("a bug")
    with pytest.raises(EvenloadError, match=r"could not be written: a \(No space") as caught:
        last.raise_with(None)
    assert "run again" in str(caught.value)
    with pytest.raises(ConfigError, match=r"(?s)the cause.*could not be written: a"):
        last.raise_with(ConfigError("the cause"))
