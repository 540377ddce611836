"""Files on their way to the disk while the next item is computed.

An item is claimed as done only when its files are there: write, fsync, rename. To wait for a disk takes
longer than many stages do, and several waits at a time cost hardly more than one.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from evenload.pipeline.artifacts import write_atomically

__all__ = ["FileSaver"]

N_THREADS = 4
MOST_WAITING_BYTES = 256 << 20  # then whoever brings more waits


class FileSaver:
    """``save`` returns at once; ``then`` is called from a thread with None or what went wrong."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_SaveRequest | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._n_waiting_bytes = 0

    def save(self, files: Sequence[tuple[Path, bytes]], then: Callable[[Exception | None], None]) -> None:
        """Bring ``files`` onto the disk, in their order. Waits while very many bytes wait already."""
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
        """Returns when all that was to be saved is."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            files, n_bytes, then = job
            fault: Exception | None = None
            try:
                for path, content in files:
                    write_atomically(path, content)
            except Exception as error:
                fault = error
            with self._changed:
                self._n_waiting_bytes -= n_bytes
                self._changed.notify_all()
            with contextlib.suppress(RuntimeError):  # the interpreter is on its way out
                then(fault)


_SaveRequest = tuple[Sequence[tuple[Path, bytes]], int, Callable[[Exception | None], None]]
