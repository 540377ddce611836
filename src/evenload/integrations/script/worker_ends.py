"""A worker's two ends: what it reads its tasks from, and what it writes their results to.

They stand where ``multiprocessing``'s own loops of workers expect their queues, and are sent to the worker
with its process. Each worker has a pair of its own, so that one that is killed holds no lock of others.
"""

import os
import pickle
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from struct import Struct
from typing import Any

TIMES = Struct("<ddqI")
"""In front of each result: when its task was begun, and when it was over, by ``time.monotonic``; the number
of the call that the worker has taken from the line, or NONE: it is free; and of how many bytes the words are
that stand behind the result and say why the task has failed."""
NUMBER, NONE = Struct("<q"), -1
"""In front of each call in the line."""
MOST_BYTES = 16384  # of a call in the line
MOST_TRACE = 4000  # characters, the last ones
READY = b""
BETWEEN = -1.0
"""In the place of when a task was begun, before what is no result: the worker says that it leaves."""


class TaskReader:
    """The tasks that one worker was dealt; ``get`` gives the next, None when no more will come.

    The first ``get`` says through ``results`` that the worker is ready: it has been initialized.

    line  of short calls, from which every worker that is about to be free takes one; None: it takes none
    """

    def __init__(self, tasks: Connection, results: Connection, line: Connection | None = None):
        self._tasks, self._results, self._line = tasks, results, line
        self._dealt: list[bytes | None] = []
        self._taken = NONE
        self._is_ready = self.is_over = False
        self.begun_s = BETWEEN

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next task; wait for it. None: no more will come, or the script's process is gone.

        Raises queue.Empty if there was none for ``timeout`` seconds.
        """
        if not self._is_ready:
            self._is_ready = True
            self._results.send_bytes(READY)
        if not self._dealt:
            try:
                if timeout is not None and not self._tasks.poll(timeout):
                    raise queue.Empty
                self._dealt = pickle.loads(self._tasks.recv_bytes())[::-1]
            except (EOFError, OSError):
                self.is_over = True
                return None
        body, self._taken = self._dealt.pop(), NONE
        if body is None:
            return None
        task = pickle.loads(body)
        self.begun_s = time.monotonic()
        return task

    def take(self) -> int:
        """Take the next call in the line, if nothing else was dealt. Returns its number, or NONE."""
        if self._line is not None and not self._dealt:
            with suppress(OSError):  # nothing is there
                told = os.read(self._line.fileno(), NUMBER.size + MOST_BYTES)
                (self._taken,) = NUMBER.unpack_from(told)
                self._dealt = [told[NUMBER.size :]]
        return self._taken


class ResultWriter:
    """The way of one worker's results, each with the times of its task, which ``reader`` has begun.

    dumps  pickles a result; None: as multiprocessing does
    """

    def __init__(self, results: Connection, reader: TaskReader, dumps: Callable[[Any], Any] | None = None):
        self._results, self._reader, self._dumps = results, reader, dumps

    def put(self, result: Any) -> None:
        """Send a result, if somebody reads it. Raises what pickling raises; nothing was sent then.

        The same message says which call comes next: whoever reads it knows at any time who is at what.
        """
        reader, over_s = self._reader, time.monotonic()
        if reader.is_over:
            return
        body = (self._dumps or ForkingPickler.dumps)(result)
        is_task = reader.begun_s != BETWEEN
        taken, words = (reader.take(), words_of(result)) if is_task else (NONE, b"")
        self._results.send_bytes(
            b"".join((TIMES.pack(reader.begun_s, over_s, taken, len(words)), body, words))
        )
        reader.begun_s = BETWEEN


def words_of(result: Any) -> bytes:
    """Return why a task has failed, of what a pool's own loop gives as its result; empty if it has not.

    No code of the exception's own runs: the words are those that the loop itself has put beside it.
    """
    if type(result) is tuple:  # of multiprocessing.Pool
        is_good, error = result[2]
        error = None if is_good else error
    else:
        error = result.exception
        if error is None and type(result.result).__name__ == "_ExceptionWithTraceback":  # of joblib
            error = result.result
    if error is None:
        return b""
    name, trace = type(getattr(error, "exc", error)).__name__, str(getattr(error, "tb", ""))
    shown = trace.strip('" \n')[-MOST_TRACE:]
    return f"{name}\0{shown}".encode(errors="backslashreplace")


def failure_of(words: bytes) -> tuple[str, str, str]:
    """Return an exception's type, message and traceback, of ``words_of`` its result."""
    name, _, trace = words.decode().partition("\0")
    return name, trace.rpartition(f"{name}: ")[2] if f"{name}: " in trace else "", trace


def begin(environment: Mapping[str, str], target: Callable[..., Any], *arguments: Any) -> Any:
    """In the worker: take the ``environment`` of its device, and be what the script's pool has made."""
    os.environ.update(environment)
    return target(*arguments)
