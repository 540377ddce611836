"""Write files to disk in threads, while the next item is computed.

An item counts as done only when its files are on disk: write, fsync, rename. Waiting for a disk takes longer
than many stages do, and several waits at a time cost hardly more than one.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from evenload.pipeline.artifacts import write_output

N_THREADS = 4
MOST_WAITING_BYTES = 256 << 20  # with more, ``save`` waits


class FileSaver:
    """A queue of files to write, with threads that write them."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_SaveRequest | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._n_waiting_bytes = 0

    def save(self, files: Sequence[tuple[Path, bytes]], then: Callable[[Exception | None], None]) -> None:
        """Queue ``files``, to be written in their order; waits only while very many bytes are queued.

        ``then`` is called from a thread once they are on disk, with None or the error.
        """
        n_bytes = sum(len(content) for _, content in files)
        with self._changed:
            self._changed.wait_for(lambda: self._n_waiting_bytes < MOST_WAITING_BYTES)
            self._n_waiting_bytes += n_bytes
        if len(self._threads) < N_THREADS:
            thread = threading.Thread(target=self._work, name="evenload-save", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._todo.put((files, n_bytes, then))

    def close(self) -> None:
        """Wait until everything is written, and end the threads."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (request := self._todo.get()) is not None:
            files, n_bytes, then = request
            fault: Exception | None = None
            try:
                for path, content in files:
                    write_output(path, content)
            except Exception as error:
                fault = error
            with self._changed:
                self._n_waiting_bytes -= n_bytes
                self._changed.notify_all()
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                then(fault)


_SaveRequest = tuple[Sequence[tuple[Path, bytes]], int, Callable[[Exception | None], None]]
