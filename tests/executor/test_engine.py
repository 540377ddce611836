"""The loop itself: what happens if there is a mistake in it; nobody waits for ever because of one."""

import gc
import threading

import psutil
import pytest

from evenload.errors import ExecutorClosed
from evenload.executor import Executor
from evenload.executor.engine import Engine


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_reaches_whoever_waits_and_ends_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(self: Engine, *_: object) -> None:
        raise ZeroDivisionError("a mistake")

    executor = Executor("cpu*2")
    results = executor.map(abs, range(1000), policy="pull")
    assert next(results) == 0
    monkeypatch.setattr(Engine, "_on_answered", mistaken)
    executor._engine._handlers[next(t for t in executor._engine._handlers if t.__name__ == "Answered")] = (
        executor._engine._on_answered
    )
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        list(results)
    executor._threads[0].join(20)
    assert not psutil.Process().children(recursive=True)
    with pytest.raises(ExecutorClosed):
        executor.map(abs, [1])
    executor.close()


def test_an_executor_that_is_forgotten_ends_its_workers() -> None:
    executor = Executor("cpu*1")
    assert list(executor.map(abs, [-1])) == [1]
    (thread,) = executor._threads
    del executor
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert not psutil.Process().children(recursive=True)


def test_a_callback_of_a_future_may_close_the_executor() -> None:
    executor = Executor("cpu*1")
    is_done = threading.Event()

    def close(_: object) -> None:
        executor.close(cancel=True)
        is_done.set()

    executor.submit(abs, -1).add_done_callback(close)
    assert is_done.wait(20)
    executor._threads[0].join(20)
    assert not psutil.Process().children(recursive=True)


def test_maps_under_way_end_when_the_executor_is_closed() -> None:
    executor = Executor("cpu*1")
    results = executor.map(abs, iter(int, 1))
    next(results)
    executor.close()
    with pytest.raises(ExecutorClosed):
        list(results)
