"""The live page that ``EVENLOAD_DASH=1`` opens for a program: it comes with a run, and goes after it."""

import json
import subprocess
import sys
import urllib.request

import pytest

import evenload
from evenload._live_page import left_to_command
from evenload.errors import ConfigError
from evenload.events import EventLog, Span

PROGRAM = """
import os, sys, time
import evenload
from evenload.events import EventLog, RunFinished, RunStarted

def held(x):
    while x >= 5 and not os.path.exists("go"):
        time.sleep(0.02)
    return sum(evenload.map(abs, [x, 1], devices="cpu*1", backend="inline"))  # no page of its own

if __name__ == "__main__":
    seen = []
    with evenload.Executor("cpu*1", events=EventLog(seen.append)) as executor:
        print(list(executor.map(held, range(10))))
        print(executor.submit(held, 3).result())
    left = evenload.Executor("cpu*1", backend="inline")  # not closed: the program ends it
    print(left.submit(abs, -7).result())
    print(any(isinstance(event, RunStarted | RunFinished) for event in seen), len(seen) > 10)
"""


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setenv("EVENLOAD_DASH", "1")


@pytest.fixture
def without_server(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)


def read(url):
    with urllib.request.urlopen(url, timeout=550) as answer:
        return answer.read().decode()


def test_a_program_has_a_page_while_it_runs(asked, tmp_path, popen, until):
    pytest.importorskip("uvicorn", reason="the live page needs evenload[watch]")
    (tmp_path / "program.py").write_text(PROGRAM)
    process = popen(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines, seen, said = [], {}, ""
    for line in process.stderr:  # up to the end of the pages, which write there, too
        said += line
        if not line.startswith("live page: "):
            continue
        lines.append(line)
        if len(lines) == 2:
            continue
        url = line.split()[-1]

        def is_shown(url=url):
            seen.update(json.loads(read(url + "timeline")))
            return seen["stages"] == ["map"] and seen["rows"]

        until(is_shown, "the page has rows")
        (tmp_path / "go").touch()
    assert len(lines) <= 2, "the tasks, which are on a device, have opened none"
    assert process.stdout.read().splitlines() == [str([x + 1 for x in range(10)]), "4", "7", "False True"]
    assert "Traceback" not in said
    process.stdout.close()
    process.stderr.close()
    assert process.wait(550) == 0


def test_what_it_needs_and_is_not_there_ends_no_work(asked, without_server, capsys):
    log = EventLog((seen := []).append)
    with evenload.Executor("cpu*1", backend="inline", events=log) as executor:
        for _ in range(2):
            assert list(executor.map(abs, range(-3, 1))) == [3, 2, 1, 0]
    said = capsys.readouterr().err
    assert said.count("there is no live page") == 1
    assert "evenload[watch]" in said
    assert [event for event in seen if isinstance(event, Span)]


def test_a_disk_that_is_full_ends_no_work(asked, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    for function in ("__call__", "__init__"):
        monkeypatch.setattr(f"evenload.executor.runs_page.EventFile.{function}", full)
        assert list(evenload.map(abs, [-1, 2], devices="cpu*1", backend="inline")) == [1, 2]
    assert capsys.readouterr().err.count("there is no live page: No space") == 2


def test_neither_a_command_nor_a_task_opens_one_more(asked, without_server, capsys):
    with left_to_command():
        assert list(evenload.map(abs, [-1], devices="cpu*1", backend="inline")) == [1]
    assert "live page" not in capsys.readouterr().err


def test_the_setting_is_checked(monkeypatch):
    monkeypatch.setenv("EVENLOAD_DASH", "perhaps")
    with pytest.raises(ConfigError, match="dash = 'perhaps' in EVENLOAD_DASH"):
        evenload.Executor("cpu*1", backend="inline")
