"""The future of a submitted call."""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from evenload.errors import not_sendable
from evenload.executor.loop.results import refuse_to_wait

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
