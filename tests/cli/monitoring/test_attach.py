"""``--detach`` and ``evenload attach``, as a user types them in a terminal that is closed."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TASK = """
import time
from pathlib import Path

def double(text):
    while not Path("gate").exists():
        time.sleep(0.01)
    return 2 * int(text)
"""
JOB = """
version: 1
job: {name: doubles, inputs: {jsonl: things.jsonl, id: id}, out: runs/doubles}
devices: {use: "cpu*1"}
stages:
  - {name: double, target: "stage.py:Double", outputs: {twice: number}}
"""
STAGE = """
import time
from pathlib import Path

class Double:
    def __call__(self, inputs, item):
        while not Path("gate").exists():
            time.sleep(0.01)
        return {"twice": 2 * inputs["n"]}
"""
MAP = ("map", "task.py:double", "items.txt", "--devices", "cpu*2", "--run", "runs/m", "-o", "rows.jsonl")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "things.jsonl").write_text('{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    (tmp_path / "items.txt").write_text("1\n2\n3\n")
    return tmp_path


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evenload", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)


def in_a_terminal(folder: Path, *arguments: str) -> str:
    """What a command prints in a terminal of its own, which is closed when the command ends."""
    pid, master = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-m", "evenload", *arguments])
    said = b""
    try:
        while piece := os.read(master, 1 << 16):
            said += piece
    except OSError:  # how Linux says that the command has closed its end
        pass
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    return said.decode()


def pid_of(run: Path) -> int:
    return next(
        event["facts"]["pid"]
        for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())
        if "facts" in event and "pid" in event["facts"]
    )


@pytest.mark.parametrize(("run", "command"), [("runs/m", MAP), ("runs/doubles", ("run", "job.yaml"))])
def test_what_is_detached_goes_on_when_the_terminal_closes(folder, run, command):
    said = in_a_terminal(folder, *command, "--detach")
    assert "follow it: evenload attach " in said
    (folder / "gate").touch()  # nothing could end before
    followed = call(folder, "attach", run)
    assert followed.returncode == 0, followed.stderr + (folder / f"{run}.log").read_text()
    assert followed.stdout.startswith("done: ")
    if command is MAP:
        rows = [json.loads(line)["result"] for line in (folder / "rows.jsonl").read_text().splitlines()]
        assert rows == [2, 4, 6]
    else:
        rows = map(json.loads, (folder / run / "results.jsonl").read_text().splitlines())
        assert sorted(row["outputs"]["twice"] for row in rows) == [2, 4]
    again = call(folder, "attach", run)  # of a run that is over
    assert (again.returncode, again.stdout) == (0, followed.stdout)


def test_a_process_that_is_gone_is_told_and_one_command_goes_on(folder):
    assert call(folder, *MAP, "--resume", "--detach").returncode == 0
    os.kill(pid_of(folder / "runs" / "m"), signal.SIGKILL)
    followed = call(folder, "attach", "runs/m")
    assert followed.returncode == 1
    assert followed.stderr.splitlines()[-2].startswith("the process is gone: ")
    (folder / "gate").touch()
    done = call(folder, *MAP, "--resume")
    assert done.returncode == 0, done.stderr
    assert call(folder, "attach", "runs/m").returncode == 0


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_folder_whose_map_is_under_way_takes_no_second_one(folder, more):
    """Oracle: the user's own loop for the rows, and the process that is known to run for its state."""
    assert call(folder, *MAP, *more, "--detach").returncode == 0
    for again in ((), ("--resume",), ("--detach",)):
        refused = call(folder, *MAP, *again)
        assert refused.returncode == 2, refused.stderr
        assert "a run is under way in runs/m" in refused.stderr
    for named in ("runs/m", "runs/m/events.jsonl"):
        assert json.loads(call(folder, "status", named, "--json").stdout)["status"] == "running"
    fresh = call(folder, "run", "job.yaml", "--fresh", "-o", "runs/m")
    assert fresh.returncode == 2, fresh.stdout
    (folder / "gate").touch()
    followed = call(folder, "attach", "runs/m")
    assert (followed.returncode, followed.stdout[:11]) == (0, "done: 3 of "), followed.stderr
    assert json.loads(call(folder, "status", "runs/m", "--json").stdout)["status"] == "done"
    rows = [json.loads(line)["result"] for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert rows == [2 * int(text) for text in ("1", "2", "3")]


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_commands_for_jobs_say_of_a_map_what_it_is(folder, more):
    """Oracle: the hint, typed as it says, goes on with the run."""
    (folder / "items.txt").write_text("1\n2\nnone\n")
    assert call(folder, *MAP, *more, "--detach").returncode == 0
    os.kill(pid_of(folder / "runs" / "m"), signal.SIGKILL)
    assert "hint: go on: the same command with --resume" in call(folder, "attach", "runs/m").stderr
    (folder / "gate").touch()
    assert call(folder, *MAP, "--resume").returncode == 1
    said = call(folder, "status", "runs/m").stdout
    assert "retry" not in said
    assert "try the failed ones again: the same command with --resume" in said
    for command in (("upload", "runs/m", "--to", "file:///tmp"), ("retry", "runs/m")):
        refused = call(folder, *command)
        assert refused.returncode == 2, refused.stderr
        assert "is of no job file" in refused.stderr
        assert "`evenload map ... --resume`" in refused.stderr


def test_a_run_whose_stage_cannot_load_says_why_wherever_it_is_asked(folder):
    """Oracle: the exit code and the words of `evenload run` itself."""
    (folder / "stage.py").write_text(
        STAGE + "    def __init__(self, context):\n        raise OSError('no weights here')\n"
    )
    (folder / "gate").touch()
    ran = call(folder, "run", "job.yaml", "-q")
    why = "OSError: no weights here"
    assert (ran.returncode, why in ran.stderr) == (3, True)
    followed = call(folder, "attach", "runs/doubles")
    assert (followed.returncode, why in followed.stderr) == (ran.returncode, True)
    status = call(folder, "status", "runs/doubles").stdout
    assert why in status
    assert not [line for line in status.splitlines() if not line.strip()]
    said = call(folder, "report", "runs/doubles", "--text").stdout
    assert why in said
    assert "To do" not in said


@pytest.mark.parametrize(("run", "command"), [("runs/m", MAP), ("runs/doubles", ("run", "job.yaml"))])
def test_stop_ends_what_is_detached(folder, run, command):
    assert call(folder, *command, "--detach").returncode == 0
    assert call(folder, "stop", run).returncode == 0
    (folder / "gate").touch()  # a map finishes the items that run
    followed = call(folder, "attach", run)
    assert followed.returncode == 130, followed.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("map", "task.py:double", "items.txt", "--detach"), "--run FOLDER"),
        (("map", "task.py:double", "-", "--run", "r", "-o", "o", "--detach"), "write the items to a file"),
        (("map", "task.py:nothing", "items.txt", "--run", "r", "-o", "o", "--detach"), "nothing"),
        (("run", "nowhere.yaml", "--detach"), "nowhere.yaml"),
        (("attach", "nowhere"), "there is no run"),
    ],
)
def test_bad_input_is_told_in_the_terminal(folder, arguments, why):
    done = call(folder, *arguments)
    assert done.returncode == 2, done.stdout
    assert why in done.stderr
    assert "Traceback" not in done.stderr
