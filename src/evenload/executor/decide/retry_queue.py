"""``RetryQueue``: units whose task raised, and that are tried again after a pause."""

from collections.abc import Iterator
from heapq import heappop, heappush

__all__ = ["RetryQueue"]

BACK_OFF_S, MOST_BACK_OFF_S = 0.1, 30.0  # before a second try; doubles with each


class RetryQueue:
    """Units that wait for another try, by when it is due, each with the device to avoid."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []

    @property
    def next_s(self) -> float | None:
        """When the first is due."""
        return self._heap[0][0] if self._heap else None

    def put(self, unit: int, device: str, n_raised: int, now: float) -> None:
        """Add a unit that has raised ``n_raised`` times, the last time on ``device``."""
        pause_s = min(BACK_OFF_S * 2 ** (n_raised - 1), MOST_BACK_OFF_S)
        heappush(self._heap, (now + pause_s, unit, device))

    def due(self, now: float) -> Iterator[tuple[int, str]]:
        """Take out the units that are due, each with the device to avoid."""
        while self._heap and self._heap[0][0] <= now:
            _, unit, device = heappop(self._heap)
            yield unit, device
