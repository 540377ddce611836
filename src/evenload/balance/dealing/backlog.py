"""``Backlog``: items that wait to be dealt."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from math import inf


@dataclass(frozen=True, slots=True)
class QueuedItem:
    """An item that waits to be dealt.

    cost   its size hint, None without one
    alone  whether it needs a chunk of its own
    avoid  devices to keep it from
    """

    index: int
    cost: float | None = None
    alone: bool = False
    avoid: frozenset[str] = frozenset()

    def is_kept_from(self, device: str, here: Collection[str]) -> bool:
        """Whether ``device`` must not get it: not if all devices ``here`` are such."""
        return device in self.avoid and not self.avoid.issuperset(here)


class Backlog:
    """Items that wait, in this order: returned ones, then sized ones (longest first), then the rest as added.

    Ranges of items without size hints take no time or memory per item.
    """

    def __init__(self) -> None:
        self.n = 0
        self._returned: deque[QueuedItem] = deque()
        self._n_avoiding = 0
        self._ranges: deque[range] = deque()
        self._sizes: dict[int, float] = {}
        self._by_size: list[
            tuple[float, int]
        ] = []  # (size, -index), ascending once sorted; may hold gone ones
        self._is_sorted = True
        self._sized_work = 0.0

    # --- what is there ----------------------------------------------------------------------------

    @property
    def has_returned(self) -> bool:
        return bool(self._returned)

    @property
    def n_sized(self) -> int:
        """Items with a size hint, returned ones aside."""
        return len(self._sizes)

    @property
    def sized_work(self) -> float:
        """The sum of their hints."""
        return self._sized_work if self._sizes else 0.0

    @property
    def shortest(self) -> float | None:
        """The least of their hints."""
        self._sort()
        return self._by_size[0][0] if self._by_size else None

    @property
    def longest(self) -> float | None:
        """The largest of their hints."""
        self._sort()
        return self._by_size[-1][0] if self._by_size else None

    def n_for(self, device: str, here: Callable[[], Collection[str]]) -> int:
        """Items that ``device`` may get, given the devices that are ``here``."""
        if not self._n_avoiding:
            return self.n
        there = here()
        return self.n - sum(item.is_kept_from(device, there) for item in self._returned)

    @property
    def n_unsized(self) -> int:
        """Items without a size hint, returned ones aside."""
        return sum(map(len, self._ranges))

    def sized(self) -> list[int]:
        """The items with a size hint, returned ones aside."""
        return list(self._sizes)

    def first_unsized(self, n: int) -> tuple[int, ...]:
        """The first ``n`` items without a size hint, which stay here."""
        return tuple(islice(chain.from_iterable(self._ranges), n))

    # --- in ---------------------------------------------------------------------------------------

    def add(self, index: int, cost: float | None = None) -> None:
        """Add an item, with its size hint if it has one."""
        if cost is None:
            self.add_range(index, 1)
            return
        self._sizes[index] = cost
        self._by_size.append((cost, -index))
        self._is_sorted = False
        self._sized_work += cost
        self.n += 1

    def add_range(self, start: int, n: int) -> None:
        """Add items ``start`` to ``start + n - 1``."""
        if n <= 0:
            return
        if self._ranges and self._ranges[-1].stop == start:
            self._ranges[-1] = range(self._ranges[-1].start, start + n)
        else:
            self._ranges.append(range(start, start + n))
        self.n += n

    def put_back(self, item: QueuedItem) -> None:
        """Add an item that was dealt before, ahead of those of its kind."""
        if item.alone or item.avoid:
            self._returned.appendleft(item)
            self._n_avoiding += bool(item.avoid)
        elif item.cost is not None:
            self.add(item.index, item.cost)
            return
        elif self._ranges and self._ranges[0].start == item.index + 1:
            self._ranges[0] = range(item.index, self._ranges[0].stop)
        else:
            self._ranges.appendleft(range(item.index, item.index + 1))
        self.n += 1

    def resize(self, sizes: Mapping[int, float]) -> None:
        """Give those items that are here, returned ones aside, other size hints, or their first."""
        spans = tuple(self._ranges)
        unsized = sorted(i for i in sizes if i not in self._sizes and any(i in span for span in spans))
        self._remove_from_ranges(unsized)
        self.n += len(unsized)
        self._sizes.update(
            (index, sizes[index]) for index in chain(tuple(self._sizes), unsized) if index in sizes
        )
        self._by_size = [(size, -index) for index, size in self._sizes.items()]
        self._is_sorted = False
        self._sized_work = sum(self._sizes.values())

    def unsize(self) -> None:
        """Forget all size hints: items are in input order again."""
        indices = sorted(chain(self._sizes, *self._ranges))
        self._sizes, self._by_size, self._sized_work = {}, [], 0.0
        self.n -= len(indices)
        self._ranges = deque()
        for index in indices:
            self.add_range(index, 1)

    # --- out --------------------------------------------------------------------------------------

    def take_returned(self, n: int, device: str, here: Collection[str]) -> list[QueuedItem]:
        """Take up to ``n`` returned items that ``device`` may get; one that must be alone comes alone."""
        taken: list[QueuedItem] = []
        for _ in range(len(self._returned)):
            item = self._returned.popleft()
            if item.is_kept_from(device, here):
                self._returned.append(item)
            elif item.alone and taken:
                self._returned.appendleft(item)
                break
            else:
                taken.append(item)
                if item.alone or len(taken) >= n:
                    break
        self._n_avoiding -= sum(bool(item.avoid) for item in taken)
        self.n -= len(taken)
        return taken

    def take_first(self, n: int) -> range | tuple[int, ...]:
        """Take up to ``n`` items without hints, the first ones; a ``range`` if they are consecutive."""
        if not self._ranges:
            return range(0)
        spans: list[range] = []
        left = n
        while left > 0 and self._ranges:
            span = self._ranges.popleft()
            if len(span) > left:
                self._ranges.appendleft(span[left:])
            spans.append(span[:left])
            left -= len(spans[-1])
        self.n -= n - left
        return spans[0] if len(spans) == 1 else tuple(chain.from_iterable(spans))

    def take_longest(self, n: int, work: float = inf, at_most: float = inf) -> list[QueuedItem]:
        """Take the longest items with hints up to ``at_most``: at most ``n``, and ``work`` in all.

        Takes one at least, if there is any: the shortest if all are above ``at_most``.
        """
        self._sort()
        order, sizes = self._by_size, self._sizes
        stop = start = len(order) if at_most == inf else max(1, bisect_right(order, (at_most, 0)))
        taken: list[QueuedItem] = []
        total = 0.0
        while start > 0 and len(taken) < n:
            size, minus = order[start - 1]
            if taken and total + size > work:
                break
            start -= 1
            if sizes.get(-minus) == size:
                total += sizes.pop(-minus)
                taken.append(QueuedItem(-minus, size))
        if not taken and sizes:  # only gone ones below at_most
            return self.take_longest(
                n, work, next(size for size, minus in order[stop:] if sizes.get(-minus) == size)
            )
        del order[start:stop]
        self._sized_work -= total
        self.n -= len(taken)
        return taken

    def take_last(self, n: int) -> list[QueuedItem | range]:
        """Take up to ``n`` items from the end: unsized ones, then the shortest, then returned ones."""
        taken: list[QueuedItem | range] = []
        left = n
        while left > 0 and self._ranges:
            span = self._ranges.pop()
            keep = max(0, len(span) - left)
            taken.append(span[keep:])
            left -= len(span) - keep
            if keep:
                self._ranges.append(span[:keep])
        self.n -= n - left
        while left > 0 and self._sizes:
            taken.extend(self.take_longest(1, at_most=0.0))
            left -= 1
        while left > 0 and self._returned:
            item = self._returned.pop()
            self._n_avoiding -= bool(item.avoid)
            taken.append(item)
            self.n -= 1
            left -= 1
        return taken[::-1]

    def remove(self, indices: Collection[int]) -> int:
        """Take out those of ``indices`` that are here; returns how many."""
        gone = indices if isinstance(indices, range) else set(indices)
        n_before = self.n
        if any(item.index in gone for item in self._returned):
            kept = [item for item in self._returned if item.index not in gone]
            self.n -= len(self._returned) - len(kept)
            self._returned = deque(kept)
            self._n_avoiding = sum(bool(item.avoid) for item in kept)
        if self._sizes:
            for index in [i for i in gone if i in self._sizes]:
                self._sized_work -= self._sizes.pop(index)
                self.n -= 1
        if self._ranges:
            self._remove_from_ranges(sorted(gone))
        return n_before - self.n

    def drain(self) -> Iterator[QueuedItem | range]:
        """Empty the backlog: returned items, then sized ones as items in input order, then ranges."""
        returned, sizes, ranges = self._returned, self._sizes, self._ranges
        self.__init__()
        yield from returned
        yield from (QueuedItem(index, sizes[index]) for index in sorted(sizes))
        yield from ranges

    # --- inside -----------------------------------------------------------------------------------

    def _sort(self) -> None:
        """Sort by size; drop gone items from both ends."""
        order, sizes = self._by_size, self._sizes
        if not self._is_sorted:
            order.sort()
            self._is_sorted = True
        while order and sizes.get(-order[-1][1]) != order[-1][0]:
            order.pop()
        n_gone = 0
        while n_gone < len(order) and sizes.get(-order[n_gone][1]) != order[n_gone][0]:
            n_gone += 1
        del order[:n_gone]

    def _remove_from_ranges(self, gone: list[int]) -> None:
        kept: deque[range] = deque()
        for span in self._ranges:
            start = span.start
            for index in gone[bisect_left(gone, span.start) : bisect_left(gone, span.stop)]:
                if index > start:
                    kept.append(range(start, index))
                self.n -= 1
                start = index + 1
            if start < span.stop:
                kept.append(range(start, span.stop))
        self._ranges = kept
