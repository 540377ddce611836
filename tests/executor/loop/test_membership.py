"""Devices that come and go while work runs, by method and by the files of a run folder."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import ConfigError, TaskError, WorkerLost
from evenload.events import EventLog, Span, WorkerExited
from evenload.executor import Executor
from evenload.executor.loop.control import Control, ask
from evenload.executor.supervisor import supervisor


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Iterator[tuple[Executor, list[Any]]]:
    events: list[Any] = []
    backend = getattr(request, "param", "process")
    if backend == "ray":
        request.getfixturevalue("ray_cluster")
    with Executor("cpu*2", backend=backend, events=EventLog(events.append), echo=False) as executor:
        yield executor, events


inline = pytest.mark.parametrize("executor", ["inline"], indirect=True)
"""For what concerns no worker."""


def slow(x: int) -> str:
    time.sleep(0.01)
    return os.environ["EVENLOAD_DEVICE"]


def take(results: Any, n: int) -> list[Any]:
    return [next(results) for _ in range(n)]


def take_until(results: Any, seen: set[str]) -> list[str]:
    """Results, until each of the devices has made one."""
    got: list[str] = []
    while not seen <= set(got):
        got.append(next(results))
    return got


@pytest.mark.parametrize("executor", ["process", "ray"], indirect=True)
@pytest.mark.usefixtures("patient")
def test_a_drained_device_ends_what_it_has_and_leaves(
    executor: tuple[Executor, list], until: Callable[..., None]
) -> None:
    own, events = executor
    results = own.map(slow, itertools.count(), policy="pull", look_ahead=10)
    n_taken = len(take_until(results, {"cpu:0", "cpu:1"}))
    own.drain("cpu:1")
    assert own.devices.ids == ("cpu:0",)
    rest = take(results, 60)
    assert set(rest[30:]) == {"cpu:0"}
    results.stop()
    rest += list(results)
    assert results.summary is not None
    assert results.summary.total == results.summary.done == n_taken + len(rest)
    until(lambda: any(e.device == "cpu:1" for e in events if isinstance(e, WorkerExited)), "cpu:1 has left")
    assert [e.reason for e in events if isinstance(e, WorkerExited)] == ["closed"]
    assert set(own.map(slow, range(10))) == {"cpu:0"}
    assert not [e for e in events if isinstance(e, Span) and e.status != "ok"]


@pytest.mark.parametrize(
    ("executor", "policy"),
    [("process", "measured"), ("process", "pull"), ("process", "static"), ("ray", "pull")],
    indirect=["executor"],
)
def test_a_device_comes_back_and_works_at_once(executor: tuple[Executor, list], policy: str) -> None:
    own, _ = executor
    own.drain("cpu:0")
    results = own.map(slow, itertools.count(), policy=policy)
    assert set(take(results, 10)) == {"cpu:1"}
    assert own.add("cpu:0") == ("cpu:0",)
    assert own.devices.ids == ("cpu:1", "cpu:0")
    if policy != "static":
        take_until(results, {"cpu:0"})
    assert len(list(own.map(slow, range(20), policy=policy))) == 20
    results.close()


@pytest.mark.parametrize(
    ("executor", "repeatable"), [("process", True), ("process", False), ("ray", True)], indirect=["executor"]
)
def test_a_device_removed_at_once_loses_nothing(
    executor: tuple[Executor, list], tmp_path: Path, repeatable: bool, until: Callable[..., None]
) -> None:
    own, events = executor

    def long_on_one(x: int, log: str = str(tmp_path / "log"), held: str = str(tmp_path / "held")) -> int:
        with open(log, "a") as file:
            file.write(f"{x}\n")
        if os.environ["EVENLOAD_DEVICE"] == "cpu:1":
            open(held, "w").close()
            time.sleep(1000)
        while not os.path.exists(held):
            time.sleep(0.01)
        return x

    while set(own.map(slow, range(10), policy="pull")) != {"cpu:0", "cpu:1"}:
        pass
    results = own.map(long_on_one, range(20), policy="pull", repeatable=repeatable, on_error="return",
                      ordered=False)  # fmt: skip
    got = take(results, 19)
    own.drain("cpu:1", at_once=True)
    got += list(results)
    lost = [one for one in got if isinstance(one, TaskError)]
    ran = sorted(map(int, (tmp_path / "log").read_text().split()))
    if repeatable:
        assert sorted(got) == list(range(20))
        assert len(ran) == 21
    else:
        assert len(lost) == 1
        assert isinstance(lost[0], WorkerLost)
        assert "unknown" in lost[0].message
        assert ran == list(range(20))
    assert results.summary is not None
    until(lambda: any(isinstance(e, WorkerExited) for e in events), "the worker has left")
    assert own.submit(abs, -3).result(100) == 3


class NeverCloses:
    def __call__(self, x: int) -> str:
        return slow(x)

    def close(self) -> None:
        threading.Event().wait()


def test_a_drained_worker_that_does_not_leave_is_ended(
    executor: tuple[Executor, list], monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    own, events = executor
    monkeypatch.setattr(supervisor, "LEAVE_S", 0.2)
    results = own.map(NeverCloses, itertools.count(), policy="pull", look_ahead=10)
    take_until(results, {"cpu:0", "cpu:1"})
    own.drain("cpu:1")
    until(lambda: any(e.device == "cpu:1" for e in events if isinstance(e, WorkerExited)), "it has left")
    results.close()


# --- through the run folder -------------------------------------------------------------------------


@inline
def test_a_job_is_told_through_its_folder(
    executor: tuple[Executor, list], tmp_path: Path, until: Callable[..., None]
) -> None:
    own, _ = executor
    with Control(tmp_path, own):
        assert ask(tmp_path, "list") == ["cpu:0", "cpu:1"]
        assert ask(tmp_path, "drain", ["cpu:0"]) == ["cpu:1"]
        assert ask(tmp_path, "add", ["cpu:0"]) == ["cpu:1", "cpu:0"]
        with pytest.raises(ConfigError, match="refuses: unknown device 'cpu:7'"):
            ask(tmp_path, "drain", ["cpu:7"])
        with pytest.raises(ConfigError, match="refuses: unknown action 'dance'"):
            ask(tmp_path, "dance")
        (tmp_path / "control" / "x.ask").write_text("[1, 2")
        until((tmp_path / "control" / "x.answer").exists, "it is answered")
        assert "cannot be understood" in (tmp_path / "control" / "x.answer").read_text()
        (tmp_path / "control" / "x.answer").unlink()  # whoever asked takes it
    assert os.listdir(tmp_path / "control") == []
    with pytest.raises(ConfigError, match="no job runs in"):
        ask(tmp_path, "list")


def test_a_folder_of_a_job_that_was_killed_is_found_out(
    tmp_path: Path, popen: Callable[..., subprocess.Popen]
) -> None:
    program = textwrap.dedent(
        f"""
        import time
        from evenload.executor import Executor
        from evenload.executor.loop.control import Control
        with Executor("cpu*2") as executor, Control({str(tmp_path)!r}, executor):
            print("listens", flush=True)
            time.sleep(1000)
        """
    )
    job = popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"listens\n"
    assert ask(tmp_path, "drain", ["cpu:1"]) == ["cpu:0"]
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=500)
    with pytest.raises(ConfigError, match=f"has ended: there is no process {job.pid}"):
        ask(tmp_path, "list")
    assert (tmp_path / "control" / "owner").exists()
    with Executor("cpu*2") as own, Control(tmp_path, own):
        assert ask(tmp_path, "list") == ["cpu:0", "cpu:1"]


@inline
def test_a_job_that_does_not_answer(tmp_path: Path, executor: tuple[Executor, list]) -> None:
    with Control(tmp_path, executor[0]) as listener:
        listener._is_over.set()
        listener._thread.join(timeout=500)
        with pytest.raises(ConfigError, match="does not answer"):
            ask(tmp_path, "list", wait_s=0.2)


@inline
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that is another user's")
def test_requests_and_folders_of_other_users_are_refused(
    executor: tuple[Executor, list], tmp_path: Path, until: Callable[..., None]
) -> None:
    own, _ = executor
    with Control(tmp_path, own):
        request = tmp_path / "control" / "x.ask.new"
        request.write_text('{"action": "drain", "devices": ["cpu:0"]}')
        os.chown(request, 12345, 12345)
        request.rename(tmp_path / "control" / "x.ask")
        until((tmp_path / "control" / "x.answer").exists, "it is answered")
        assert "another user" in (tmp_path / "control" / "x.answer").read_text()
        assert own.devices.ids == ("cpu:0", "cpu:1")
        os.chown(tmp_path / "control" / "owner", 12345, 12345)
        with pytest.raises(ConfigError, match="another user"):
            ask(tmp_path, "list")
