"""Free ranges of an address space: first fit, merged when given back."""

from bisect import bisect_left


class FreeList:
    """A set of free ranges; ``n_bytes`` is their sum. Ranges that touch are merged."""

    def __init__(self, start: int = 0, n: int = 0):
        self.n_bytes = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        if n:
            self.give(start, n)

    def __iter__(self):
        return zip(self._starts, self._stops, strict=True)

    def take(self, n: int) -> int | None:
        """Take ``n`` bytes from the lowest range that has as many; returns their start, or None."""
        for at, start in enumerate(self._starts):
            left = self._stops[at] - start - n
            if left < 0:
                continue
            if left:
                self._starts[at] = start + n
            else:
                del self._starts[at], self._stops[at]
            self.n_bytes -= n
            return start
        return None

    def give(self, start: int, n: int) -> None:
        """Free ``n`` bytes from ``start``."""
        stop = start + n
        at = bisect_left(self._starts, start)
        joins_left = at > 0 and self._stops[at - 1] == start
        joins_right = at < len(self._starts) and self._starts[at] == stop
        assert at == 0 or self._stops[at - 1] <= start, "given back twice"
        assert at == len(self._starts) or stop <= self._starts[at], "given back twice"
        if joins_left and joins_right:
            self._stops[at - 1] = self._stops[at]
            del self._starts[at], self._stops[at]
        elif joins_left:
            self._stops[at - 1] = stop
        elif joins_right:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._stops.insert(at, stop)
        self.n_bytes += n
