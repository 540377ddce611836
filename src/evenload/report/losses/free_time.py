"""The stretches of a time line that nothing has taken yet, in bounded memory."""

import math
from bisect import bisect_left, bisect_right

__all__ = ["FreeTime"]

MOST_GAPS = 512


class FreeTime:
    """The free stretches of the time from 0 on: ``take`` makes a stretch busy and says what of it was free.

    Beyond ``MOST_GAPS`` free stretches, the shorter half of them is given up: they count as taken, and their
    seconds are added to ``short_s``.
    """

    __slots__ = ("_starts", "_stops", "short_s")

    def __init__(self) -> None:
        self._starts, self._stops = [0.0], [math.inf]
        self.short_s = 0.0

    def copy(self) -> "FreeTime":
        """Return the same free stretches, to be taken apart."""
        new = FreeTime()
        new._starts, new._stops, new.short_s = self._starts[:], self._stops[:], self.short_s
        return new

    def take(self, start_s: float, stop_s: float) -> float:
        """Take the time between the two; returns the seconds of it that were free.

        What is before 0 does not count; nothing is taken if a time is not finite.
        """
        start_s = max(0.0, start_s)
        if not (start_s < stop_s < math.inf):
            return 0.0
        first = bisect_right(self._stops, start_s)
        last = bisect_left(self._starts, stop_s)
        if first >= last:
            return 0.0
        taken_s, left = 0.0, []
        for a, b in zip(self._starts[first:last], self._stops[first:last], strict=True):
            taken_s += min(b, stop_s) - max(a, start_s)
            left += [one for one in ((a, start_s), (stop_s, b)) if one[0] < one[1]]
        self._starts[first:last] = [a for a, _ in left]
        self._stops[first:last] = [b for _, b in left]
        if len(self._starts) > MOST_GAPS:
            self._give_up_short_ones()
        return taken_s

    def before(self, t: float) -> float:
        """The start of the free stretch that ends at or holds ``t``; ``t`` itself if there is none."""
        at = bisect_left(self._stops, t)
        return min(t, self._starts[at]) if at < len(self._starts) else t

    def gaps(self, start_s: float, stop_s: float) -> list[tuple[float, float]]:
        """The free stretches between two times, in order, cut to them."""
        first, last = bisect_right(self._stops, start_s), bisect_left(self._starts, stop_s)
        both = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return [(max(a, start_s), min(b, stop_s)) for a, b in both]

    def free_s(self, start_s: float, stop_s: float) -> float:
        """Free seconds between two times."""
        return sum(b - a for a, b in self.gaps(start_s, stop_s))

    def _give_up_short_ones(self) -> None:
        rows = sorted(zip(self._starts, self._stops, strict=True), key=lambda row: row[1] - row[0])
        half = len(rows) // 2
        self.short_s += sum(b - a for a, b in rows[:half])
        kept = sorted(rows[half:])
        self._starts, self._stops = [a for a, _ in kept], [b for _, b in kept]
