"""Tests worker processes through the executor as a whole: replaced when they die, and never left behind."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_item import BAD, once, run

import evenload
from evenload.errors import NoUsableDevice, TaskTimeout
from evenload.events import EventLog, Note, Span, WorkerExited, WorkerStarted
from evenload.executor import Executor
from evenload.executor.loop import watchdog


@pytest.fixture(scope="module")
def executor(threaded: str) -> Iterator[Executor]:
    with Executor("cpu*2", backend=threaded, echo=False) as executor:
        yield executor


# --- workers --------------------------------------------------------------------------------------


def test_a_worker_that_died_between_calls_is_replaced(executor: Executor) -> None:
    for pid in set(executor.map(lambda x: os.getpid(), range(20))):
        os.kill(pid, signal.SIGKILL)
    assert list(executor.map(abs, range(20))) == list(range(20))


@pytest.mark.parametrize("threaded", ["process"], indirect=True)
def test_a_worker_busy_with_what_nobody_needs_is_replaced(threaded: str, tmp_path: Path) -> None:
    def slow_once(x: int, marker: str = str(tmp_path / "marker")) -> int:
        if x == 5:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return x
            time.sleep(1000)
        time.sleep(0.01)
        return x

    events: list[Any] = []
    with Executor("cpu*2", backend=threaded, events=EventLog(events.append), echo=False) as own:
        assert list(own.map(slow_once, range(6))) == list(range(6)), "a copy was faster"
        where = own.map(
            lambda x: (time.sleep(0.01), os.environ["EVENLOAD_DEVICE"])[1], iter(int, 1), policy="pull"
        )
        while {next(where) for _ in range(12)} != {"cpu:0", "cpu:1"}:
            pass
    assert any("nobody needed" in e.reason for e in events if isinstance(e, WorkerExited))


def test_workers_have_their_environment_and_a_group_of_their_own(executor: Executor) -> None:
    def look(x: int) -> tuple:
        time.sleep(0.01)
        names = ("EVENLOAD_DEVICE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        sigint = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return (*map(os.environ.get, names), os.getpgrp() == os.getpid(), sigint)

    seen: set[tuple] = set()
    results = executor.map(look, itertools.count(), policy="pull")
    while len(seen) < 2:
        seen.add(next(results))
    results.close()
    assert seen == {("cpu:0", "1", "", True, True), ("cpu:1", "1", "", True, True)}


def test_what_workers_write_comes_with_their_name(threaded: str, capfd: pytest.CaptureFixture[str]) -> None:
    def talk(x: int) -> None:
        import logging

        print("printed")  # noqa: T201
        logging.getLogger("some.library").warning("logged")
        os.write(1, b"written without Python\n")
        print("an unfinished line", end="")  # noqa: T201

    events: list[Any] = []
    list(evenload.map(talk, [1], devices="cpu*1", backend=threaded, events=EventLog(events.append)))
    shown = capfd.readouterr().err
    for line in ("printed", "logged", "written without Python", "an unfinished line"):
        assert f"[cpu:0] {line}" in shown
        assert any(isinstance(e, Note) and e.source == "cpu:0" and line in e.text for e in events)


@pytest.mark.usefixtures("patient")
def test_events_tell_of_deaths(threaded: str, tmp_path: Path) -> None:
    events: list[Any] = []
    with Executor("cpu*2", backend=threaded, events=EventLog(events.append), echo=False) as own:
        assert run(own, once(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))) == BAD
    assert [e.reason for e in events if isinstance(e, WorkerExited)].count("was killed by SIGKILL") == 1
    assert [e.reason for e in events if isinstance(e, WorkerExited)].count("closed") == 2
    assert len([e for e in events if isinstance(e, WorkerStarted)]) >= 2
    assert len([e for e in events if isinstance(e, Span) and e.status == "lost"]) == 1


def test_devices_whose_workers_never_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, words in (("/bin/false", "exit code 1"), ("/does/not/exist", "could not be started")):
        monkeypatch.setattr(sys, "executable", program)
        with Executor("cpu*2", echo=False) as own, pytest.raises(NoUsableDevice) as caught:
            list(own.map(abs, range(3)))
        assert set(caught.value.causes) == {"cpu:0", "cpu:1"}
        assert all(words in why for why in caught.value.causes.values())


def test_the_last_words_of_workers_that_never_start_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pickle.py").write_text("raise RuntimeError('I am not the real one')")
    monkeypatch.syspath_prepend(tmp_path)
    with Executor("cpu*1", echo=False) as own, pytest.raises(NoUsableDevice) as caught:
        list(own.map(abs, range(3)))
    cause = caught.value.causes["cpu:0"]
    assert "times before it had a result, saying: RuntimeError: I am not the real one" in cause


def test_a_constructor_that_kills_its_worker_is_a_refusal(threaded: str) -> None:
    class Deadly:
        def __init__(self) -> None:
            os._exit(5)

        def __call__(self, x: int) -> int:
            return x

    with Executor("cpu*1", backend=threaded, echo=False) as own:
        with pytest.raises(NoUsableDevice, match=r"exit code 5.*building"):
            list(own.map(Deadly, range(3)))
        assert list(own.map(abs, range(3))) == list(range(3))


REPEATS = """
import os, threading
import psutil, evenload

def is_used():
    n_processes = len(psutil.Process().children(recursive=True))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), n_processes

list(evenload.map(abs, range(3), devices="cpu*2"))
before = is_used()
for n in (3, 0):
    list(evenload.map(abs, iter(range(n)), devices="cpu*2"))
    evenload.map(abs, range(3), devices="cpu*2")
    with evenload.Executor("cpu*2"):
        pass
assert is_used() == before, (is_used(), before)
"""


def test_nothing_is_left_behind() -> None:
    """In a program of its own: here threads, files and processes of other tests come and go."""
    done = subprocess.run([sys.executable, "-c", REPEATS], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_result_whose_pickling_hangs_is_over_time(
    monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    monkeypatch.setattr(watchdog, "PACKING_S", 1.0)

    class Hangs:
        def __reduce__(self) -> Any:
            threading.Event().wait()

    def task(x: int) -> Any:
        return Hangs() if x == 1 else x

    with Executor("cpu*2", echo=False) as executor:
        options: Any = {"timeout_s": 1.0, "on_error": "return", "repeatable": repeatable}
        values = list(executor.map(task, range(4), **options))
    assert isinstance(values[1], TaskTimeout)
    # One that the machine did not let work for a second is over time, too.
    assert all(value == x or isinstance(value, TaskTimeout) for x, value in enumerate(values))
