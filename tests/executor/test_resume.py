"""Tests journals through whole maps: run again, they do what is missing, whatever ended them."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import evenload
from evenload.errors import ConfigError, EvenloadError, TaskError, WorkerLost
from evenload.events import EventLog, ItemFailed, Restored
from evenload.executor import Executor
from evenload.executor.journal import segments as segments_module
from evenload.executor.journal.journal import Journal
from evenload.executor.loop import watchdog as watch

BACKENDS = pytest.mark.parametrize("backend", ["process", "inline"])


@pytest.fixture(autouse=True)
def nobody_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are counted here: a busy machine must not have what waits behind a slow item begun twice."""
    monkeypatch.setattr(watch, "STUCK_S", 1000.0)


class Calls:
    """Notes which items it was called with, in a file."""

    def __init__(self, path: Path, fails: tuple = (), takes_s: float = 0.0):
        self.path = str(path)
        self.fails = fails
        self.takes_s = takes_s

    def __call__(self, x: Any) -> Any:
        with open(self.path, "a") as file:
            file.write(f"{x}\n")
        time.sleep(self.takes_s)
        if x in self.fails:
            raise ValueError(x)
        return -x

    def __reduce__(self) -> tuple:
        return type(self), (Path(self.path), self.fails, self.takes_s)


def calls(path: Path) -> list[int]:
    """Those since the last time."""
    seen = [int(line) for line in path.read_text().split()] if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(seen)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_done_is_not_done_again(tmp_path: Path, executor: Executor, ordered: bool) -> None:
    log, fn = tmp_path / "log", Calls(tmp_path / "log")
    options: dict = {"journal": tmp_path / "j", "ordered": ordered, "policy": "pull:3"}
    for n, new in ((10, range(10)), (10, ()), (25, range(10, 25))):
        results = executor.map(fn, range(n), **options)
        got = list(results)
        assert (got if ordered else sorted(got, reverse=True)) == [-x for x in range(n)]
        assert calls(log) == list(new)
        assert results.summary is not None
        assert (results.summary.total, results.summary.restored) == (n, n - len(new))
    assert list(executor.map(fn, iter(range(25)), **{**options, "ordered": True})) == [-x for x in range(25)]
    assert calls(log) == []


@pytest.mark.parametrize("batch", [2, 4, 5])
def test_with_batches(tmp_path: Path, executor: Executor, batch: int) -> None:
    def negatives(xs: list[int], log: str = str(tmp_path / "log")) -> list[int]:
        with open(log, "a") as file:
            file.write("".join(f"{x}\n" for x in xs))
        return [-x for x in xs]

    options: dict = {"journal": tmp_path / "j", "policy": "pull"}
    assert list(executor.map(negatives, range(11), batch=4, **options)) == [-x for x in range(11)]
    assert calls(tmp_path / "log") == list(range(11))
    assert list(executor.map(negatives, iter(range(23)), batch=batch, **options)) == [-x for x in range(23)]
    assert calls(tmp_path / "log") == list(range(11, 23))
    assert list(executor.map(negatives, range(11), batch=batch, **options)) == [-x for x in range(11)]
    assert calls(tmp_path / "log") == []


@pytest.mark.parametrize("ordered", [True, False])
def test_a_stopped_run_gives_and_keeps_what_was_finished(
    tmp_path: Path, executor: Executor, ordered: bool
) -> None:
    log, fn = tmp_path / "log", Calls(tmp_path / "log")
    options: dict = {"journal": tmp_path / "j", "policy": "pull", "ordered": ordered}
    results = executor.map(fn, iter(range(10**6)), look_ahead=50, **options)
    got = [next(results) for _ in range(5)]
    results.stop()
    got += list(results)
    assert results.status == "interrupted"
    ran = calls(log)
    assert sorted(-x for x in got) == ran
    again = executor.map(fn, range(len(ran)), **options)
    assert sorted(-x for x in again) == list(range(len(ran)))
    assert len(calls(log)) == len(set(range(len(ran))) - set(ran))


def test_failed_items_are_tried_again(tmp_path: Path, executor: Executor) -> None:
    log, fn = tmp_path / "log", Calls(tmp_path / "log", fails=(2,))
    options: dict = {"journal": tmp_path / "j", "on_error": "return", "policy": "pull"}
    for again in (range(5), [2]):
        got = list(executor.map(fn, range(5), **options))
        assert [got[x] for x in (0, 1, 3, 4)] == [0, -1, -3, -4]
        assert isinstance(got[2], TaskError)
        assert calls(log) == list(again)


@BACKENDS
def test_what_may_run_once_runs_once_in_all_runs_together(tmp_path: Path, backend: str) -> None:
    log, fn = tmp_path / "log", Calls(tmp_path / "log", fails=(2,))
    events: list = []
    options: dict = {
        "journal": tmp_path / "j", "devices": "cpu*2", "on_error": "return", "backend": backend,
        "repeatable": False, "events": EventLog(events.append),
    }  # fmt: skip
    for again in (range(5), []):
        events.clear()
        got = list(evenload.map(fn, range(5), **options))
        assert isinstance(got[2], TaskError)
        assert "ValueError: 2" in got[2].message
        assert [e.index for e in events if isinstance(e, ItemFailed)] == [2]
        assert calls(log) == list(again)
    with Journal.open(tmp_path / "j", _facts(tmp_path / "j")) as journal:
        begun = journal.done("3")
        assert begun is not None
        journal.record("3", begun[:16] + b"b")  # as if the driver had died while it ran
    got = list(evenload.map(fn, range(5), **options))
    assert isinstance(got[3], WorkerLost)
    assert "its outcome is unknown" in got[3].message
    assert calls(log) == []


def _facts(path: Path) -> dict:
    import json

    return json.loads((path / "journal.json").read_text())["fingerprint"]


def test_items_that_the_function_changes_are_known_by_what_they_were(
    tmp_path: Path, executor: Executor
) -> None:
    def grow(items: list) -> list:
        items.append(len(items))
        return items

    for _ in range(2):
        items = [[0] * n for n in range(5)]
        got = executor.map(grow, items, journal=tmp_path / "j")
        assert list(got) == [[0] * n + [n] for n in range(5)]


def test_another_function_or_item_is_refused_or_run(tmp_path: Path) -> None:
    def times(n: int) -> Any:
        return lambda x: x * n

    options: dict = {"journal": tmp_path / "j", "devices": "cpu*2"}
    assert list(evenload.map(times(2), [1, 2, 3], **options)) == [2, 4, 6]
    with pytest.raises(ConfigError, match="another function made its results"):
        evenload.map(times(3), [1, 2, 3], **options)
    with pytest.raises(ConfigError, match="item 1, or the code behind it, is not that whose result"):
        list(evenload.map(times(2), [1, 7, 3], **options))
    events: list = []
    got = evenload.map(times(2), [1, 7, 3], on_change="rerun", events=EventLog(events.append), **options)
    assert list(got) == [2, 14, 6]
    assert [(e.index, e.n_items, e.items) for e in events if isinstance(e, Restored)] == [(0, 2, (0, 2))]
    assert list(evenload.map(times(2), [1, 7, 3], **options)) == [2, 14, 6]
    assert list(evenload.map(times(3), [1, 7, 3], on_change="rerun", **options)) == [3, 21, 9]


def test_results_of_other_code_are_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    """From then on they are the new code's; the oracle is what each function would give."""

    def times(n: int) -> Any:
        return lambda x: x * n

    options: dict = {"journal": tmp_path / "j", "devices": "cpu*1", "backend": "inline"}
    assert list(evenload.map(times(2), [1, 2], **options)) == [2, 4]
    with pytest.raises(ConfigError, match=r"`n`, which .* closes over") as caught:
        evenload.map(times(3), [1, 2], **options)
    assert "on_change='keep'" in str(caught.value)
    assert list(evenload.map(times(3), [1, 7, 5], on_change="keep", **options)) == [2, 21, 15]
    assert list(evenload.map(times(3), [1, 7, 5], **options)) == [2, 21, 15]
    with pytest.raises(ConfigError, match="another function"):
        evenload.map(times(2), [1, 7, 5], **options)


def test_a_journal_of_an_earlier_version_is_refused_and_may_be_kept(tmp_path: Path) -> None:
    """As the version before wrote its journal.json: without parts, and with another kind of fingerprint."""
    import json
    import zlib

    options: dict = {"journal": tmp_path / "j", "devices": "cpu*1", "backend": "inline"}
    assert list(evenload.map(abs, [-1, 2], **options)) == [1, 2]
    facts = json.loads((tmp_path / "j/journal.json").read_text())
    named = facts["fingerprint"] | {"function": "0" * 32}
    checksum = zlib.crc32(json.dumps([facts["salt"], sorted(named.items())]).encode())
    old = {"format": "1", "salt": facts["salt"], "fingerprint": named, "checksum": checksum}
    (tmp_path / "j/journal.json").write_text(json.dumps(old))
    with pytest.raises(ConfigError, match="of an earlier version of evenload") as caught:
        evenload.map(abs, [-1, 2], **options)
    assert "on_change='keep'" in str(caught.value)
    results = evenload.map(abs, [-1, 2], on_change="keep", **options)
    assert list(results) == [1, 2]
    assert results.summary is not None
    assert results.summary.restored == 2


def test_an_item_that_may_run_once_is_not_run_again_because_its_entry_is_damaged(tmp_path: Path) -> None:
    options: dict = {"journal": tmp_path / "j", "devices": "cpu*2", "policy": "pull", "on_error": "return"}
    fn = Calls(tmp_path / "log")
    list(evenload.map(fn, range(20), repeatable=False, **options))
    assert sorted(calls(tmp_path / "log")) == list(range(20))
    (file,) = (tmp_path / "j").glob("segment-*")
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1  # in the result that was written last
    file.write_bytes(raw)
    for _ in range(2):
        events: list = []
        got = list(evenload.map(fn, range(20), repeatable=False, events=EventLog(events.append), **options))
        (lost,) = [value for value in got if isinstance(value, WorkerLost)]
        assert [value for value in got if value is not lost] == [-x for x in range(20) if x != lost.index]
        assert "may not be run again" in lost.message
        assert not calls(tmp_path / "log")


def test_a_result_that_cannot_be_kept_is_an_error_of_its_item(tmp_path: Path, executor: Executor) -> None:
    def lock_of(x: int) -> Any:
        return threading.Lock() if x == 1 else x

    got = list(executor.map(lock_of, range(3), journal=tmp_path / "j", on_error="return"))
    assert (got[0], got[2]) == (0, 2)
    assert isinstance(got[1], TaskError)


def test_a_full_disk_is_told_also_if_the_input_broke_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    """Results that could not be kept are not delivered: the error of the input would not say so."""
    is_written = threading.Event()

    def full(fd: int) -> None:
        is_written.set()
        raise OSError(28, "No space left on device")

    def items() -> Any:
        yield 1
        until(is_written.is_set, "the first result is to be kept")
        raise LookupError("the source is gone")

    with Executor("cpu*1", backend="process", echo=False) as executor, monkeypatch.context() as patch:
        results = executor.map(abs, items(), journal=tmp_path / "j", policy="pull")
        patch.setattr(segments_module, "sync", full)
        with pytest.raises(EvenloadError, match="cannot be written: No space left on device"):
            list(results)


def test_a_journal_in_use_is_refused_and_one_never_used_is_let_go(tmp_path: Path) -> None:
    with Executor("cpu*1") as executor:
        results = executor.map(abs, range(3), journal=tmp_path / "j")
        with pytest.raises(ConfigError, match="in use by process"):
            executor.map(abs, range(3), journal=tmp_path / "j")
        del results
        assert list(executor.map(abs, range(3), journal=tmp_path / "j")) == [0, 1, 2]


# --- the driver is killed ---------------------------------------------------------------------------

DRIVER = """
import os, random, signal, sys, threading, time
import evenload

def work(x):
    time.sleep(0.002 + 0.004 * (x % 5 == 0))
    if random.random() < {deadly}:
        os.kill(os.getpid(), signal.SIGKILL)
    with open({log!r}, "a") as file:
        file.write(f"{{x}}\\n")
    return [x, "y" * (x % 7) * 5000]

print("begin", flush=True)
fate = random.Random(int(sys.argv[1]))
policy = fate.choice(["pull", "measured"])
results = evenload.map(work, range({n}), devices="cpu*2", journal={path!r}, policy=policy,
                       ordered=fate.random() < 0.7, max_worker_deaths=50, echo=False)
for index, value in results.indexed():
    assert value == [index, "y" * (index % 7) * 5000], value
    os.write(1, f"{{index}}\\n".encode())
print("end", flush=True)
"""


def kill_again_and_again(tmp_path: Path, popen: Any, n_kills: int, n: int, deadly: float) -> None:
    """Nothing that was given is lost or other than it was; the last run gives everything, each once."""
    import random

    dice = random.Random(n_kills)
    source = DRIVER.format(n=n, path=str(tmp_path / "j"), log=str(tmp_path / "log"), deadly=deadly)
    (tmp_path / "driver.py").write_text(textwrap.dedent(source))
    given: set[int] = set()
    n_killed = 0
    for attempt in range(10 * n_kills):
        driver = popen(
            [sys.executable, "driver.py", str(attempt)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begin\n"
        if n_killed < n_kills:
            timer = threading.Timer(0.1 + 0.7 * dice.random(), driver.send_signal, (signal.SIGKILL,))
            timer.start()
        else:
            timer = None
        lines = driver.communicate(timeout=500)[0].split("\n")
        if timer is not None:
            timer.cancel()
        whole = [int(line) for line in lines[:-1] if line != "end"]
        assert len(whole) == len(set(whole)), "given twice"
        if driver.returncode == 0:
            assert sorted(whole) == list(range(n))
            if n_killed >= n_kills:
                break
            (tmp_path / "driver.py").write_text(textwrap.dedent(source))
            n_killed += 1  # it was done before it could be killed
        else:
            assert driver.returncode == -signal.SIGKILL
            n_killed += 1
        given |= set(whole)
        if not (tmp_path / "j" / "journal.json").exists():  # killed before it began
            assert not given
            continue
        with Journal.open(tmp_path / "j", _facts(tmp_path / "j")) as journal:
            assert given <= {int(key) for key in journal.keys() if journal.done(key) is not None}  # noqa: SIM118
            assert journal.n_damaged == 0
    else:
        raise AssertionError("it never came to its end")
    ran = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert set(ran) == set(range(n))


def test_drivers_and_workers_killed_at_random_lose_nothing(tmp_path: Path, popen: Any) -> None:
    kill_again_and_again(tmp_path, popen, n_kills=5, n=300, deadly=0.005)
