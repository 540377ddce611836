"""Tests ``submit`` through the executor as a whole, the same on every backend."""

import os
import threading
import time
from typing import Any

import pytest

from evenload.errors import ExecutorClosed, TaskError, TaskTimeout
from evenload.executor import Executor


def fail_on_multiples_of_three(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is a multiple of three")
    return x


# --- submit ---------------------------------------------------------------------------------------


def test_submit_gives_real_futures(executor: Executor) -> None:
    import concurrent.futures

    futures = [executor.submit(pow, x, 2) for x in range(10)]
    assert all(isinstance(future, concurrent.futures.Future) for future in futures)
    assert [future.result(100) for future in concurrent.futures.as_completed(futures, 100)].count(81) == 1
    assert executor.submit(lambda *, key: key, key="word").result(100) == "word"
    failed = executor.submit(fail_on_multiples_of_three, 3)
    assert isinstance(failed.exception(100), TaskError)
    assert isinstance(failed.exception(100).__cause__, ValueError)


def wait_for_ever() -> None:
    threading.Event().wait(1000)


def test_a_call_over_its_limit_fails_and_the_next_gets_a_new_worker() -> None:
    with Executor("cpu", echo=False, call_timeout_s=0.5) as executor:
        late = executor.submit(wait_for_ever)
        with pytest.raises(TaskTimeout, match=r"ran longer than 0\.5 s"):
            late.result(100)
    with Executor("cpu", echo=False, call_timeout_s=100.0) as executor:
        assert executor.submit(abs, -3).result(100) == 3


def test_a_call_that_has_not_begun_can_be_cancelled(tmp_path: Any, until: Any) -> None:
    go = str(tmp_path / "go")

    def wait(x: int) -> int:
        while not os.path.exists(go):
            time.sleep(0.005)
        return x

    with Executor("cpu*1") as executor:
        running, queued, last = (executor.submit(wait, x) for x in range(3))
        until(running.running, "the first call has begun")
        assert queued.cancel()
        assert not running.cancel()
        open(go, "w").close()
        assert (running.result(100), last.result(100)) == (0, 2)
        assert queued.cancelled()


def test_leaving_by_an_exception_drops_what_was_submitted(until: Any) -> None:
    executor = Executor("cpu*1")
    futures = [executor.submit(time.sleep, 1000) for _ in range(3)]
    until(futures[0].running, "the first call has begun")
    executor.__exit__(LookupError, LookupError(), None)
    assert isinstance(futures[0].exception(0), ExecutorClosed)
    assert [future.cancelled() for future in futures] == [False, True, True]


def test_closing_finishes_what_was_submitted(backend: str) -> None:
    with Executor("cpu*1", backend=backend) as executor:
        futures = [executor.submit(lambda x: (time.sleep(0.01), x)[1], x) for x in range(5)]
    assert [future.result(0) for future in futures] == list(range(5))
    with pytest.raises(ExecutorClosed):
        executor.submit(abs, 1)
    with pytest.raises(ExecutorClosed):
        executor.map(abs, [1])
    executor.close()
