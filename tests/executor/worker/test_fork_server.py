"""Workers by fork: as fresh as new interpreters, quickly replaced, and nothing is left of their server."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.devices import DevicePool, worker_environment
from evenload.errors import ConfigError, UnknownName, WorkerLost
from evenload.executor import Executor
from evenload.executor.backends.process import ProcessBackend
from evenload.executor.task.messages import Gone, Up
from evenload.executor.worker.fork_server import can_fork, imports_of

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")


def pid_of(_: int) -> int:
    return os.getpid()


def test_a_server_that_dies_is_replaced_and_no_item_is_lost() -> None:
    with Executor("cpu*2", start="forkserver", echo=False) as executor:
        assert list(executor.map(abs, range(5))) == list(range(5))
        backend: Any = executor._engine.backend
        os.kill(backend._server._process.pid, signal.SIGKILL)
        assert list(executor.map(slowly, range(20))) == list(range(20))


def slowly(x: int) -> int:
    time.sleep(0.1)
    return x


def test_where_no_server_can_work_workers_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    from evenload.executor.worker import fork_server

    monkeypatch.setattr(fork_server, "BOOT_SERVER", "import nothing_of_this_name  # {path} {fd}")
    with Executor("cpu*2", start="forkserver", echo=False) as executor:
        assert list(executor.map(abs, range(5))) == list(range(5))
        assert executor._engine.backend._forks is False  # type: ignore[attr-defined]


def test_of_a_server_with_a_second_thread_new_workers_are_new_interpreters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "starts_a_thread.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    how: dict[str, Any] = {"start": "forkserver", "policy": "static", "max_worker_deaths": 1, "echo": False}
    with Executor("cpu*2", **how) as executor:
        before = set(executor.map(pid_of, range(2)))
        backend: Any = executor._engine.backend
        backend._server.preload(["starts_a_thread"])
        os.kill(max(before), signal.SIGKILL)
        after = set(executor.map(slow_pid_of, range(10)))
        assert after & before == {min(before)}
        (new,) = after - before
        assert b"worker.worker import main" in command_of(new)
        assert command_of(min(before)) == command_of(backend._server.pid)
        replies = executor.map(exit_if, [new] * 2, on_error="return")
        (ended,) = [one for one in replies if isinstance(one, WorkerLost)]
        assert ended.exit_code_of_worker == 3  # the server tells it, as of those that it forks
        assert backend._n_servers == 1


def exit_if(pid: int) -> None:
    if os.getpid() == pid:
        os._exit(3)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def slow_pid_of(_: int) -> int:
    time.sleep(0.3)
    return os.getpid()


PARENT = """
import os, signal, sys, time
from evenload.executor import Executor
executor = Executor("cpu*2", start=START, echo=False)
executor.start()
list(executor.map(abs, range(4)))
import psutil
if not (child := os.fork()):  # it has all that the executor has, and lives on
    os.closerange(0, 3)
    signal.pause()
print(child, *[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_the_server_and_its_workers_do_not_outlive_a_killed_parent(
    start: str, until: Callable[..., None]
) -> None:
    program = f"START = {start!r}\n{PARENT}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=550)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child, *pids = map(int, done.stdout.split())
    try:
        theirs = [pid for pid in pids if pid != child]
        assert len(theirs) == (3 if start == "forkserver" else 2)
        until(lambda: not any(map(is_alive, theirs)), "the server and its workers are gone")
    finally:
        os.kill(child, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def threads_of(_: Any) -> tuple[int, list[int]]:
    import ctypes

    import numpy as np
    import torch

    from evenload.executor.worker.threads import _libraries

    np.ones((64, 64)) @ np.ones((64, 64))
    counts: list[int] = []
    for path in _libraries():
        if "openblas" in path and "numpy" in path:
            library = ctypes.CDLL(path)
            names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_")
            counts += [getattr(library, name)() for name in names if hasattr(library, name)]
    return torch.get_num_threads(), counts


@pytest.mark.slow
def test_a_preloaded_worker_keeps_to_its_share_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with Executor("cpu*1", start="forkserver", echo=False) as executor:
        first = executor.submit(threads_of, 0).result(timeout=500)
        backend: Any = executor._engine.backend
        backend._server.preload(["numpy", "torch"])
        (worker,) = executor._engine._supervisor.workers.values()
        backend.kill(worker.number)
        again = executor.submit(threads_of, 0).result(timeout=500)
        assert again == first
        assert backend._n_servers == 1


def test_what_a_task_uses_is_known() -> None:
    import numpy as np

    from evenload.report import tally

    assert imports_of(np.sum) == ["numpy"]
    assert imports_of(tally.summarise) == []
    assert imports_of(abs) == []
    assert imports_of(lambda: psutil) == []


class _Shy(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("not told")


@settings(max_examples=examples(60), deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_a_task_of_a_module_that_nobody_can_look_at_is_a_task(chance: random.Random) -> None:
    """What modules of users hold is theirs: names that are none, classes and modules that raise."""
    nameless, renamed, odd = ModuleType("x"), ModuleType("x"), type("Odd", (), {"__module__": chance})
    del nameless.__name__
    renamed.__name__ = None  # type: ignore[assignment]
    kinds = [nameless, renamed, odd, _Shy("Shy", (), {}), 1, random, None]
    scope = {f"v{n}": chance.choice(kinds) for n in range(chance.randrange(5))}
    task = FunctionType((lambda: 0).__code__, scope)
    task.__module__ = chance.choice(["evenload_odd", ["odd"], None])
    module: Any = ModuleType("evenload_odd")
    vars(module).update(scope)
    with patch.dict(sys.modules, evenload_odd=chance.choice([module, object()])):
        assert imports_of(task) == []


def test_unknown_ways_to_start_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="fork"):
        Executor("cpu*1", start="fork")
    from evenload.executor.backends import process

    monkeypatch.setattr(process, "can_fork", lambda: False)
    with pytest.raises(ConfigError, match="Linux"):
        Executor("cpu*1", start="forkserver")
    with Executor("cpu*1") as executor:
        assert executor._engine.backend._forks is False  # type: ignore[attr-defined]


def test_a_worker_may_speak_before_the_server_has_told_of_it(until: Callable[..., None]) -> None:
    backend = ProcessBackend()
    pool = DevicePool.find("cpu*1")
    (device,) = pool
    look = backend._selector.select

    def seen() -> list[str]:
        return sorted(key.data.__name__ for key, _ in look(0.0))

    backend.start(1, device, pool, worker_environment(device, pool))
    until(lambda: {"_on_frames", "_on_status"} <= set(seen()), "both have something to say")
    backend._selector.select = lambda timeout: sorted(  # type: ignore[method-assign]
        look(timeout), key=lambda event: event[0].data.__name__
    )
    assert seen().index("_on_frames") < seen().index("_on_status")
    assert any(isinstance(message, Up) for message in backend.poll(5.0))
    backend.close(1.0)


def test_a_worker_that_has_ended_may_be_spoken_to_until_its_end_is_taken_in(
    until: Callable[..., None],
) -> None:
    """Messages that came before its end, in the same poll, have others told to drop what it ran."""
    backend, messages = ProcessBackend(), []
    pool = DevicePool.find("cpu*1")
    (device,) = pool
    backend.start(1, device, pool, worker_environment(device, pool))

    def has(kind: type) -> bool:
        messages.extend(backend.poll(0.1))
        return any(isinstance(message, kind) for message in messages)

    until(lambda: has(Up), "it is up")
    backend.kill(1)
    until(lambda: has(Gone), "it has ended")
    backend.drop(1, 1)
    backend.kill(1)
    backend.show_stack(1)
    backend.unload(1, 1)
    assert backend.position(1)[1] == 0.0
    assert not backend.poll(0.0)
    backend.close(1.0)
