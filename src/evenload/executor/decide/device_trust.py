"""``DeviceTrust``: whether what fails again is the item, or the object that a worker has built.

An object may be alive while what it talks to is dead: a model's server, a device's context. Then it fails
all that it is given. So a worker is renewed after an item has failed twice on what it has built and nothing
has succeeded there between, or after two items have failed that succeed elsewhere; and the device is left to
others if it fails two more of these after that.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

MOST_ELSEWHERE = 2  # items that fail on a device and succeed on another
MOST_UNPROVED = 2  # renewals because of items that none of them has succeeded after: it may be the items


@dataclass(slots=True)
class _Record:
    """What a device has failed since it has last succeeded.

    failed       items that raised on what its worker has built
    n_elsewhere  how many of them another device has done since
    is_renewed   its worker is a new one since then
    renewed_for  items that had failed before
    n_unproved   renewals after which no such item has succeeded
    """

    failed: set[int] = field(default_factory=set)
    n_elsewhere: int = 0
    is_renewed: bool = False
    renewed_for: set[int] = field(default_factory=set)
    n_unproved: int = 0

    def succeeded(self, items: Collection[int]) -> None:
        self.failed.clear()
        self.n_elsewhere, self.is_renewed = 0, False
        if not self.renewed_for.isdisjoint(items):
            self.n_unproved = 0

    def renew(self) -> None:
        self.renewed_for = set(self.failed)
        self.failed.clear()
        self.n_elsewhere, self.is_renewed = 0, True


class DeviceTrust:
    """The failures of a run's items, by device, and what is to be done about devices and is not done yet.

    ``judge`` takes an answer in.
    """

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._failed_on: dict[int, set[str]] = {}
        self._to_renew: set[str] = set()
        self._left: dict[str, str] = {}

    @property
    def has_failures(self) -> bool:
        """Whether an item has failed that has not succeeded since."""
        return bool(self._failed_on)

    def failed_on(self, item: int) -> frozenset[str]:
        """The devices on which ``item`` has failed: it should be tried on others first."""
        return frozenset(self._failed_on.get(item, ()))

    def takes_renewal(self, device: str) -> bool:
        """Whether its worker is to be replaced before it gets more; asked once for each time."""
        is_due = device in self._to_renew
        self._to_renew.discard(device)
        return is_due

    def take_left(self) -> dict[str, str]:
        """Devices that get nothing more, each with the reason in words that fit after a colon; each once."""
        left, self._left = self._left, {}
        return left

    def judge(self, device: str, items: Sequence[int], bad: Collection[int], here: Collection[str]) -> None:
        """Take in that ``device`` has run ``items``, those at positions ``bad`` in vain.

        ``here``: the devices that take part.
        """
        if not bad and not self._failed_on:
            return
        good = [item for at, item in enumerate(items) if at not in bad]
        last_good = max((at for at in range(len(items)) if at not in bad), default=-1)
        for item in good if self._failed_on else ():
            self._succeeded(item, device, here)
        record = self._records.setdefault(device, _Record())
        if good:
            record.succeeded(good)
        is_repeated = False
        for at in sorted(bad):
            self._failed_on.setdefault(items[at], set()).add(device)
            if at > last_good:
                is_repeated |= items[at] in record.failed
                record.failed.add(items[at])
        if is_repeated and not record.is_renewed and record.n_unproved < MOST_UNPROVED:
            record.n_unproved += 1
            record.renew()
            self._to_renew.add(device)

    def _succeeded(self, item: int, device: str, here: Collection[str]) -> None:
        """An item was done on ``device``, maybe after others have failed it."""
        for other in self._failed_on.pop(item, set()) - {device}:
            record = self._records[other]
            record.n_elsewhere += item in record.failed
            if record.n_elsewhere < MOST_ELSEWHERE or other not in here:
                continue
            if record.is_renewed:
                record.n_elsewhere = 0
                self._left[other] = "it fails what other devices do, with a new worker, too"
            else:
                record.renew()
                self._to_renew.add(other)
