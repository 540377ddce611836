"""``RetryQueue``: units whose task raised, and that are tried again after a pause."""

from collections.abc import Iterator
from heapq import heappop, heappush

__all__ = ["RetryQueue"]

BACK_OFF_S, MOST_BACK_OFF_S = 0.1, 30.0  # before a second try; doubles with each


class RetryQueue:
    """Units that wait for another try, by when it is due, each with the devices to avoid.

    ``most_retries``: of an item.
    """

    def __init__(self, most_retries: int) -> None:
        self._most_retries = most_retries
        self._n_raised: dict[int, int] = {}  # by item
        self._heap: list[tuple[float, int, frozenset[str]]] = []

    def may_retry(self, item: int) -> bool:
        """Count a failure of ``item``; returns whether it may be tried again."""
        n = self._n_raised[item] = self._n_raised.get(item, 0) + 1
        return n <= self._most_retries

    @property
    def next_s(self) -> float | None:
        """When the first is due."""
        return self._heap[0][0] if self._heap else None

    def put(self, unit: int, item: int, avoid: frozenset[str], now: float) -> None:
        """Add a unit whose ``item`` has raised, last of all on the devices to ``avoid``."""
        pause_s = min(BACK_OFF_S * 2 ** (self._n_raised[item] - 1), MOST_BACK_OFF_S)
        heappush(self._heap, (now + pause_s, unit, avoid))

    def due(self, now: float) -> Iterator[tuple[int, frozenset[str]]]:
        """Take out the units that are due, each with the devices to avoid."""
        while self._heap and self._heap[0][0] <= now:
            _, unit, avoid = heappop(self._heap)
            yield unit, avoid
