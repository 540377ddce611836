"""The calls that are submitted to an executor: a run of them at a time, opened by its first call."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pickle import PickleBuffer
from typing import Any, TypeVar

from evenload.errors import not_sendable
from evenload.executor.loop.engine import EngineThread, RunEngine
from evenload.executor.loop.results import refuse_to_wait
from evenload.executor.run.calls import Call, CallSource
from evenload.executor.task.item_context import CallerContext
from evenload.executor.task.prepare import name_of, pickle_callable

T = TypeVar("T")


class CallFuture(Future[T]):
    """A future that raises where waiting for it would never end.

    Its callbacks are called in the thread that brings results: none comes while one of them waits, be it by
    ``result``, ``concurrent.futures.wait`` or ``as_completed``.

    is_bringer  whether the thread that asks is the one that brings results
    """

    def __init__(self, is_bringer: Callable[[], bool]):
        super().__init__()
        self._is_bringer = is_bringer
        self._waiters = _Waiters(self)  # what ``wait`` adds itself to

    def __reduce__(self) -> Any:
        raise not_sendable("a future", "give it to `submit` as an argument: the call gets its result")

    def result(self, timeout: float | None = None) -> T:
        self.check_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.check_wait()
        return super().exception(timeout)

    def check_wait(self) -> None:
        """Raises ConfigError if this thread must not wait for it."""
        if not self.done() and self._is_bringer():
            refuse_to_wait()


class _Waiters(list[Any]):
    """Callers that wait for a future; none may that would wait for ever."""

    def __init__(self, future: CallFuture[Any]):
        super().__init__()
        self._future = weakref.ref(future)  # it must be freed with its result as soon as nobody has it

    def append(self, waiter: Any) -> None:
        future = self._future()
        if future is not None:
            future.check_wait()
        super().append(waiter)


def _make_call(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], *, sends: bool) -> Call:
    """Make the call of ``fn``. ``sends``: to another process. Raises ConfigError if it cannot be sent."""
    if not sends:
        return Call(name_of(fn), fn, (args, kwargs))
    body, buffers = pickle_callable(fn)
    return Call(
        name_of(fn),
        (body, [PickleBuffer(buffer) for buffer in buffers]),
        (args, kwargs),
        CallerContext.of_now(),
    )


class SubmittedCalls:
    """The submitted calls of one executor, whose lock they share. They hold on to no executor."""

    def __init__(self, engine: RunEngine, thread: EngineThread, lock: "threading.RLock"):
        self._engine, self._thread, self._lock = engine, thread, lock
        self._is_threaded = engine.backend.is_threaded
        self._taking: CallSource | None = None
        self._ending: list[CallSource] = []

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        open_run: Callable[[CallSource | None], CallSource],
        make_future: Callable[[Callable[[], bool]], CallFuture] = CallFuture,
    ) -> CallFuture:
        """Take a call into the run that ``open_run`` returns, given the one that took the last call."""
        call = _make_call(fn, args, kwargs, sends=self._is_threaded)
        future = make_future(self._thread.asks)
        with self._lock:
            self._taking = open_run(self._taking)
            self._engine.call(partial(self._taking.add, call, future))
        while not self._is_threaded and not future.done():
            self._engine.step()
        return future

    def finish(self) -> None:
        """Let the run end when its calls are done; the next call begins another."""
        with self._lock:
            if self._taking is not None:
                self._ending = [run for run in self._ending if not run.is_over.is_set()]
                self._ending.append(self._taking)
                self._engine.call(self._taking.end)
                self._taking = None

    def close(self, cancel: bool, wait: bool) -> bool:
        """``finish``, and wait for every call; with ``cancel``, what waits is cancelled instead.

        Returns whether the thread is left to shut down when they are done: without ``wait``, or asked by it.
        """
        self.finish()
        if cancel:
            for run in self._ending:
                self._engine.call(run.cancel)
        elif self._thread.asks():
            self._shut_down_then()
            return True
        elif not wait and self._is_threaded:
            self._engine.call(self._shut_down_then)
            return True
        else:
            self.wait()
        return False

    def _shut_down_then(self) -> None:
        """Shut down when every call is done. Only from the engine's thread."""
        function = self._thread.shut_down
        for run in self._ending:
            function = partial(run.then, function)
        function()

    def wait(self) -> None:
        """Until every call is done."""
        for run in tuple(self._ending):
            self._thread.wait_for(run)
