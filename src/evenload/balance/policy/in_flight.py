"""Chunks that devices run now, copies of them included, and what becomes of their items."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Flight", "Flights", "Indices"]

Indices = range | tuple[int, ...]


@dataclass(slots=True, eq=False)
class Flight:
    """A chunk that a device was given and has not answered for.

    work      in average items
    began_s   when the device could begin it
    n_open    how many of its items nobody has finished yet
    root      the flight this is a copy of; None if it is none, or the other has ended
    copies    flights in the air that run some of its items again
    family    this flight, its root, and all copies of it that are in the air; None while there are none
    uncopied  its items that no copy of this round has; None before a round begins
    n_rounds  how often all of it was dealt again
    """

    chunk: int
    device: str
    indices: Indices
    work: float
    began_s: float
    n_open: int
    root: "Flight | None" = None
    copies: "list[Flight]" = field(default_factory=list)
    family: "list[Flight] | None" = None
    uncopied: Indices | None = None
    n_rounds: int = 0
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
        return self.root is not None

    @property
    def n_uncopied(self) -> int:
        return len(self.indices) if self.uncopied is None else len(self.uncopied)


class Flights:
    """All flights in the air. An item may be in several; the first to land with it finishes it.

    Costs per item only where an item has been in two flights; else per chunk.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Flight] = {}
        self._settled: dict[int, int] = {}  # finished or forgotten, but still in so many flights
        self._adrift: set[int] = set()  # flown without a result, not dealt again or forgotten yet
        self._struck: set[int] = set()
        self._n_launched = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._chunks.values())

    def launch(
        self, device: str, indices: Indices, work: float, began_s: float, root: Flight | None = None
    ) -> Flight:
        if isinstance(indices, tuple) and _is_run(indices):
            indices = range(indices[0], indices[-1] + 1)
        flight = Flight(self._n_launched, device, indices, work, began_s, len(indices), root)
        self._n_launched += 1
        if root is not None:
            root.copies.append(flight)
            root.family = flight.family = root.family or [root]
            root.family.append(flight)
        flight.is_struck = bool(self._struck) and any(index in flight for index in self._struck)
        self._chunks[flight.chunk] = flight
        return flight

    def copy(self, root: Flight, n: int, device: str, now: float) -> Flight:
        """Launch ``n`` more of the root's unfinished items, from its end; over and over, round by round."""
        todo = self._unfinished(root.indices if root.uncopied is None else root.uncopied)
        if not todo:  # what this round had left was finished meanwhile: begin the next
            root.n_rounds += 1
            todo = self._unfinished(root.indices)
        cut = max(0, len(todo) - n)
        indices, root.uncopied = todo[cut:], todo[:cut]
        if not root.uncopied:
            root.uncopied = None
            root.n_rounds += 1
        return self.launch(device, indices, root.work * len(indices) / len(root), now, root)

    def land(self, chunk: int) -> Flight | None:
        """Take a flight out of the air; None if it is not there (its worker was given up)."""
        flight = self._chunks.pop(chunk, None)
        if flight is None:
            return None
        if flight.family is not None:
            flight.family.remove(flight)
        if flight.root is not None:
            flight.root.copies.remove(flight)
        for copy in flight.copies:
            copy.root, copy.n_rounds = None, max(copy.n_rounds, 1)
        return flight

    def settle(self, flight: Flight) -> Indices:
        """The items of a landed flight have results: those that nobody had finished before."""
        if flight.n_open == len(flight) and not flight.family:
            return flight.indices
        first = tuple(index for index in flight.indices if not self._was_settled(index))
        for index in first:
            self._close(index, flight.family or ())
        return first

    def release(self, flight: Flight) -> None:
        """The items of a landed flight have no results: set those adrift that no other flight has."""
        for index in flight.indices:
            if not self._was_settled(index) and not any(index in other for other in flight.family or ()):
                self._adrift.add(index)

    def recover(self, indices: Iterable[int]) -> list[int]:
        """Those of ``indices`` that were adrift, in order, each once: they can be dealt again."""
        found: list[int] = []
        for index in indices:
            if index in self._adrift:
                self._adrift.discard(index)
                found.append(index)
        return found

    def forget(self, indices: Collection[int]) -> int:
        """These are finished otherwise; how many of them were adrift or in the air, and not finished."""
        adrift = self._adrift.intersection(indices)
        self._adrift -= adrift
        if not self._chunks:
            return len(adrift)
        flying = [index for index in indices if index not in self._settled]
        return len(adrift) + sum(1 for index in flying if self._close(index, self._chunks.values()))

    def strike(self, index: int) -> None:
        self._struck.add(index)
        for flight in self._chunks.values():
            flight.is_struck = flight.is_struck or index in flight

    def _unfinished(self, indices: Indices) -> Indices:
        if not self._settled:
            return indices
        return tuple(index for index in indices if index not in self._settled)

    def _close(self, index: int, flights: Iterable[Flight]) -> bool:
        """Mark ``index`` finished in ``flights``; was it in any of them?"""
        n_flights = 0
        for flight in flights:
            if index in flight:
                flight.n_open -= 1
                n_flights += 1
        if n_flights:
            self._settled[index] = n_flights
        return n_flights > 0

    def _was_settled(self, index: int) -> bool:
        """Was it finished before? Counts this landing."""
        n_flights = self._settled.get(index)
        if n_flights is None:
            return False
        if n_flights == 1:
            del self._settled[index]
        else:
            self._settled[index] = n_flights - 1
        return True


def _is_run(indices: Sequence[int]) -> bool:
    n = len(indices)
    return indices[-1] - indices[0] == n - 1 and all(b - a == 1 for a, b in pairwise(indices))
