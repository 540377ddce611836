"""Chunks in flight, copies of them included, and what becomes of their items."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Indices = range | tuple[int, ...]


@dataclass(slots=True, eq=False)
class ChunkInFlight:
    """A chunk that a device was given and has not answered for.

    number          of the chunk, from 0
    device          its name
    work            in average items
    began_s         when the device could begin it
    n_unfinished    items of it that have no result from anywhere
    original        the chunk that this is a copy of; None if it is no copy, or the original has ended
    copies          chunks in flight that run some of its items again
    family          the original and all its copies in flight; None while there are no copies
    uncopied        items still to be copied this time; None if copying starts from the beginning
    n_times_copied  how often all of it was dealt again
    is_struck       whether it holds an item that killed or hung a worker: it is not copied
    """

    number: int
    device: str
    indices: Indices
    work: float
    began_s: float
    n_unfinished: int
    original: "ChunkInFlight | None" = None
    copies: "list[ChunkInFlight]" = field(default_factory=list)
    family: "list[ChunkInFlight] | None" = None
    uncopied: Indices | None = None
    n_times_copied: int = 0
    is_struck: bool = False
    _members: frozenset[int] | range | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __contains__(self, index: int) -> bool:
        if self._members is None:
            self._members = self.indices if isinstance(self.indices, range) else frozenset(self.indices)
        return index in self._members

    @property
    def is_duplicate(self) -> bool:
        """Whether it is a copy of a chunk that still runs."""
        return self.original is not None

    @property
    def n_uncopied(self) -> int:
        """Items that can be copied before any is copied once more."""
        return len(self.indices) if self.uncopied is None else len(self.uncopied)


class ChunksInFlight:
    """All chunks in flight. An item may be in several; the first to end with a result finishes it.

    Costs time per chunk, and per item only where an item has been in two chunks.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, ChunkInFlight] = {}
        self._finished: dict[int, int] = {}  # item finished or forgotten -> chunks in flight that hold it
        self._given_up: set[int] = set()  # items without a result that are in no chunk, until dealt again
        self._struck: set[int] = set()
        self._n_started = 0

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def n_given_up(self) -> int:
        """Items without a result that are in no chunk, and wait to be dealt again."""
        return len(self._given_up)

    def __iter__(self) -> Iterator[ChunkInFlight]:
        return iter(self._chunks.values())

    def start(
        self,
        device: str,
        indices: Indices,
        work: float,
        began_s: float,
        original: ChunkInFlight | None = None,
    ) -> ChunkInFlight:
        """Add a chunk that ``device`` was given, as a copy of ``original`` if that is given."""
        if isinstance(indices, tuple) and _is_consecutive(indices):
            indices = range(indices[0], indices[-1] + 1)
        chunk = ChunkInFlight(self._n_started, device, indices, work, began_s, len(indices), original)
        self._n_started += 1
        if original is not None:
            original.copies.append(chunk)
            original.family = chunk.family = original.family or [original]
            original.family.append(chunk)
        if self._struck:  # by the shorter of the two
            is_short = len(indices) < len(self._struck)
            chunk.is_struck = (
                any(one in self._struck for one in indices)
                if is_short
                else any(one in chunk for one in self._struck)
            )
        self._chunks[chunk.number] = chunk
        return chunk

    def copy(self, original: ChunkInFlight, n: int, device: str, now: float) -> ChunkInFlight:
        """Start a copy of ``n`` unfinished items of ``original``, the last ones that are not copied yet.

        Once all are copied, the next copy starts from the end again.
        """
        todo = self._unfinished(original.indices if original.uncopied is None else original.uncopied)
        if not todo:  # all that was not copied yet has finished meanwhile
            original.n_times_copied += 1
            todo = self._unfinished(original.indices)
        cut = max(0, len(todo) - n)
        indices, original.uncopied = todo[cut:], todo[:cut]
        if not original.uncopied:
            original.uncopied = None
            original.n_times_copied += 1
        return self.start(device, indices, original.work * len(indices) / len(original), now, original)

    def has_copy(self, number: int) -> bool:
        """Whether others run every unfinished item of the chunk."""
        chunk = self._chunks.get(number)
        if chunk is None:
            return False
        others = [other for other in chunk.family or () if other is not chunk]
        todo = self._unfinished(chunk.indices)
        return bool(others) and all(any(index in other for other in others) for index in todo)

    def end(self, number: int) -> ChunkInFlight | None:
        """Take out a chunk that has ended; None if it is not in flight (its worker was given up)."""
        chunk = self._chunks.pop(number, None)
        if chunk is None:
            return None
        if chunk.family is not None:
            chunk.family.remove(chunk)
        if chunk.original is not None:
            chunk.original.copies.remove(chunk)
        for copy in chunk.copies:
            copy.original, copy.n_times_copied = None, max(copy.n_times_copied, 1)
        return chunk

    def finish(self, chunk: ChunkInFlight) -> Indices:
        """Mark the items of an ended chunk as finished; returns those that were not finished before."""
        if chunk.n_unfinished == len(chunk) and not chunk.family:
            return chunk.indices
        first = tuple(index for index in chunk.indices if not self._was_finished(index))
        for index in first:
            self._mark_finished(index, chunk.family or ())
        return first

    def give_up(self, chunk: ChunkInFlight) -> None:
        """Keep the items of an ended chunk without results for ``take_given_up``, unless a copy has them."""
        self._give_up(chunk, chunk.indices)

    def narrow(self, number: int, keep: Collection[int]) -> None:
        """Give up the items of a chunk but for ``keep``."""
        chunk = self._chunks[number]
        kept = tuple(index for index in chunk.indices if index in keep)
        gone = tuple(index for index in chunk.indices if index not in keep)
        chunk.work *= len(kept) / len(chunk)
        chunk.indices, chunk._members, chunk.uncopied = kept, None, None
        chunk.n_unfinished = len(self._unfinished(kept))
        self._give_up(chunk, gone)

    def _give_up(self, chunk: ChunkInFlight, indices: Indices) -> None:
        others = [other for other in chunk.family or () if other is not chunk]
        for index in indices:
            if not self._was_finished(index) and not any(index in other for other in others):
                self._given_up.add(index)

    def take_given_up(self, indices: Iterable[int]) -> list[int]:
        """Take out those of ``indices`` that were given up, in order, each once: they can be dealt again."""
        found: list[int] = []
        for index in indices:
            if index in self._given_up:
                self._given_up.discard(index)
                found.append(index)
        return found

    def forget(self, indices: Collection[int]) -> int:
        """Mark ``indices`` as finished otherwise; returns how many were given up or in flight, unfinished."""
        given_up = self._given_up.intersection(indices)
        self._given_up -= given_up
        if not self._chunks:
            return len(given_up)
        rest = [index for index in indices if index not in self._finished]
        return len(given_up) + sum(1 for index in rest if self._mark_finished(index, self._chunks.values()))

    def strike(self, index: int) -> None:
        """Never copy a chunk that holds this item, now or later."""
        self._struck.add(index)
        for chunk in self._chunks.values():
            chunk.is_struck = chunk.is_struck or index in chunk

    def _unfinished(self, indices: Indices) -> Indices:
        if not self._finished:
            return indices
        return tuple(index for index in indices if index not in self._finished)

    def _mark_finished(self, index: int, chunks: Iterable[ChunkInFlight]) -> bool:
        """Mark ``index`` finished in ``chunks``; returns whether any of them holds it."""
        n_chunks = 0
        for chunk in chunks:
            if index in chunk:
                chunk.n_unfinished -= 1
                n_chunks += 1
        if n_chunks:
            self._finished[index] = n_chunks
        return n_chunks > 0

    def _was_finished(self, index: int) -> bool:
        """Whether an item of an ended chunk was finished before; counts down the chunks that hold it."""
        n_chunks = self._finished.get(index)
        if n_chunks is None:
            return False
        if n_chunks == 1:
            del self._finished[index]
        else:
            self._finished[index] = n_chunks - 1
        return True


def _is_consecutive(indices: Sequence[int]) -> bool:
    n = len(indices)
    return indices[-1] - indices[0] == n - 1 and all(b - a == 1 for a, b in pairwise(indices))
