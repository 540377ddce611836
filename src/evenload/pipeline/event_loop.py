"""An event loop in a thread, for stages whose calls are coroutines, and the time that each holds it."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from evenload._waiting import waiting

Result = TypeVar("Result")
CLOSE_S = 5.0  # for what still runs to end, once it is cancelled


class EventLoop:
    """An event loop in a thread, which ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evenload-loop", daemon=True)
        self._thread.start()

    def begin(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that ``make`` gives; from any thread. It must raise nothing."""
        self._loop.call_soon_threadsafe(self._begin, make)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(make())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def result_of(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for what ``coroutine`` returns; from another thread."""
        with waiting():
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Cancel what runs, and end the thread; a call that never awaits is left to end with the process."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tuple(self._tasks)])
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _end(self) -> None:
        if self._tasks:
            self._loop.call_later(0.01, self._end)
        else:
            self._loop.stop()


class LoopShare:
    """A coroutine's share of its event loop: awaited in its place, it gives the same result.

    held_s   seconds in which it ran and nothing else on the loop could; the rest it waited
    since_s  since when it holds the loop, by ``time.monotonic``; None while it waits
    """

    __slots__ = ("_coroutine", "held_s", "since_s")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._coroutine = coroutine
        self.held_s = 0.0
        self.since_s: float | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            self.since_s = began_s = time.monotonic()
            try:
                wanted = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self.held_s += time.monotonic() - began_s
                self.since_s = None
            try:
                step, value = steps.send, (yield wanted)
            except BaseException as error:  # a cancellation: it is the call's to take
                step, value = steps.throw, error
