"""``DeviceQueues``: items assigned to devices in advance, for the policy ``Static``."""

from collections.abc import Iterable, Mapping

from evenload.balance.dealing.backlog import Backlog
from evenload.balance.partition import proportional


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
