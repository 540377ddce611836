"""The shared memory of an executor: an arena per worker and direction, and a common one for tasks.

Buffers that every worker needs, such as weights bound to a task, are stored once, in the common arena.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenload._memory_sizes import limit_from
from evenload.errors import ConfigError, quoted, reason_of
from evenload.executor.transport.arena import (
    ArenaPiece,
    Borrower,
    Lender,
    MemoryBudget,
    make_arena_file,
    read_only,
)
from evenload.executor.transport.pickling import OUT_OF_BAND_BYTES
from evenload.executor.transport.wire import COMMON

LEAST_LIMIT = 64 * 1024**2  # of a worker's own memory
COMMON_SHARE = 0.5  # of the limit that the common arena may take


@dataclass(slots=True, eq=False)
class WorkerArenas:
    """The two arenas of a worker, seen from the executor.

    theirs  four file descriptors and a cell for the worker; see ``worker.main``
    own     the descriptors among them to close once the worker has them
    """

    lender: Lender
    borrower: Borrower
    theirs: tuple[int, int, int, int, int]
    own: tuple[int, int]


def memory_limit_from(limit: Any) -> int:
    """Read ``memory_limit`` as ``limit_from`` does. Raises ConfigError, also for less than a worker needs."""
    n_bytes = -1 if isinstance(limit, bool) else limit_from(limit, "memory_limit")
    if n_bytes < LEAST_LIMIT:
        raise ConfigError(
            f"memory_limit={quoted(limit)} is less than an empty worker needs",
            hint=f'give at least {LEAST_LIMIT // 2**20} MiB, such as "4 GB"',
        )
    return n_bytes


class SharedMemory:
    """All arenas of an executor. ``limit``: bytes for all together; 0 for no shared memory.

    Where the system gives no shared memory, workers go without.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._is_warned = False
        self._budget: MemoryBudget | None = None
        self._common: Lender | None = None
        self._common_fd = -1
        self._tasks: dict[int, list[Any]] = {}
        self._n_common = 0

    def open(self, warn: Callable[[str], None] = lambda why: None) -> WorkerArenas | None:
        """Make the arenas of one more worker; None if it must go without: ``warn`` is told why, once."""
        if self.limit <= 0:
            return None
        fds: list[int] = []
        cells: list[int] = []
        try:
            budget = self._open_budget()
            for name in ("in", "out"):
                fds.append(make_arena_file(name, self.limit))
                cell = budget.open_cell()
                if cell is None:
                    raise OSError("too many arenas")
                cells.append(cell)
            lender, borrower = Lender(fds[0], budget, cells[0]), Borrower(fds[1])
        except (OSError, ValueError) as error:
            for fd in fds:
                os.close(fd)
            for cell in cells:
                self._budget.close_cell(cell)  # pyrefly: ignore
            self._warn_once(warn, f"no shared memory: {reason_of(error, with_path=True)}")
            return None
        lender.when_gone(budget.close_cell, cells[0])
        borrower.when_gone(budget.close_cell, cells[1])
        theirs = (fds[0], fds[1], self._common_fd, budget.fd, cells[1])
        return WorkerArenas(lender, borrower, theirs, (fds[0], fds[1]))

    def share(self, task: int, buffers: list[Any]) -> list[Any]:
        """Return ``buffers`` of a task, those that fit as pieces of the common arena."""
        if self._common is None or not buffers:
            return buffers
        pieces = self._tasks.get(task)
        if pieces is None:
            pieces = self._tasks[task] = [self._share(memoryview(buffer).cast("B")) for buffer in buffers]
        return pieces

    def warn_full(self, warn: Callable[[str], None]) -> None:
        """Call ``warn``, once, as a buffer went through a pipe because the arena was full."""
        if self._budget is not None:
            self._warn_once(
                warn,
                f"shared memory is full ({self.limit / 2**20:.0f} MiB): what is large travels through pipes "
                "meanwhile, which is slower; keep fewer results, or raise shared_memory_limit",
            )

    def close(self) -> None:
        """Free the shared memory. Views of results stay valid."""
        for fd in (self._common_fd, self._budget.fd if self._budget is not None else -1):
            if fd >= 0:
                os.close(fd)
        self._budget = self._common = None
        self._tasks.clear()
        self._common_fd = -1
        self.limit = 0

    def _open_budget(self) -> MemoryBudget:
        if self._budget is None:
            budget = MemoryBudget.new(self.limit)
            try:
                fd = make_arena_file("common", self.limit)
                try:
                    cell = budget.open_cell()
                    assert cell is not None
                    self._common = Lender(fd, budget, cell)
                    self._common_fd = read_only(fd)
                finally:
                    os.close(fd)
            except (OSError, ValueError):
                os.close(budget.fd)
                raise
            self._budget = budget
        return self._budget

    def _share(self, buffer: memoryview) -> Any:
        assert self._common is not None
        n = buffer.nbytes
        if n < OUT_OF_BAND_BYTES or self._n_common + n > self.limit * COMMON_SHARE:
            return buffer
        piece = self._common.put(buffer)
        if piece is None:
            return buffer
        self._n_common += n
        return ArenaPiece(piece.slot | COMMON, piece.offset, piece.n)

    def _warn_once(self, warn: Callable[[str], None], why: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            warn(why)
