"""Shared memory of the executor and one worker: large buffers are copied into it once and read in place.

    Lender.put(buffer) ──► Piece ──pipe──► Borrower.open(piece) ──► views ··· the last one dies ──► free again

An arena is a file without a name (``memfd``, or a temporary file that is deleted at once), as large as the
limit allows, with memory only where something was written. Both ends map it once. The system frees it when
both have ended, however they end: nothing has to be cleaned up, and the size of ``/dev/shm`` is no limit.
Pages that were written once are kept for reuse: fresh ones cost several times as much as the copy.
"""

import contextlib
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.executor.transport.free_list import FreeList

if TYPE_CHECKING:
    import ctypes

PAGE = 4096
HEADER_BYTES = 64 * 1024
FIRST_SLOT = 8  # the header: how many pieces were given back, then one byte per slot that is lent
MOST_RETURNS = 1 << 62  # the count of returns starts again there
LARGE_PAGE = 2 * 1024 * 1024  # pieces begin at this offset, and the arena grows by so much
N_CELLS = 512
LIMIT_CELL = 0
LARGE_BYTES = 256 * 1024  # copied without the interpreter's lock
MADV_POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module


class ArenaPiece(NamedTuple):
    """A range of an arena: ``n`` bytes at ``offset``, lent under the number ``slot``."""

    slot: int
    offset: int
    n: int


def make_shared_file(name: str, n_bytes: int, *, is_complete: bool = True) -> int:
    """Make memory that is freed with its last user; returns its file descriptor. Raises OSError.

    is_complete  False: more may be sealed later
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"evenload-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, n_bytes)
    except OSError:
        os.close(fd)
        raise
    if sys.platform == "linux":
        import fcntl

        # A task that cut it short would have the executor die of SIGBUS.
        with contextlib.suppress(OSError):
            seals = fcntl.F_SEAL_SHRINK | (fcntl.F_SEAL_SEAL if is_complete else 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def read_only(fd: int) -> int:
    """Return another descriptor of the same memory that cannot be written through, where the system can.

    What all workers share is given to them by it: a task that writes into its descriptors harms no other.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # no /proc
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    return os.dup(fd)


class MemoryBudget:
    """The memory that an executor's arenas take, counted in shared memory, and its limit.

    Each arena has a cell that only its lender writes. Two that grow at the same moment may exceed the limit
    by what one of them asked for.
    """

    def __init__(self, fd: int, limit: int | None = None):
        """Map the file ``fd``. The executor gives ``limit`` in bytes; workers leave it out and read it."""
        self.fd = fd
        self._cells = memoryview(mmap.mmap(fd, N_CELLS * 8)).cast("q")
        self._free = list(range(N_CELLS - 1, LIMIT_CELL, -1))
        if limit is not None:
            self._cells[LIMIT_CELL] = limit
        self.limit = self._cells[LIMIT_CELL]

    @classmethod
    def new(cls, limit: int) -> "MemoryBudget":
        """Make a budget of ``limit`` bytes in new shared memory. Raises OSError."""
        return cls(make_shared_file("budget", N_CELLS * 8), limit)

    @property
    def n_bytes(self) -> int:
        """The bytes that all arenas take now."""
        return sum(self._cells[LIMIT_CELL + 1 :])

    def open_cell(self) -> int | None:
        """Return a cell for one more arena; None if there are too many. Only the executor may call it."""
        return self._free.pop() if self._free else None

    def close_cell(self, cell: int) -> None:
        """Give back the cell of an arena that is gone."""
        self._cells[cell] = 0
        self._free.append(cell)

    def take(self, cell: int, n: int) -> bool:
        """Count ``n`` bytes more for the arena with this cell. Returns False if the limit forbids it."""
        if self.n_bytes + n > self.limit:
            return False
        return self._add(cell, n)

    def give(self, cell: int, n: int) -> None:
        """Count ``n`` bytes less for the arena with this cell."""
        self._add(cell, -n)

    def _add(self, cell: int, n: int) -> bool:
        try:
            self._cells[cell] += n
        except ValueError:  # a task has written into the cells, and this one is about to overflow
            return False
        return True


def make_arena_file(name: str, limit: int) -> int:
    """Make the file of an arena of up to ``limit`` bytes; returns its descriptor. Raises OSError."""
    return make_shared_file(name, LARGE_PAGE + -(-limit // PAGE) * PAGE)


class Lender:
    """The writing end of an arena. May be used by one thread only."""

    def __init__(self, fd: int, budget: MemoryBudget, cell: int):
        """Raises OSError or ValueError if the file cannot be mapped."""
        self._fd = os.dup(fd)
        try:
            self._map = mmap.mmap(fd, 0)
        except BaseException:
            os.close(self._fd)
            raise
        weakref.finalize(self._map, os.close, self._fd).atexit = False  # pyrefly: ignore
        _prefer_large_pages(self._map)
        if not self._back(0, HEADER_BYTES):
            raise OSError(errno.ENOMEM, "no memory for an arena")
        self._returns = memoryview(self._map)[:FIRST_SLOT].cast("q")
        self._n_returns = 0
        self._budget, self._cell = budget, cell
        self._warm = FreeList()  # free, and backed by memory
        self._cold = FreeList(LARGE_PAGE, len(self._map) - LARGE_PAGE)
        self._step = max(PAGE, min(LARGE_PAGE, budget.limit // 64 // PAGE * PAGE))
        self._lent: dict[int, tuple[int, int]] = {}
        self._slots = list(range(HEADER_BYTES - 1, FIRST_SLOT - 1, -1))

    def when_gone(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function`` when this end is freed."""
        weakref.finalize(self._map, function, *arguments).atexit = False  # pyrefly: ignore

    def put(self, buffer: memoryview) -> ArenaPiece | None:
        """Copy ``buffer`` (of bytes) into the arena and lend it. Returns None if there is no room."""
        n = buffer.nbytes
        size = -(-n // PAGE) * PAGE
        offset = self._allocate(size)
        if offset is None:
            return None
        _copy(buffer, self._map, offset)
        slot = self._slots.pop()
        self._lent[slot] = (offset, size)
        self._map[slot] = 1
        return ArenaPiece(slot, offset, n)

    def take_back(self, piece: ArenaPiece) -> None:
        """Free a piece that was not sent after all."""
        self._map[piece.slot] = 0
        self._free(piece.slot)

    def _allocate(self, size: int) -> int | None:
        if not self._slots or self._returns[0] != self._n_returns:
            self._collect()
        if not self._slots:
            return None
        offset = self._warm.take(size)
        if offset is not None:
            return offset
        if not self._grow(size):
            self._collect()  # two returns at one moment may have been counted as one
            self._trim()
            self._grow(size)
        return self._warm.take(size)

    def _grow(self, size: int) -> bool:
        """Add memory for at least ``size`` bytes. Returns False if the budget or the system refuses."""
        size = -(-size // self._step) * self._step
        if not self._budget.take(self._cell, size):
            return False
        offset = self._cold.take(size)
        if offset is None:
            self._budget.give(self._cell, size)
            return False
        if not self._back(offset, size):
            self._cold.give(offset, size)
            self._budget.give(self._cell, size)
            return False
        self._warm.give(offset, size)
        return True

    def _collect(self) -> None:
        """Free what the other end has given back."""
        self._n_returns = self._returns[0]
        for slot in [slot for slot in self._lent if not self._map[slot]]:
            self._free(slot)

    def _free(self, slot: int) -> None:
        self._warm.give(*self._lent.pop(slot))
        self._slots.append(slot)

    def _back(self, offset: int, size: int) -> bool:
        """Allocate the pages now: without memory, writing to them would be a SIGBUS."""
        try:
            if sys.platform == "linux":
                try:
                    self._map.madvise(MADV_POPULATE_WRITE, offset, size)
                    return True
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        return False
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, offset, size)
        except OSError:
            return False
        return True

    def _trim(self) -> None:
        """Return free memory to the system, where the file system supports it."""
        if not hasattr(mmap, "MADV_REMOVE"):
            return
        kept = FreeList()
        for start, stop in self._warm:
            try:
                self._map.madvise(mmap.MADV_REMOVE, start, stop - start)
            except OSError:  # this file system cannot
                kept.give(start, stop - start)
            else:
                self._cold.give(start, stop - start)
        self._budget.give(self._cell, self._warm.n_bytes - kept.n_bytes)
        self._warm = kept


class Borrower:
    """The reading end of an arena."""

    def __init__(self, fd: int):
        """Raises OSError or ValueError if the file cannot be mapped."""
        self._map = mmap.mmap(fd, 0)
        _prefer_large_pages(self._map)
        self._returns = memoryview(self._map)[:FIRST_SLOT].cast("q")
        self._leases: dict[int, weakref.ref] = {}
        self._pid = os.getpid()

    def when_gone(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function`` when this end and all views of its pieces are freed."""
        weakref.finalize(self._map, function, *arguments).atexit = False  # pyrefly: ignore

    def is_open_to(self, piece: ArenaPiece) -> bool:
        """Whether ``piece`` lies in the arena and its slot is not in use."""
        in_range = LARGE_PAGE <= piece.offset <= piece.offset + piece.n <= len(self._map)
        return in_range and FIRST_SLOT <= piece.slot < HEADER_BYTES and piece.slot not in self._leases

    def open(self, piece: ArenaPiece) -> "ctypes.Array":
        """Map a piece in place, writable. It is given back when the last view of it is freed."""
        import ctypes  # takes a while, and not every worker needs it

        slot = piece.slot
        block = (ctypes.c_ubyte * piece.n).from_buffer(self._map, piece.offset)
        leases, returns, arena, pid = self._leases, self._returns, self._map, self._pid

        def give_back(_: weakref.ref) -> None:
            del leases[slot]
            if os.getpid() == pid:  # a forked child must not give it back
                arena[slot] = 0
                returns[0] = (returns[0] + 1) % MOST_RETURNS

        leases[slot] = weakref.ref(block, give_back)
        return block


def open_copy(fd: int, piece: ArenaPiece) -> mmap.mmap:
    """Map a piece that many workers share; each may write to it for itself (copy on write)."""
    return mmap.mmap(fd, piece.n, access=mmap.ACCESS_COPY, offset=piece.offset)


def _copy(buffer: memoryview, target: mmap.mmap, offset: int) -> None:
    n = buffer.nbytes
    numpy = sys.modules.get("numpy")
    if n >= LARGE_BYTES and numpy is not None and hasattr(numpy, "frombuffer"):
        numpy.frombuffer(target, numpy.uint8, n, offset)[:] = numpy.frombuffer(buffer, numpy.uint8)
    else:
        target[offset : offset + n] = buffer


def _prefer_large_pages(arena: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE") and len(arena) > LARGE_PAGE:
        with contextlib.suppress(OSError):  # a system built without them
            arena.madvise(mmap.MADV_HUGEPAGE, LARGE_PAGE)
