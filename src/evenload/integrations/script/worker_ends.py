"""A worker's two ends: what it reads its tasks from, and what it writes their results to.

They stand where ``multiprocessing``'s own loops of workers expect their queues, and are sent to the worker
with its process. Each worker has a pair of its own, so that one that is killed holds no lock of others.
"""

import os
import pickle
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from struct import Struct
from typing import Any

TIMES = Struct("<dd")
"""In front of each result: when its task was begun, and when it was over, by ``time.monotonic``."""
READY = b""


class TaskReader:
    """The tasks that one worker was dealt; ``get`` gives the next, None when no more will come.

    The first ``get`` says through ``results`` that the worker is ready: it has been initialized.
    """

    def __init__(self, tasks: Connection, results: Connection):
        self._tasks, self._results = tasks, results
        self._dealt: list[bytes | None] = []
        self._is_ready = self.is_over = False
        self.begun_s = 0.0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next task; wait for it. None: no more will come, or the script's process is gone."""
        if not self._is_ready:
            self._is_ready = True
            self._results.send_bytes(READY)
        if not self._dealt:
            try:
                self._dealt = pickle.loads(self._tasks.recv_bytes())[::-1]
            except (EOFError, OSError):
                self.is_over = True
                return None
        body = self._dealt.pop()
        task = None if body is None else pickle.loads(body)
        self.begun_s = time.monotonic()
        return task


class ResultWriter:
    """The way of one worker's results, each with the times of its task, which ``reader`` has begun."""

    def __init__(self, results: Connection, reader: TaskReader):
        self._results, self._reader = results, reader

    def put(self, result: Any) -> None:
        """Send a result, if somebody reads it. Raises what pickling raises; nothing was sent then."""
        if self._reader.is_over:
            return
        over_s = time.monotonic()
        body = ForkingPickler.dumps(result)
        self._results.send_bytes(b"".join((TIMES.pack(self._reader.begun_s, over_s), body)))


def begin(environment: Mapping[str, str], target: Callable[..., Any], *arguments: Any) -> Any:
    """In the worker: take the ``environment`` of its device, and be what the script's pool has made."""
    os.environ.update(environment)
    return target(*arguments)
