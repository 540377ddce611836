"""A set of indices as ranges, for which items are settled."""


class Spans:
    """A set of non-negative integers that grows mostly in order; ranges that touch are merged."""

    def __init__(self) -> None:
        self.n = 0
        self.low = 0  # everything below is in the set
        self._starts: dict[int, int] = {}  # start -> stop of the ranges above
        self._stops: dict[int, int] = {}

    def __len__(self) -> int:
        return self.n

    def __contains__(self, index: int) -> bool:
        return index < self.low or any(start <= index < stop for start, stop in self._starts.items())

    def add(self, start: int, stop: int) -> None:
        """Add ``start`` .. ``stop - 1``, none of which may be in the set."""
        self.n += stop - start
        if start == self.low:
            self.low = self._starts.pop(stop, stop)
            if self.low != stop:
                del self._stops[self.low]
            return
        first = self._stops.pop(start, start)
        last = self._starts.pop(stop, stop)
        if last != stop:
            del self._stops[last]
        self._starts[first], self._stops[last] = last, first

    def missing(self, start: int, stop: int) -> list[int]:
        """Return those of ``start`` .. ``stop - 1`` that are not in the set."""
        start = max(start, self.low)
        inside = sorted((a, b) for a, b in self._starts.items() if a < stop and b > start)
        left: list[int] = []
        for a, b in inside:
            left.extend(range(start, a))
            start = max(start, b)
        left.extend(range(start, stop))
        return left
