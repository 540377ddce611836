"""``MemoryNeeds``: items that were too large for a device, and the devices that have more memory."""

from collections.abc import Collection, Iterable, Mapping

__all__ = ["MemoryNeeds"]


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
