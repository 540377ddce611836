"""``evenload top``: devices and jobs, on a terminal, in a pipe, as JSON."""

import io
import json
import os
import subprocess
import sys
import time

import pytest

from evenload.balance.factors import FACTORS
from evenload.cli.monitoring.top import COLUMNS, FollowedJobs, MachineView
from evenload.devices.jobs import announced, jobs_folder, running_jobs
from evenload.devices.pool import DevicePool
from evenload.events import EventFile, RunStarted, Span, StageStarted


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventFile(path) as sink:
        sink(RunStarted(0.0, "x", time.time(), 10, {"a": {}}))
        sink(StageStarted(0.0, "edit", 10))
        for i in range(4):
            sink(Span("edit", "a", "a", i, 1, float(i), i + 1.0))
    with announced("restore \x1b[31m pictures", events=path):
        yield path


def test_jobs_come_and_go(tmp_path, job):
    (row,) = FollowedJobs().look()
    assert (row.pid, row.stage, row.done, row.total) == (os.getpid(), "edit", 4, 10)
    assert row.memory_bytes > 1 << 20
    assert row.eta_s == pytest.approx(6.0)
    assert "\x1b" not in " ".join(row.cells())
    assert row.cells()[COLUMNS.index("useful")] == "100%"
    assert list(row.factors) == list(FACTORS)


def test_the_plain_page_has_a_column_for_each_cell(job):
    with DevicePool.discover() as pool:
        machine = MachineView(pool)
        machine.look()
        lines = machine.lines(140)
    head = next(line for line in lines if line.split()[:1] == ["pid"])
    # A column without content is left out, as "failed" here.
    assert head.split() == " ".join(one for one in COLUMNS if one not in ("failed", "lost most")).split()


def test_a_job_whose_process_is_gone_is_swept_away():
    jobs_folder().mkdir(parents=True)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(timeout=500)
    (jobs_folder() / "1-1.json").write_text(json.dumps({"pid": dead.pid, "name": "x", "unix_s": 0.0}))
    (jobs_folder() / "2-2.json").write_text("{half")
    (jobs_folder() / "3-3.json").write_text(json.dumps({"pid": os.getpid(), "name": ["no"], "unix_s": 0}))
    assert running_jobs() == []
    assert not (jobs_folder() / "1-1.json").exists()


def test_in_a_pipe_it_is_shown_once_and_plainly_and_as_json(job, command, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with monkeypatch.context() as patch:
        out = io.TextIOWrapper(io.BytesIO(), "ascii")
        patch.setattr(sys, "stdout", out)
        assert command("top")[0] == 0
    text = out.buffer.getvalue().decode("ascii")
    assert ("\x1b" in text, "cpu:0" in text, "4 of 10" in text) == (False, True, True)
    page = json.loads(command("top", "--once", "--json")[1])
    assert (page["schema"], page["jobs"][0]["done"]) == (1, 4)
    assert "cpu:0" in [device["id"] for device in page["devices"]]


TOP = ("-m", "evenload", "top", "--interval", "0.2")


def test_on_a_terminal_it_lives_until_q_and_on_a_dumb_one_it_is_shown_once(job, in_a_terminal):
    code, text = in_a_terminal(*TOP, keys=b"q", after=b"q ends", TERM="xterm-256color")
    assert (code, "4 of 10" in text) == (0, True)
    assert "\x1b[?1049l" in text, "the terminal is as it was"
    code, text = in_a_terminal(*TOP, TERM="dumb")
    assert (code, "4 of 10" in text, "\x1b" in text) == (0, True, False)


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e300"])
def test_an_interval_is_seconds_that_pass(command, interval):
    for line in (("top",), ("devices", "--watch")):
        code, _, err = command(*line, "--interval", interval)
        assert (code, "--interval" in err) == (2, True)
