"""``--detach`` and ``evenload attach``, as a user types them in a terminal that is closed."""

import json
import os
import signal
import subprocess
import sys

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
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "things.jsonl").write_text('{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    (tmp_path / "items.txt").write_text("1\n2\n3\n")
    return tmp_path


def detach(*arguments):
    """Detach a command in a process of its own, which leaves it behind; its exit code and stderr."""
    line = [sys.executable, "-m", "evenload", *arguments, "--detach"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=500)
    return ended.returncode, ended.stderr


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill(run):
    os.kill(
        next(one["facts"]["pid"] for one in rows_of(run / "events.jsonl") if "pid" in one.get("facts", ())),
        signal.SIGKILL,
    )


@pytest.mark.parametrize(("run", "line"), [("runs/m", MAP), ("runs/doubles", ("run", "job.yaml"))])
def test_what_is_detached_goes_on_when_the_terminal_closes(folder, command, in_a_terminal, run, line):
    code, said = in_a_terminal("-m", "evenload", *line, "--detach")
    assert (code, "follow it: evenload attach " in said) == (0, True), said
    (folder / "gate").touch()  # nothing could end before
    code, out, err = command("attach", run)
    assert (code, out[:6]) == (0, "done: "), err + (folder / f"{run}.log").read_text()
    if line is MAP:
        assert [row["result"] for row in rows_of(folder / "rows.jsonl")] == [2, 4, 6]
    else:
        done = rows_of(folder / run / "results.jsonl")
        assert sorted(row["outputs"]["twice"] for row in done) == [2, 4]
    assert command("attach", run)[:2] == (0, out), "of a run that is over"


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_folder_whose_map_is_under_way_takes_no_second_one(folder, command, more):
    """Oracle: the user's own loop for the rows, and the process that is known to run for its state."""
    assert detach(*MAP, *more)[0] == 0
    for code, err in (detach(*MAP), *(command(*MAP, *again)[::2] for again in ((), ("--resume",)))):
        assert (code, "a run is under way in runs/m" in err) == (2, True)
    for named in ("runs/m", "runs/m/events.jsonl"):
        assert json.loads(command("status", named, "--json")[1])["status"] == "running"
    assert command("run", "job.yaml", "--fresh", "-o", "runs/m")[0] == 2
    (folder / "gate").touch()
    code, out, err = command("attach", "runs/m")
    assert (code, out[:11]) == (0, "done: 3 of "), err
    assert json.loads(command("status", "runs/m", "--json")[1])["status"] == "done"
    assert [row["result"] for row in rows_of(folder / "rows.jsonl")] == [2, 4, 6]


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_map_that_is_gone_goes_on_by_what_commands_say_of_it(folder, command, more):
    """Oracle: the hint, typed as it says, goes on with the run."""
    (folder / "items.txt").write_text("1\n2\nnone\n")
    assert detach(*MAP, *more)[0] == 0
    kill(folder / "runs" / "m")
    code, _, err = command("attach", "runs/m")
    assert (code, "the process is gone: " in err) == (1, True)
    assert "hint: go on: the same command with --resume" in err
    (folder / "gate").touch()
    assert command(*MAP, "--resume")[0] == 1
    _, said, _ = command("status", "runs/m")
    assert "retry" not in said
    assert "try the failed ones again: the same command with --resume" in said
    for line in (("upload", "runs/m", "--to", "file:///tmp"), ("retry", "runs/m")):
        code, _, err = command(*line)
        assert (code, "is of no job file" in err, "`evenload map ... --resume`" in err) == (2, True, True)


def test_a_run_whose_stage_cannot_load_says_why_wherever_it_is_asked(folder, command):
    """Oracle: the exit code and the words of `evenload run` itself."""
    raises = "    def __init__(self, context):\n        raise OSError('no weights here')\n"
    (folder / "stage.py").write_text(STAGE + raises)
    (folder / "gate").touch()
    why = "OSError: no weights here"
    for line in (("run", "job.yaml", "-q"), ("attach", "runs/doubles")):
        code, _, err = command(*line)
        assert (code, why in err) == (3, True)
    _, status, _ = command("status", "runs/doubles")
    assert why in status
    assert not [line for line in status.splitlines() if not line.strip()]
    _, said, _ = command("report", "runs/doubles", "--text")
    assert (why in said, "To do" in said) == (True, False)


@pytest.mark.parametrize(("run", "line"), [("runs/m", MAP), ("runs/doubles", ("run", "job.yaml"))])
def test_stop_ends_what_is_detached(folder, command, run, line):
    assert detach(*line)[0] == 0
    assert command("stop", run)[0] == 0
    (folder / "gate").touch()  # a map finishes the items that run
    assert command("attach", run)[0] == 130


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("map task.py:double items.txt --detach", "--run FOLDER"),
        ("map task.py:double - --run r -o o --detach", "write the items to a file"),
        ("map task.py:nothing items.txt --run r -o o --detach", "nothing"),
        ("run nowhere.yaml --detach", "nowhere.yaml"),
        ("attach nowhere", "there is no run"),
    ],
)
def test_bad_input_is_told_in_the_terminal(folder, command, monkeypatch, line, why):
    monkeypatch.setattr(sys, "argv", ["evenload", *line.split()])  # what is detached is called by them
    code, _, err = command(*line.split())
    assert (code, why in err, "Traceback" in err) == (2, True, False)
