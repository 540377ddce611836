"""The loop itself: what happens if there is a mistake in it; nobody waits for ever because of one."""

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from evenload.balance.policy import Pull, Static
from evenload.errors import ConfigError, ExecutorClosed
from evenload.executor import Executor
from evenload.executor.loop.engine import RunEngine
from evenload.executor.run.run import Run

LeftBehind = Callable[[], list[psutil.Process]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_reaches_whoever_waits_and_ends_the_workers(
    monkeypatch: pytest.MonkeyPatch, left_behind: LeftBehind
) -> None:
    def mistaken(self: RunEngine, *_: object) -> None:
        raise ZeroDivisionError("a mistake")

    executor = Executor("cpu*2")
    results = executor.map(abs, itertools.count(), policy="pull")
    assert next(results) == 0
    monkeypatch.setattr(RunEngine, "answered", mistaken)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        list(results)
    executor._thread._thread.join(100)
    assert not left_behind()
    with pytest.raises(ExecutorClosed):
        executor.map(abs, [1])
    executor.close()


def test_an_executor_that_is_forgotten_ends_its_workers(left_behind: LeftBehind) -> None:
    executor = Executor("cpu*1")
    assert list(executor.map(abs, [-1])) == [1]
    thread = executor._thread._thread
    assert thread is not None
    del executor
    gc.collect()
    thread.join(100)
    assert not thread.is_alive()
    assert not left_behind()


def test_submitting_while_another_thread_closes_loses_no_future(until: Callable[..., None]) -> None:
    for _ in range(3):
        executor = Executor("cpu*1", echo=False)
        executor.start()
        futures: list[Future] = []
        refusals: list[BaseException] = []

        def submit(executor: Executor, futures: list[Future], refusals: list[BaseException]) -> None:
            try:
                while True:
                    futures.append(executor.submit(abs, -1))
            except ExecutorClosed as error:
                refusals.append(error)

        thread = threading.Thread(target=submit, args=(executor, futures, refusals), daemon=True)
        thread.start()
        until(lambda futures=futures: len(futures) >= 50, "fifty calls are submitted")
        executor.close()
        thread.join(100)
        assert refusals
        done = wait(futures, 100)
        assert not done.not_done
        assert {future.result(timeout=500) for future in futures} == {1}


def until_exists(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.005)


def test_closing_within_a_callback_finishes_what_was_submitted(
    left_behind: LeftBehind, tmp_path: Path
) -> None:
    executor = Executor("cpu*1")
    first = executor.submit(until_exists, str(tmp_path / "go"))
    first.add_done_callback(lambda _: executor.close())
    futures = [executor.submit(abs, -n) for n in range(20)]
    (tmp_path / "go").touch()
    assert [future.result(100) for future in futures] == list(range(20))
    executor.close()
    assert not left_behind()
    with pytest.raises(ExecutorClosed):
        executor.submit(abs, 1)


def test_a_signal_handler_may_call_the_engine_while_its_thread_holds_the_lock() -> None:
    executor = Executor("cpu*1")
    executor.start()
    called = threading.Event()

    def interrupted_in_the_middle() -> None:
        with executor._engine._calls._lock:
            executor._engine.call(called.set)  # what the handler would do

    threading.Thread(target=interrupted_in_the_middle, daemon=True).start()
    assert called.wait(100)
    executor.close()


class Broken(Pull):
    """A policy of somebody's own, with a mistake in it."""

    def step(self, state: Any, ask: Any) -> Any:
        raise ZeroDivisionError("a mistake in the policy")


class Unready(Pull):
    """Makes no state."""

    def init(self) -> Any:
        raise ZeroDivisionError("no state")


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_mistake_in_one_run_ends_no_other(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor("cpu*2", backend=backend, echo=False) as executor:
        other = executor.map(abs, range(50), policy="pull")
        assert next(other) == 0
        with pytest.raises(ZeroDivisionError, match="a mistake in the policy"):
            list(executor.map(abs, range(50), policy=Broken()))
        late = executor.map(abs, range(50), look_ahead=4, policy="pull")
        assert next(late) == 0
        late.set_policy(Unready())
        with pytest.raises(ZeroDivisionError, match="no state"):
            list(late)
        unfit = executor.map(abs, [1, 2, 3], policy=Static((1, 1)))
        with pytest.raises(ConfigError, match="partition"):
            list(unfit)
        assert list(other) == list(range(1, 50))
        with monkeypatch.context() as patch:
            patch.setattr(Run, "answered", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                list(executor.map(abs, range(3)))
        assert executor.submit(abs, -1).result(100) == 1
        assert list(executor.map(abs, range(50))) == list(range(50))
