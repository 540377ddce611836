"""What earlier attempts at an item say of the next: whether there is one, when, and on which devices."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from heapq import heappop, heappush

BACK_OFF_S, MOST_BACK_OFF_S = 0.1, 30.0  # before a second try; doubles with each
MOST_ACCIDENTS = 4  # machines lost with one item; then it may be what ends machines


class Losses:
    """Counts of the workers that each item may have ended, and of the machines that were lost with it.

    An item is a map's number, or a task of a pipeline. It is given up after ``most_deaths`` workers.
    """

    def __init__(self, most_deaths: int = 2) -> None:
        self._most_deaths = most_deaths
        self._n_deaths: Counter[Hashable] = Counter()
        self._n_machines: Counter[Hashable] = Counter()

    def blame(self, item: Hashable) -> bool:
        """Count a worker that ``item`` has ended; returns whether it is given up."""
        self._n_deaths[item] += 1
        return self._n_deaths[item] >= self._most_deaths

    def suspect(self, items: Iterable[Hashable]) -> None:
        """Take note that one of ``items`` has ended a worker, and nobody knows which."""
        self._n_deaths.update(dict.fromkeys(items, 0))

    def is_suspect(self, item: Hashable) -> bool:
        """Whether ``item`` has ended a worker, or may have."""
        return item in self._n_deaths

    def excuse(self, items: Iterable[Hashable]) -> bool:
        """Count the loss of a machine that had ``items``; returns whether none of them is to blame for it."""
        items = tuple(items)
        self._n_machines.update(items)
        return all(self._n_machines[item] <= MOST_ACCIDENTS for item in items)


class MemoryNeeds:
    """The memory of the largest device that had too little, by item. ``memory_bytes``: of each device."""

    def __init__(self, memory_bytes: Mapping[str, int]):
        self._memory_bytes = memory_bytes
        self._too_little: dict[int, int] = {}

    def may_retry(self, item: int, device: str, here: Collection[str]) -> bool:
        """Whether an item too large for ``device`` may run again: once anywhere, then on larger ones."""
        had = self._memory_bytes.get(device, 0)
        most = self._too_little.get(item)
        if most is not None and not self._larger_than(max(most, had), here):
            return False
        self._too_little[item] = max(most or 0, had)
        return True

    def to_avoid(self, items: Iterable[int], device: str, here: Collection[str]) -> set[str]:
        """Devices that should not get ``items``, which were too large for ``device``."""
        larger = self._larger_than(max((self._too_little[item] for item in items), default=0), here)
        return set(here) - larger if larger else {device}

    def _larger_than(self, n_bytes: int, here: Collection[str]) -> set[str]:
        return {device for device in here if self._memory_bytes.get(device, 0) > n_bytes}


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
