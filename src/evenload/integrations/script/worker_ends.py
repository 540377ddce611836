"""A worker's two ends: what it reads its tasks from, and what it writes their results to.

They stand where ``multiprocessing``'s own loops of workers expect their queues, and are sent to the worker
with its process. Each worker has a pair of its own, so that one that is killed holds no lock of others.
"""

import os
import pickle
import queue
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from struct import Struct
from typing import Any

TIMES = Struct("<dd")
"""In front of each result: when its task was begun, and when it was over, by ``time.monotonic``."""
READY = b""
BETWEEN = -1.0
"""In the place of when a task was begun, before what is no result: the worker says that it leaves."""


class TaskReader:
    """The tasks that one worker was dealt; ``get`` gives the next, None when no more will come.

    The first ``get`` says through ``results`` that the worker is ready: it has been initialized.
    """

    def __init__(self, tasks: Connection, results: Connection):
        self._tasks, self._results = tasks, results
        self._dealt: list[bytes | None] = []
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
        body = self._dealt.pop()
        if body is None:
            return None
        task = pickle.loads(body)
        self.begun_s = time.monotonic()
        return task


class ResultWriter:
    """The way of one worker's results, each with the times of its task, which ``reader`` has begun.

    dumps  pickles a result; None: as multiprocessing does
    """

    def __init__(self, results: Connection, reader: TaskReader, dumps: Callable[[Any], Any] | None = None):
        self._results, self._reader, self._dumps = results, reader, dumps

    def put(self, result: Any) -> None:
        """Send a result, if somebody reads it. Raises what pickling raises; nothing was sent then."""
        if self._reader.is_over:
            return
        over_s = time.monotonic()
        body = (self._dumps or ForkingPickler.dumps)(result)
        self._results.send_bytes(b"".join((TIMES.pack(self._reader.begun_s, over_s), body)))
        self._reader.begun_s = BETWEEN


def begin(environment: Mapping[str, str], target: Callable[..., Any], *arguments: Any) -> Any:
    """In the worker: take the ``environment`` of its device, and be what the script's pool has made."""
    os.environ.update(environment)
    return target(*arguments)
