"""Whether a device did nothing for a while, as its own samples say."""

from bisect import bisect_left, bisect_right
from itertools import pairwise

__all__ = ["IdleSamples"]

MOST = 4096
IDLE = 0.02  # of the time before a sample
WIDEST_GAP = 1 / 3  # of the stretch that is asked for: fewer samples say too little of it


class IdleSamples:
    """The latest samples of one device's load."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._busy: list[float] = []  # times of those that found it at work, or could not say

    def add(self, t: float, utilization: float | None) -> None:
        """Count a sample, in the order of time."""
        self._times.append(t)
        if utilization is None or utilization > IDLE:
            self._busy.append(t)
        if len(self._times) > MOST:
            del self._times[: MOST // 2]
            del self._busy[: bisect_left(self._busy, self._times[0])]

    def are_idle(self, start_s: float, stop_s: float) -> bool:
        """Whether there were samples all through the stretch, and each found that the device did nothing."""
        first, last = bisect_left(self._times, start_s), bisect_right(self._times, stop_s)
        if bisect_left(self._busy, start_s) < bisect_right(self._busy, stop_s):
            return False
        seen = [start_s, *self._times[first:last], stop_s]
        return max(b - a for a, b in pairwise(seen)) <= WIDEST_GAP * (stop_s - start_s)
