"""Single calls with futures (``Executor.submit``), as a run that never ends by itself."""

import functools
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from evenload.errors import ExecutorClosed
from evenload.executor.decide.delivery import Block
from evenload.executor.decide.source import Source

__all__ = ["CallSource", "FutureSink", "run_call"]

Indices = range | tuple[int, ...]


class CallSource(Source):
    """Calls in the order in which they were submitted. ``add`` and ``end`` are for the executor's thread.

    why_over   why no call is taken any more, None as long as they are
    """

    is_apart = True

    def __init__(self) -> None:
        self.futures: dict[int, Future] = {}
        self.why_over: BaseException | None = None
        self.is_over = threading.Event()
        self._afterwards: list[Callable[[], None]] = []
        self._calls: dict[int, Any] = {}

    def add(self, call: Any, future: Future) -> None:
        """Take a call; if the run is over, its future fails at once."""
        if self.why_over is not None:
            if future.set_running_or_notify_cancel():
                _fulfil(future.set_exception, self.why_over)
            return
        self._calls[self.n_ready] = call
        self.futures[self.n_ready] = future
        self.n_ready += 1

    def cancel(self) -> None:
        for future in tuple(self.futures.values()):
            _fulfil(future.cancel)

    def end(self) -> None:
        self.is_ended = True

    def then(self, function: Callable[[], None]) -> None:
        """Have ``function`` called when every future has its result. Only from the executor's thread."""
        if self.is_over.is_set():
            return function()
        self._afterwards.append(function)

    def set_over(self) -> None:
        """Every future has its result."""
        self.is_over.set()
        for function in self._afterwards:
            function()

    def claim(self, items: Indices) -> bool:
        (item,) = items
        future = self.futures[item]
        if future.running() or future.set_running_or_notify_cancel():
            return True
        self.release(items)
        del self.futures[item]
        return False

    def take(self, items: Indices) -> list[Any]:
        return [self._calls[item] for item in items]

    def release(self, items: Indices) -> None:
        for item in items:
            self._calls.pop(item, None)


class FutureSink:
    """A sink that fulfils the futures of ``source``, and tells it when nothing more is to come."""

    is_waiting_for_room = False
    n_bytes = n_ready_bytes = 0

    def __init__(self, source: CallSource):
        self._source = source
        self.n_taken = 0

    def put(self, block: Block) -> None:
        self.n_taken += len(block)
        for at, item in enumerate(block.items):
            future = self._source.futures.pop(item)
            if at in block.failed:
                _fulfil(future.set_exception, block.values[at])
            else:
                _fulfil(future.set_result, block.values[at])

    def flush(self, now: float) -> None:
        pass  # every result has reached its future

    def skip_gaps(self) -> None:
        pass

    def close(self, error: BaseException | None = None) -> None:
        self._source.why_over = error or ExecutorClosed("the executor is closed", hint="make a new one")
        for future in tuple(self._source.futures.values()):
            if error is not None and (future.running() or future.set_running_or_notify_cancel()):
                _fulfil(future.set_exception, error)
            elif not future.done():
                _fulfil(future.cancel)
        self._source.futures.clear()
        self._source.set_over()


def _fulfil(settle: Callable[..., Any], *value: Any) -> None:
    """Settle a future. Its callbacks run here and may raise; ``concurrent.futures`` lets SystemExit pass."""
    try:
        settle(*value)
    except BaseException:
        logging.getLogger("concurrent.futures").exception("a future's callback raised")


def run_call(call: tuple[bytes, list, tuple, dict]) -> Any:
    """In the worker: the call itself."""
    body, buffers, args, kwargs = call
    fn = pickle.loads(body, buffers=buffers) if buffers else _function(body)
    return fn(*args, **kwargs)


@functools.lru_cache(maxsize=128)
def _function(body: bytes) -> Callable:
    return pickle.loads(body)
