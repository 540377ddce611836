"""Single calls with futures (``Executor.submit``), as a run that never ends by itself."""

import functools
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .delivery import Block
from .source import Source

__all__ = ["CallSource", "FutureSink", "run_call"]

Indices = range | tuple[int, ...]


class CallSource(Source):
    """Calls in the order in which they were submitted. ``add`` and ``end`` are for the executor's thread."""

    def __init__(self) -> None:
        self.futures: dict[int, Future] = {}
        self._calls: dict[int, Any] = {}

    def add(self, call: Any, future: Future) -> None:
        self._calls[self.n_ready] = call
        self.futures[self.n_ready] = future
        self.n_ready += 1

    def cancel(self) -> None:
        for future in self.futures.values():
            future.cancel()

    def end(self) -> None:
        self.is_ended = True

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
    """Fulfils the futures of ``source``. ``on_end`` is called when there is nothing more to come."""

    is_waiting_for_room = False
    n_bytes = 0

    def __init__(self, source: CallSource, on_end: Callable[[], None]):
        self._source = source
        self._on_end = on_end
        self.n_taken = 0

    def put(self, block: Block) -> None:
        self.n_taken += len(block)
        for at, item in enumerate(block.items):
            future = self._source.futures.pop(item)
            if at in block.failed:
                future.set_exception(block.values[at])
            else:
                future.set_result(block.values[at])

    def flush(self, now: float) -> None:
        pass  # every result has reached its future

    def skip_gaps(self) -> None:
        pass

    def close(self, error: BaseException | None = None) -> None:
        for future in self._source.futures.values():
            if error is not None and (future.running() or future.set_running_or_notify_cancel()):
                future.set_exception(error)
            elif not future.done():
                future.cancel()
        self._source.futures.clear()
        self._on_end()


def run_call(call: tuple[bytes, list, tuple, dict]) -> Any:
    """In the worker: the call itself."""
    body, buffers, args, kwargs = call
    fn = pickle.loads(body, buffers=buffers) if buffers else _function(body)
    return fn(*args, **kwargs)


@functools.lru_cache(maxsize=128)
def _function(body: bytes) -> Callable:
    return pickle.loads(body)
