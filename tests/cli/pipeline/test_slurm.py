"""``evenload run --slurm``: its script, and real runs of it under commands that stand in for Slurm's.

The stand-ins start real processes on this machine: a Ray head and another node. No Slurm was asked.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from evenload.cli.pipeline.run import RunRequest
from evenload.executor.backends.ray.await_nodes import await_nodes
from evenload.pipeline import Pipeline

STAGES = """
import os, time

class Draw:
    '''Waits for the gate, in all items but the first.'''
    def __init__(self, context):
        self.gate, self.device = "GATE", context.device.id
    def __call__(self, inputs, item):
        with open(self.gate + ".seen", "a") as seen:
            seen.write(self.device + "\\n")
        while item.index and not os.path.exists(self.gate):
            time.sleep(0.01)
        return {"drawn": f"{item.id} {item.seed}"}
"""
JOB = """\
version: 1
job: {name: 'a job', inputs: {jsonl: rows.jsonl}, seed: 3, out: run}
devices: cpu*1
stages:
  - {name: draw, target: 'stages.py:Draw'}
report: {html: false, trace: false}
"""
COMMANDS = {
    "sbatch": """
import os, subprocess, sys
folder = os.environ["FAKE_SLURM"]
open(f"{folder}/script", "w").write(sys.stdin.read())
print("4711")
""",
    "scontrol": """
import os, sys
if sys.argv[1] == "show":
    print("alpha\\nbeta")
else:
    open(os.environ["FAKE_SLURM"] + "/requeued", "a").write(" ".join(sys.argv[1:]) + "\\n")
""",
    "srun": """
import os, sys
arguments = sys.argv[1:]
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    if option.startswith("--nodelist="):
        os.environ["SLURMD_NODENAME"] = option.partition("=")[2]
os.execvp(arguments[0], arguments)
""",
    "getent": """
import ray
print(ray.util.get_node_ip_address(), "STREAM alpha")
""",
}


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "stages.py").write_text(STAGES.replace("GATE", str(tmp_path / "gate")))
    (folder / "rows.jsonl").write_text("".join(f'{{"id": "item {at}"}}\n' for at in range(8)))
    (folder / "job.yaml").write_text(JOB)
    return folder / "job.yaml"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder of what the stand-ins for Slurm's commands write; they come first on the path."""
    folder, path = tmp_path / "slurm", tmp_path / "bin"
    folder.mkdir()
    path.mkdir()
    for name, code in COMMANDS.items():
        (path / name).write_text(f"#!{sys.executable}\n{code}")
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    return folder


@pytest.fixture
def evenload(command):
    return partial(command, "run")


SAID_OTHERWISE = {"job", "backend", "fresh", "resume", "dry_run", "schema", "no_progress", "is_detached"}
"""Options of a run that its command on the nodes says in its own way, or has no use for."""


def test_no_option_of_a_run_is_left_behind(tmp_path):
    kinds = {field.name: str(field.type) for field in fields(RunRequest)}
    nothing: dict[str, Any] = {name: () if "tuple" in kind else None for name, kind in kinds.items()}
    plain = RunRequest(**nothing | {"job": tmp_path})
    for name in kinds.keys() - SAID_OTHERWISE:
        value: Any = ("a",) if "tuple" in kinds[name] else tmp_path if "Path" in kinds[name] else 3
        assert replace(plain, **{name: value}).arguments != plain.arguments, name


def test_the_script_says_what_was_asked_for(job, evenload):
    code, script, _ = evenload(
        job, "--slurm", "--nodes=3", "--gres=gpu:8", "--partition=long", "--time=12:00:00",
        "--sbatch=--account=us",
        "--set=job.out=it's here", "--fresh", "--skip=item 3", "--dry-run",
    )  # fmt: skip
    assert code == 0
    for option in ("nodes=3", "gres=gpu:8", "partition=long", "time=12:00:00", "account=us", "no-kill"):
        assert f"#SBATCH --{option}\n" in script
    assert "#SBATCH --job-name=evenload-a-job\n" in script
    assert f"'{job}'" in script
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    shellcheck = shutil.which("shellcheck")
    if shellcheck is not None:
        told = subprocess.run([shellcheck, "-"], input=script, capture_output=True, text=True)
        assert told.returncode == 0, told.stdout
    words = subprocess.run(
        ["bash", "-c", f"{script[script.index('arguments=(') : script.index('driver=')]}\n"
         'printf "%s\\n" "${arguments[@]}"'],
        capture_output=True, text=True,
    )  # fmt: skip
    assert words.stdout.splitlines() == [
        "run", str(job), "--no-progress", "--set=job.out=it's here", "--skip=item 3",
        "--set=backend={name: ray, follow: true}", "--fresh",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes=2"], "--nodes only go with --slurm"),
        (["--slurm", "--backend=process"], "leave --backend out"),
        (["--slurm", "--dash"], "has no --dash"),
        (["--slurm", "--sbatch=account=x", "--dry-run"], "no option of sbatch"),
        (["--slurm", "--gres=gpu:1\nrm -rf /", "--dry-run"], "no option of sbatch"),
        (["--slurm", "--time=5x", "--dry-run"], "no time limit of Slurm"),
        (["--slurm", "--time=1-", "--dry-run"], "no time limit of Slurm"),
        (["--slurm", "--sbatch=--x\nrm -rf /", "--dry-run"], "no option of sbatch"),
        (["--slurm"], "no command sbatch here"),
    ],
)
def test_nonsense_is_refused(job, monkeypatch, evenload, options, words):
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = evenload(job, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_nodes_are_awaited_so_long_as_was_said():
    now, counts = [0.0], iter([0, 1, 1, 2])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert await_nodes(lambda: next(counts), 2, 10.0, clock=lambda: now[0], sleep=sleep) == 2
    assert now[0] == 1.5
    assert await_nodes(lambda: 1, 2, 10.0, clock=lambda: now[0], sleep=sleep) == 1


def begin(popen: Callable[..., subprocess.Popen], slurm: Path, number: int, restart: int) -> subprocess.Popen:
    """Start the script that was submitted, as Slurm does on the first of two nodes."""
    environment = {
        **os.environ,
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_NODELIST": "alpha,beta",
        "SLURM_SUBMIT_DIR": str(slurm),
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_RESTART_COUNT": str(restart),
    }
    with (slurm / "log").open("ab") as log:
        return popen(["bash", str(slurm / "script")], env=environment, stdout=log, stderr=log)


@pytest.mark.slow
def test_the_script_runs_a_job_over_two_nodes_and_is_queued_again(
    job, slurm, tmp_path, until, popen, evenload
):
    code, out, err = evenload(job, "--slurm", "--nodes=2", "--fresh")
    assert (code, out) == (0, "4711\n")
    assert "evenload-a-job-4711.log" in err
    seen, log = tmp_path / "gate.seen", slurm / "log"
    first = begin(popen, slurm, 20_000 + os.getpid(), 0)

    def both_work() -> bool:
        assert first.poll() is None, log.read_text()
        begun = seen.read_text().split() if seen.exists() else []
        return len(begun) == 3 and len(set(begun)) == 2

    until(both_work, "both nodes work, one of them on its second item")
    first.send_signal(signal.SIGUSR1)
    until(lambda: first.poll() is not None, "the run ends")
    assert first.returncode == 130, log.read_text()
    assert (slurm / "requeued").read_text() == f"requeue {20_000 + os.getpid()}\n"
    assert "1 done, 7 unfinished of 8 items" in log.read_text()
    (tmp_path / "gate").touch()
    again = begin(popen, slurm, 20_000 + os.getpid(), 1)
    until(lambda: again.poll() is not None, "it goes on")
    assert again.returncode == 0, log.read_text()
    assert "8 of 8 done" in log.read_text()
    assert len(seen.read_text().split()) == 3 + 7, "what was done is kept, although it was asked for afresh"
    assert not [
        p for p in psutil.process_iter() if f"evenload-ray-{20_000 + os.getpid()}" in " ".join(_command(p))
    ]
    Pipeline.from_yaml(job).run(backend="inline", out=tmp_path / "here")
    here, there = (folder / "results.jsonl" for folder in (tmp_path / "here", job.parent / "run"))
    assert there.read_bytes() == here.read_bytes()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
