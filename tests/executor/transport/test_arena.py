"""Memory that two ends share: lent, read in place, given back with the last view, never above its limit."""

import os
import sys

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.transport.arena import (
    ArenaPiece,
    Borrower,
    Lender,
    MemoryBudget,
    make_arena_file,
    open_copy,
)

MIB = 1 << 20


def n_lent(lender: Lender) -> int:
    """How many pieces the other end has not given back."""
    lender._collect()
    return len(lender._lent)


class Ends:
    """Both ends of an arena, in one process."""

    def __init__(self, limit: int = 64 * MIB):
        self.budget = MemoryBudget.new(limit)
        self.fd = make_arena_file("test", limit)
        cell = self.budget.open_cell()
        assert cell is not None
        self.lender = Lender(self.fd, self.budget, cell)
        self.borrower = Borrower(self.fd)

    def put(self, array: np.ndarray) -> ArenaPiece | None:
        return self.lender.put(memoryview(array).cast("B"))

    def __enter__(self) -> "Ends":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self.budget.fd)


def test_a_piece_is_read_in_place_and_comes_back_with_its_last_view() -> None:
    with Ends() as ends:
        array = np.arange(100_000.0)
        piece = ends.put(array)
        assert piece is not None
        view = np.frombuffer(ends.borrower.open(piece))
        part = view[10:20]
        assert np.array_equal(view, array)
        view[10] = -1.0
        del view
        assert n_lent(ends.lender) == 1
        assert part[0] == -1.0
        del part
        assert n_lent(ends.lender) == len(ends.borrower._leases) == 0


def test_free_memory_goes_back_to_the_system_when_another_arena_needs_it() -> None:
    with Ends(8 * MIB) as ends:
        fd = make_arena_file("other", 8 * MIB)
        cell = ends.budget.open_cell()
        assert cell is not None
        other = Lender(fd, ends.budget, cell)
        for _ in range(2):
            piece = ends.put(np.ones(6 * MIB, np.uint8))
            assert piece is not None
            ends.borrower.open(piece)
        assert other.put(memoryview(bytes(6 * MIB))) is None
        # It cannot take what the other end of the budget holds, but that end lets go of what it does not use.
        small = ends.put(np.ones(7 * MIB, np.uint8))
        assert small is not None
        assert ends.budget.n_bytes <= 8 * MIB
        os.close(fd)


def test_a_piece_that_was_not_sent_is_taken_back() -> None:
    with Ends() as ends:
        piece = ends.put(np.zeros(MIB, np.uint8))
        assert piece is not None
        ends.lender.take_back(piece)
        assert n_lent(ends.lender) == 0


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300_000), st.integers(0, 3)), max_size=30), st.integers(0, 2**32))
def test_pieces_never_overlap_whatever_comes_back_when(steps: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with Ends(2 * MIB) as ends:
        held: list[tuple[np.ndarray, np.ndarray]] = []
        for n, n_drop in steps:
            array = rng.integers(0, 255, n, np.uint8)
            piece = ends.put(array)
            if piece is not None:
                held.append((array, np.frombuffer(ends.borrower.open(piece), np.uint8)))
            del held[:n_drop]
            assert all(np.array_equal(sent, got) for sent, got in held)
            assert ends.budget.n_bytes <= 2 * MIB
        held.clear()
        assert n_lent(ends.lender) == 0


def test_a_copy_of_a_common_piece_may_be_written_to() -> None:
    with Ends() as ends:
        piece = ends.put(np.arange(10_000.0))
        assert piece is not None
        one, two = (np.frombuffer(open_copy(ends.fd, piece)) for _ in range(2))
        one[0] = 7.0
        assert (one[0], two[0], two[9999]) == (7.0, 0.0, 9999.0)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_gives_back_nothing() -> None:
    with Ends() as ends:
        piece = ends.put(np.ones(100_000))
        assert piece is not None
        view = np.frombuffer(ends.borrower.open(piece))
        child = os.fork()
        if not child:
            del view
            os._exit(0)
        os.waitpid(child, 0)
        assert n_lent(ends.lender) == 1
        assert view[0] == 1.0


def test_too_little_memory_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.F_SEAL_SHRINK", 0, raising=False)
    with Ends() as ends:
        os.ftruncate(ends.fd, 4 * MIB)  # as good as a full file system: nothing can be backed beyond
        assert ends.put(np.zeros(16 * MIB, np.uint8)) is None
        assert ends.budget.n_bytes == 0
