"""All items that wait to be dealt, in one backlog or in a queue per device, and what their size hints say."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from .backlog import Backlog, Item
from .flight import Indices
from .queues import Queues

__all__ = ["Stock"]


class Stock:
    """Items to be dealt. ``n`` counts them; ``item_work`` is the work of an average item, 1 without hints."""

    def __init__(self) -> None:
        self._backlog = Backlog()
        self.queues: Queues | None = None
        self._sizes: dict[int, float] = {}  # hints of items that are dealt and not finished
        self._n_hints, self._hinted_work = 0, 0.0

    @property
    def n(self) -> int:
        return self._backlog.n + (self.queues.n if self.queues is not None else 0)

    @property
    def has_hints(self) -> bool:
        """True once there was a size hint above zero: then work is no longer counted in items."""
        return self._hinted_work > 0

    @property
    def item_work(self) -> float:
        return self._hinted_work / self._n_hints if self._hinted_work else 1.0

    def __getitem__(self, device: str) -> Backlog:
        """What ``device`` takes from."""
        return self._backlog if self.queues is None else self.queues[device]

    def n_ready(self, device: str, may_refuse: bool) -> int:
        """Items that ``device`` could take; ``may_refuse``: not those that are to avoid it."""
        store = self[device]
        return store.n_for(device) if may_refuse else store.n

    def work_left(self, device: str, n_left: int) -> float:
        """Work of ``n_left`` items, of which those without a hint (or still to come) are average."""
        store = self[device]
        return store.sized_work + (n_left - store.n_sized) * self.item_work

    def add(self, index: int, cost: float) -> None:
        self._n_hints += 1
        self._hinted_work += cost
        self._backlog.add(index, cost)

    def add_range(self, start: int, n: int) -> None:
        self._backlog.add_range(start, n)

    def take(
        self, device: str, n: int, work: float, at_most: float, may_refuse: bool
    ) -> tuple[Indices, float]:
        """Up to ``n`` items for ``device`` and their work; ``work``, ``at_most``: as in ``policy.Take``."""
        store = self[device]
        items = store.take_returned(n, device, may_refuse) if store.has_returned else []
        if not items and store.n_sized:
            items = store.take_longest(n, work, at_most)
        if not items:
            span = store.take_first(n)
            return span, len(span) * self.item_work
        self._sizes.update((item.index, item.cost) for item in items if item.cost is not None)
        total = sum(self.item_work if item.cost is None else item.cost for item in items)
        return tuple(item.index for item in items), total

    def put_back(self, indices: Sequence[int], alone: bool, avoid: str | None) -> int:
        """Items that were taken before; how many they are."""
        for index in reversed(indices):
            self._backlog.put_back(Item(index, self._sizes.pop(index, None), alone, avoid))
        return len(indices)

    def remove(self, indices: Collection[int]) -> int:
        """Take these out for good; how many of them waited here."""
        self.finish(indices)
        queues = () if self.queues is None else self.queues.values()
        return self._backlog.remove(indices) + sum(queue.remove(indices) for queue in queues)

    def finish(self, indices: Iterable[int]) -> None:
        """These are done and never come back."""
        if self._sizes:
            for index in indices:
                self._sizes.pop(index, None)

    def assign(
        self, partition: str | tuple[int, ...], priors: Mapping[str, float], n_left: int | None
    ) -> None:
        """Put every item into a device's queue; ``priors`` and ``n_left`` count the first time only."""
        if self.queues is None:
            self.queues = Queues(partition, priors, n_left)
        if self._backlog.n:
            self.queues.assign(self._backlog)

    def leave(self, device: str) -> None:
        """The device's queue, if it has one, goes back to the backlog."""
        if self.queues is not None and device in self.queues:
            self._take_back(self.queues.leave(device))

    def unassign(self) -> None:
        """No queues any more: all in one backlog."""
        if self.queues is not None:
            for queue in self.queues.values():
                self._take_back(queue)
            self.queues = None

    def _take_back(self, queue: Backlog) -> None:
        for entry in queue.drain():
            if isinstance(entry, range):
                self._backlog.add_range(entry.start, len(entry))
            else:
                self._backlog.put_back(entry)
