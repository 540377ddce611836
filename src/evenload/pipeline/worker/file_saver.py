"""Write files to disk in threads, while the next item is computed.

An item counts as done only when its files are on disk: write, fsync, rename. Waiting for a disk takes longer
than many stages do, and several waits at a time cost hardly more than one.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evenload.pipeline.artifacts import write_output

N_THREADS = 4
MOST_WAITING_BYTES = 256 << 20  # with more, ``save`` waits


class FileSaver:
    """A queue of files to write, with threads that write them."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
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
        if self._threads is None:
            self._threads = ThreadPoolExecutor(N_THREADS, "evenload-save")
        self._threads.submit(self._write, files, n_bytes, then)

    def close(self) -> None:
        """Wait until everything is written, and end the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _write(
        self, files: Sequence[tuple[Path, bytes]], n_bytes: int, then: Callable[[Exception | None], None]
    ) -> None:
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
