"""Sends the files of results to the run, piece by piece, where the run folder is not on this machine."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import FilePiece

PIECE_BYTES = 8 << 20
ANSWER_BYTES = 32 << 20  # that go with one answer,
MOST_WAITING_BYTES = 256 << 20  # or all beyond these


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
