"""Write files to disk in threads, while the next item is computed, or send them to the run piece by piece.

An item counts as done only when its files are on disk: write, fsync, rename. Waiting for a disk takes longer
than many stages do, and several waits at a time cost hardly more than one. Where the run folder is not on
this machine, the answers to the run's orders take the files along.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenload.pipeline.artifacts import write_output
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.dispatch.worker_protocol import FilePiece

N_THREADS = 4
PIECE_BYTES = 8 << 20
ANSWER_BYTES = 32 << 20  # that go with one answer, or all beyond the most that may wait
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


@dataclass(slots=True)
class _Outgoing:
    """The files of one task that are left to be sent; ``then`` is called when none is."""

    task: StageTask
    files: deque[tuple[str, bytes]]
    then: Callable[[Exception | None], None]
    sent: int = 0


class PieceSender:
    """A queue of files to send; what takes them are the answers to the run's orders."""

    def __init__(self) -> None:
        self._queue: deque[_Outgoing] = deque()
        self._n_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        return not self._queue

    def send(
        self, task: StageTask, files: Mapping[str, bytes], then: Callable[[Exception | None], None]
    ) -> None:
        """Queue the files of ``task`` by output; ``then`` is called when the last piece was taken."""
        with self._lock:
            self._queue.append(_Outgoing(task, deque(files.items()), then))
            self._n_bytes += sum(map(len, files.values()))

    def take(self) -> list[FilePiece]:
        """Return the next pieces, about 32 MiB, or as many as leave 256 MiB."""
        pieces: list[FilePiece] = []
        with self._lock:
            left = max(ANSWER_BYTES, self._n_bytes - MOST_WAITING_BYTES)
            while self._queue and left > 0:
                piece = self._next_piece(self._queue[0])
                if piece is not None:
                    pieces.append(piece)
                    left -= max(1, len(piece.content))
                    self._n_bytes -= len(piece.content)
                if not self._queue[0].files:
                    self._queue.popleft().then(None)
        return pieces

    def _next_piece(self, outgoing: _Outgoing) -> FilePiece | None:
        if not outgoing.files:
            return None
        output, content = outgoing.files[0]
        start = outgoing.sent
        part = np.empty(0, np.uint8)
        if content:  # NumPy makes no array of an empty buffer
            part = np.frombuffer(content, np.uint8)[start : start + PIECE_BYTES]
        outgoing.sent += len(part)
        if outgoing.sent >= len(content):
            outgoing.files.popleft()
            outgoing.sent = 0
        return FilePiece(outgoing.task, output, len(content), start, part)
