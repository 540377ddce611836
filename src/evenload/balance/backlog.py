"""The items that nobody has been given yet."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Backlog", "Item"]


@dataclass(frozen=True, slots=True)
class Item:
    """An item on its own: ``alone`` travels in a chunk of one, ``avoid`` names a device to keep it from."""

    index: int
    cost: float | None = None
    alone: bool = False
    avoid: str | None = None


class Backlog:
    """Items still to be dealt: returned ones first, then sized ones longest first, then the rest in order."""

    def __init__(self) -> None:
        self.n = 0
        self._returned: deque[Item] = deque()
        self._ranges: deque[range] = deque()
        self._sized: list[tuple[float, int]] = []  # ascending by (cost, -index) once sorted
        self._is_sorted = True
        self._sized_work = 0.0

    def __len__(self) -> int:
        return self.n

    def __contains__(self, index: int) -> bool:
        return (
            any(index in span for span in self._ranges)
            or any(item.index == index for item in self._returned)
            or any(-minus == index for _, minus in self._sized)
        )

    @property
    def has_returned(self) -> bool:
        return bool(self._returned)

    @property
    def n_sized(self) -> int:
        """Items with a size hint that were not returned."""
        return len(self._sized)

    @property
    def sized_work(self) -> float:
        """Sum of the size hints of the items that have one and were not returned."""
        return self._sized_work

    def add(self, index: int, cost: float | None = None) -> None:
        if cost is not None:
            self._sized.append((cost, -index))
            self._is_sorted = False
            self._sized_work += cost
            self.n += 1
        else:
            self.add_range(index, 1)

    def add_range(self, start: int, n: int) -> None:
        if n <= 0:
            return
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.stop == start:
            self._ranges[-1] = range(last.start, start + n)
        else:
            self._ranges.append(range(start, start + n))
        self.n += n

    def put_back(self, item: Item) -> None:
        self._returned.append(item)
        self.n += 1

    def take_returned(self, n: int, device: str, may_refuse: bool = True) -> list[Item]:
        """Up to ``n`` returned items, one if it must travel alone. ``may_refuse``: honour ``avoid``."""
        taken: list[Item] = []
        for _ in range(len(self._returned)):
            item = self._returned.popleft()
            if may_refuse and item.avoid == device:
                self._returned.append(item)
            elif item.alone and taken:
                self._returned.appendleft(item)
                break
            else:
                taken.append(item)
                if item.alone or len(taken) >= n:
                    break
        self.n -= len(taken)
        return taken

    def n_for(self, device: str) -> int:
        """Items that need not be kept from ``device``."""
        return self.n - sum(1 for item in self._returned if item.avoid == device)

    def take_first(self, n: int) -> range:
        """Up to ``n`` consecutive unsized items, the first in input order."""
        if not self._ranges:
            return range(0)
        span = self._ranges[0]
        taken = span[:n]
        if len(taken) == len(span):
            self._ranges.popleft()
        else:
            self._ranges[0] = span[n:]
        self.n -= len(taken)
        return taken

    def take_longest(self, n: int, work: float, at_most: float = float("inf")) -> list[tuple[int, float]]:
        """``(index, cost)`` of the longest sized items up to ``at_most``: ``n`` or ``work`` in all."""
        self._sort()
        stop = len(self._sized) if at_most == float("inf") else bisect_right(self._sized, (at_most, 0))
        start, total = stop, 0.0
        while start > 0 and stop - start < n and (start == stop or total + self._sized[start - 1][0] <= work):
            start -= 1
            total += self._sized[start][0]
        taken = [(-minus, cost) for cost, minus in reversed(self._sized[start:stop])]
        del self._sized[start:stop]
        self._sized_work = self._sized_work - total if self._sized else 0.0
        self.n -= len(taken)
        return taken

    def take_last(self, n: int) -> list[Item | range]:
        """Up to ``n`` items from the end: unsized ones first, then the shortest, then returned ones."""
        taken: list[Item | range] = []
        left = min(n, self.n)
        self.n -= left
        while left and self._ranges:
            span = self._ranges.pop()
            keep = max(0, len(span) - left)
            taken.append(span[keep:])
            left -= len(span) - keep
            if keep:
                self._ranges.append(span[:keep])
        self._sort()
        for cost, minus in self._sized[:left]:
            taken.append(Item(-minus, cost))
            self._sized_work -= cost
        left, self._sized = max(0, left - len(self._sized)), self._sized[left:]
        taken.extend(self._returned.pop() for _ in range(left))
        return taken[::-1]

    def longest(self) -> float | None:
        """Size hint of the longest item."""
        self._sort()
        return self._sized[-1][0] if self._sized else None

    def shortest(self) -> float | None:
        self._sort()
        return self._sized[0][0] if self._sized else None

    def remove(self, indices: Iterable[int]) -> list[int]:
        """Take ``indices`` out; returns those that were here."""
        gone = set(indices)
        removed = [item.index for item in self._returned if item.index in gone]
        if removed:
            self._returned = deque(item for item in self._returned if item.index not in gone)
        sized = [(cost, minus) for cost, minus in self._sized if -minus in gone]
        if sized:
            removed.extend(-minus for _, minus in sized)
            self._sized = [(cost, minus) for cost, minus in self._sized if -minus not in gone]
            self._sized_work = sum(cost for cost, _ in self._sized)
        if self._ranges and gone:
            removed.extend(self._cut(sorted(gone)))
        self.n -= len(removed)
        return removed

    def drain(self) -> Iterator[Item | range]:
        """Empty the backlog: returned items, then sized ones as items, then ranges."""
        returned, sized, ranges = self._returned, self._sized, self._ranges
        self.__init__()
        yield from returned
        yield from (Item(-minus, cost) for cost, minus in reversed(sized))
        yield from ranges

    def _sort(self) -> None:
        if not self._is_sorted:
            self._sized.sort()
            self._is_sorted = True

    def _cut(self, gone: list[int]) -> list[int]:
        removed: list[int] = []
        kept: deque[range] = deque()
        for span in self._ranges:
            start = span.start
            for index in gone[bisect_right(gone, span.start - 1) : bisect_right(gone, span.stop - 1)]:
                if index > start:
                    kept.append(range(start, index))
                removed.append(index)
                start = index + 1
            if start < span.stop:
                kept.append(range(start, span.stop))
        self._ranges = kept
        return removed
