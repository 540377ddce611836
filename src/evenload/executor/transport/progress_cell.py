"""The item that a worker is at: a few numbers in memory that it shares with the executor.

The worker writes them before each item, in about 0.1 µs. The executor reads them to enforce time limits
(which item runs for how long) and to find the item at which a worker died, which no message could say then.
"""

import contextlib
import mmap
import sys
import time

from evenload.executor.transport.arena import make_shared_file

UNPACKING = -1  # the chunk's items are being unpickled
PACKING = -2  # all items have run, the results are being pickled
NOT_BEGUN = -3  # the worker has not begun this chunk
QUEUED = -4  # the worker had another chunk to run before it

MOST_CHUNK = 2**63 - 1

_SINCE, _CHUNK, _ITEM, _DROP, _SENT = range(5)
_BYTES = 5 * 8
_WIPE_ON_FORK = 18  # madvise(2): a forked child finds zeros there; Linux, not in the mmap module
_SEAL_FUTURE_WRITE = 16  # fcntl(2); not in the fcntl module
_clock = time.monotonic_ns


def make_progress_file() -> int:
    """Make the shared memory of one cell; returns its file descriptor. Raises OSError."""
    return make_shared_file("place", _BYTES, is_complete=False)


def seal_progress_file(fd: int) -> None:
    """Let nobody write into the file any more but those who have mapped it, where the system can.

    A task that writes into any descriptor it has must not change what was begun.
    """
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # before Linux 5.1
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def _memory_of_one_process() -> memoryview:
    """Make memory for one number that is 0 in any forked child, also where a task calls the C library's fork.

    Nothing in Python is told of such a fork, and to ask for the process id takes as long as a tiny item.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(_WIPE_ON_FORK)
            return memoryview(page).cast("q")
    return memoryview(bytearray(8)).cast("q")


class ProgressCell:
    """A worker's progress in shared memory, seen from either side."""

    def __init__(self, fd: int | None = None):
        """Map the file ``fd``; None: use plain memory, for a worker in this process."""
        self._map = mmap.mmap(fd, _BYTES) if fd is not None else None
        self.cells = memoryview(self._map if self._map is not None else bytearray(_BYTES)).cast("q")
        self._own = _memory_of_one_process()  # the chunk that this process runs

    # The worker's side.

    def begin(self, chunk: int) -> None:
        """Note that ``chunk``, a positive number, is being unpickled."""
        self._own[0] = chunk
        self.cells[_ITEM] = UNPACKING
        self.cells[_SINCE] = time.monotonic_ns()
        self.cells[_CHUNK] = chunk

    def at(self, item: int) -> None:
        """Note that the item at this position of the chunk starts now; not in a forked child."""
        if self._own[0]:
            self.cells[_SINCE] = time.monotonic_ns()
            self.cells[_ITEM] = item

    def enter(self, item: int) -> int:
        """Note as ``at`` does, unless the rest of the chunk is to be skipped: one call, as items may be tiny.

        Returns the time in ns, 0 if it is to be skipped, as all is in a forked child.
        """
        cells = self.cells
        if cells[_DROP] >= self._own[0]:
            return 0
        cells[_SINCE] = now = _clock()
        cells[_ITEM] = item
        return now

    @property
    def is_dropped(self) -> bool:
        """Whether the rest of the chunk is to be skipped: the executor has asked so, or this is a child."""
        return self.cells[_DROP] >= self._own[0]

    def sent(self, n_frames: int) -> None:
        """Note that the pipe has taken so many frames."""
        self.cells[_SENT] = n_frames

    def disconnect(self) -> None:
        """In a forked child: go on in memory of its own, as if all chunks were dropped."""
        self.cells = memoryview(bytearray(_BYTES)).cast("q")
        self.cells[_DROP] = MOST_CHUNK

    # The executor's side.

    def is_readable(self, last_chunk: int) -> bool:
        """Whether what it says is possible, ``last_chunk`` being the last that was sent.

        If not, a task has written into it.
        """
        is_known = 0 <= self.cells[_CHUNK] <= last_chunk and self.cells[_ITEM] >= PACKING
        return is_known and 0 <= self.cells[_SINCE] <= time.monotonic_ns()

    def drop(self, chunk: int) -> None:
        """Ask the worker to skip all items of ``chunk``, and of those before it, that it has not begun."""
        self.cells[_DROP] = max(chunk, self.cells[_DROP])

    def position_in(self, chunk: int) -> tuple[int, float]:
        """Return the position in ``chunk`` (or NOT_BEGUN, UNPACKING, PACKING) and the seconds spent there."""
        at = self.cells[_CHUNK]
        if at != chunk:
            return NOT_BEGUN if at < chunk else PACKING, 0.0
        # Time is read last: if the worker moves on meanwhile, the seconds are too few, never too many.
        return self.cells[_ITEM], (time.monotonic_ns() - self.cells[_SINCE]) / 1e9

    @property
    def n_sent(self) -> int:
        """How many frames the worker has put into its pipe, or more."""
        return self.cells[_SENT]

    def close(self) -> None:
        self.cells.release()
        if self._map is not None:
            self._map.close()
