"""``ItemPool``: all items to be dealt, in one backlog or a queue per device, and the work in them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from evenload.balance.dealing.backlog import Backlog, QueuedItem
from evenload.balance.partition import proportional
from evenload.balance.policy.in_flight import Indices


class DeviceQueues:
    """One ``Backlog`` per device, filled in the proportions of a partition.

    partition  "equal", another name for shares by prior, or counts by device; 0 for one that is not named
    If the total of items is known, devices get contiguous slices of the input, in device order. Otherwise
    each item goes to the device that has the fewest for its weight.
    """

    def __init__(self, partition: str | Mapping[str, int], priors: Mapping[str, float], total: int | None):
        self._partition = partition
        self._weights = {device: self._weight(device, prior) for device, prior in priors.items()}
        if not any(self._weights.values()):  # every device with a share has left
            self._weights = dict.fromkeys(priors, 1.0)
        self._queues = {device: Backlog() for device in priors}
        self._n_given = dict.fromkeys(priors, 0)
        self._plan: list[tuple[str, int]] = []  # (device, items still planned for it), the next one last
        if total is not None:
            counts = proportional(total, list(self._weights.values()))
            self._plan = [(device, count) for device, count in zip(priors, counts, strict=True) if count][
                ::-1
            ]

    def __getitem__(self, device: str) -> Backlog:
        return self._queues[device]

    def __contains__(self, device: str) -> bool:
        return device in self._queues

    @property
    def n(self) -> int:
        return sum(queue.n for queue in self._queues.values())

    def values(self) -> Iterable[Backlog]:
        return self._queues.values()

    def join(self, device: str, prior: float) -> None:
        """Add a device that came late: it has no share of the plan, but can get other items."""
        self._queues.setdefault(device, Backlog())
        self._weights.setdefault(device, self._weight(device, prior))
        self._n_given.setdefault(device, max((n for n in self._n_given.values()), default=0))

    def leave(self, device: str) -> Backlog:
        """Remove a device and return its queue; items still planned for it will go to others."""
        self._plan = [(name, count) for name, count in self._plan if name != device]
        self._weights.pop(device, None)
        self._n_given.pop(device, None)
        return self._queues.pop(device)

    def assign(self, arrivals: Backlog) -> None:
        """Give each item of ``arrivals`` to a device, if there is any; empties ``arrivals``."""
        if not self._queues:
            return
        for entry in arrivals.drain():
            if isinstance(entry, range):
                self._assign_range(entry)
            elif entry.alone or entry.avoid:
                self._queues[self._next_device(entry.avoid)].put_back(entry)
            else:
                self._queues[self._planned(1)[0]].put_back(entry)

    def move(self, source: str, target: str, n: int) -> int:
        """Move up to ``n`` items from the end of one queue to the end of another; returns how many."""
        n_moved = 0
        for entry in self._queues[source].take_last(n):
            if isinstance(entry, range):
                self._queues[target].add_range(entry.start, len(entry))
                n_moved += len(entry)
            else:
                stays = target in entry.avoid
                self._queues[source if stays else target].put_back(entry)
                n_moved += not stays
        return n_moved

    def _weight(self, device: str, prior: float) -> float:
        if isinstance(self._partition, str):
            return 1.0 if self._partition == "equal" else prior
        return float(self._partition.get(device, 0))

    def _assign_range(self, span: range) -> None:
        while span:
            device, n = self._planned(len(span))
            self._queues[device].add_range(span.start, min(n, len(span)))
            span = span[n:]

    def _planned(self, n: int) -> tuple[str, int]:
        """The device that gets the next items, and how many of ``n``."""
        if not self._plan:
            device = self._next_device(frozenset())
            self._n_given[device] += 1
            return device, 1
        device, count = self._plan.pop()
        taken = min(n, count)
        if count > taken:
            self._plan.append((device, count - taken))
        self._n_given[device] += taken
        return device, taken

    def _next_device(self, avoid: frozenset[str]) -> str:
        choices = [device for device in self._queues if device not in avoid] or list(self._queues)
        weights = self._weights
        return min(
            choices, key=lambda d: (self._n_given[d] + 1) / weights[d] if weights[d] > 0 else float("inf")
        )


Here = Callable[[], Collection[str]]  # the devices that may take items now


class ItemPool:
    """Items to be dealt.

    Work is counted in average items. With size hints, an item's work is its hint over the mean of the hints
    known when the first was dealt: so costs measured without hints stay right.
    """

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.queues: DeviceQueues | None = None
        self._sizes: dict[int, float] = {}  # hints of items that are dealt and not finished
        self._n_hints, self._sum_of_hints = 0, 0.0
        self._unit: float | None = None  # the size that counts as one item

    @property
    def n(self) -> int:
        """Items here."""
        return self.backlog.n + (self.queues.n if self.queues is not None else 0)

    @property
    def unit(self) -> float:
        """The size that counts as one item."""
        if self._unit is None and self._sum_of_hints > 0:
            self._unit = self._sum_of_hints / self._n_hints
        return self._unit or 1.0

    @property
    def item_work(self) -> float:
        """Work of an average item: 1 without hints, and near to it with them."""
        return self._sum_of_hints / self._n_hints / self.unit if self._sum_of_hints else 1.0

    def resize(self, sizes: Mapping[int, float]) -> None:
        """Give waiting items sizes in average items."""
        self.backlog.resize(sizes)
        self._unit = 1.0
        self._n_hints, self._sum_of_hints = self.backlog.n_sized, self.backlog.sized_work

    def unsize(self) -> None:
        """Forget the sizes of all items."""
        self.backlog.unsize()
        self._sizes.clear()
        self._unit, self._n_hints, self._sum_of_hints = None, 0, 0.0

    def __getitem__(self, device: str) -> Backlog:
        """The backlog that ``device`` takes from."""
        return self.backlog if self.queues is None else self.queues[device]

    def n_ready(self, device: str, here: Here) -> int:
        """Items that ``device`` could take; those that are to avoid it, only if no other is ``here``."""
        store = self[device]
        return store.n_for(device, here) if self.queues is None else store.n

    def work_left(self, device: str, n_left: int) -> float:
        """Work of ``n_left`` items, counting those without a hint (or still to come) as average."""
        store = self[device]
        return store.sized_work / self.unit + (n_left - store.n_sized) * self.item_work

    def extremes(self, device: str) -> tuple[float, float] | None:
        """Work of the shortest and of the longest item with a hint."""
        shortest, longest = self[device].shortest, self[device].longest
        return None if shortest is None or longest is None else (shortest / self.unit, longest / self.unit)

    def add(self, index: int, size: float) -> None:
        """Add an item with a size hint."""
        size = size if size > 1e-100 else 0.0  # below, means and ratios would leave the range of floats
        self._n_hints += 1
        self._sum_of_hints += size
        self.backlog.add(index, size)

    def add_range(self, start: int, n: int) -> None:
        """Add items ``start`` to ``start + n - 1``, without hints."""
        self.backlog.add_range(start, n)

    def take(self, device: str, n: int, work: float, at_most: float, here: Here) -> tuple[Indices, float]:
        """Take up to ``n`` items for ``device``: their indices and work. Arguments as in ``policy.Take``."""
        store = self[device]
        items: list[QueuedItem] = []
        if store.has_returned:  # in a device's own queue, no item has to wait for another device
            items = store.take_returned(n, device, here() if self.queues is None else ())
        if not items and store.n_sized:
            items = store.take_longest(n, work * self.unit, at_most * self.unit * (1 + 1e-12))
        if not items:
            span = store.take_first(n)
            return span, len(span) * self.item_work
        self._sizes.update((item.index, item.cost) for item in items if item.cost is not None)
        total = sum(self.item_work if item.cost is None else item.cost / self.unit for item in items)
        return tuple(item.index for item in items), total

    def put_back(self, indices: Sequence[int], alone: bool, avoid: frozenset[str]) -> None:
        """Put back items that were taken before."""
        for index in reversed(indices):
            self.backlog.put_back(QueuedItem(index, self._sizes.pop(index, None), alone, avoid))

    def remove(self, indices: Collection[int]) -> int:
        """Take these out for good; returns how many of them were here."""
        self.finish(indices)
        queues = () if self.queues is None else self.queues.values()
        return self.backlog.remove(indices) + sum(queue.remove(indices) for queue in queues)

    def finish(self, indices: Iterable[int]) -> None:
        """Forget the sizes of items that are done and never come back."""
        if self._sizes:
            for index in indices:
                self._sizes.pop(index, None)

    def assign(
        self, partition: str | Mapping[str, int], priors: Mapping[str, float], n_left: int | None
    ) -> None:
        """Put every item into a device's queue; ``priors`` and ``n_left`` are used the first time only."""
        if self.queues is None:
            self.queues = DeviceQueues(partition, priors, n_left)
        if self.backlog.n:
            self.queues.assign(self.backlog)

    def leave(self, device: str) -> None:
        """Move the items of the device's queue, if it has one, to the backlog."""
        if self.queues is not None and device in self.queues:
            self._take_back(self.queues.leave(device))

    def unassign(self) -> None:
        """Move all items to one backlog; there are no queues after that."""
        if self.queues is not None:
            for queue in self.queues.values():
                self._take_back(queue)
            self.queues = None

    def _take_back(self, queue: Backlog) -> None:
        for entry in queue.drain():
            if isinstance(entry, range):
                self.backlog.add_range(entry.start, len(entry))
            else:
                self.backlog.put_back(entry)
