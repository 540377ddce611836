"""Where a worker is: four numbers in memory that both it and the executor see.

The worker writes them before each item, for about 0.1 µs. The executor looks when it has to know: which item
has been running for how long (time limits), and which one was running when the worker died (whom to blame).
No message could say that after a crash.
"""

import mmap
import time

from evenload.executor.transport.arena import make_shared_file

__all__ = ["NOT_BEGUN", "PACKING", "QUEUED", "UNPACKING", "ProgressCell", "make_progress_file"]

UNPACKING = -1  # the chunk's items are being read
PACKING = -2  # all its items have run, the results are being written
NOT_BEGUN = -3  # the worker has not come to this chunk
QUEUED = -4  # the worker had another chunk before it

_SINCE, _CHUNK, _ITEM, _DROP = range(4)
_BYTES = 4 * 8


def make_progress_file() -> int:
    """A file descriptor of shared memory that vanishes with its last user."""
    return make_shared_file("place", _BYTES)


class ProgressCell:
    """The view of it, on either side."""

    def __init__(self, fd: int | None = None):
        """Map the file ``fd``; without one, plain memory for a worker in this very process."""
        self._map = mmap.mmap(fd, _BYTES) if fd is not None else None
        self.cells = memoryview(self._map if self._map is not None else bytearray(_BYTES)).cast("q")

    # The worker's side.

    def begin(self, chunk: int) -> None:
        self.cells[_ITEM] = UNPACKING
        self.cells[_SINCE] = time.monotonic_ns()
        self.cells[_CHUNK] = chunk

    def at(self, item: int) -> None:
        """The ``item``-th of the chunk starts now."""
        self.cells[_SINCE] = time.monotonic_ns()
        self.cells[_ITEM] = item

    def is_dropped(self, chunk: int) -> bool:
        """Nobody wants the rest of this chunk any more."""
        return self.cells[_DROP] >= chunk

    # The executor's side.

    def drop(self, chunk: int) -> None:
        """Ask the worker to skip what it has not begun of ``chunk`` and of those before it."""
        self.cells[_DROP] = max(chunk, self.cells[_DROP])

    def position_in(self, chunk: int) -> tuple[int, float]:
        """Position in ``chunk`` (or NOT_BEGUN, UNPACKING, PACKING), and for how many seconds."""
        if self.cells[_CHUNK] != chunk:
            return NOT_BEGUN, 0.0
        # The moment is read last: if the worker moves on meanwhile it is too young, never too old.
        return self.cells[_ITEM], (time.monotonic_ns() - self.cells[_SINCE]) / 1e9

    def close(self) -> None:
        self.cells.release()
        if self._map is not None:
            self._map.close()
