"""Which track a worker's spans go on: one lane per worker slot of a device.

A worker that replaces a dead one takes over its lane, so that a device has as many lanes as it had workers at
the same time, and spans on one lane never overlap.
"""

from dataclasses import dataclass, field

from evenload.events import Event, Span, WorkerExited, WorkerStarted

__all__ = ["Lanes"]


@dataclass(slots=True)
class Lanes:
    """``of(device, worker)`` is the slot number of a worker on its device, 0 for the only one."""

    _slots: dict[tuple[str, str], int] = field(default_factory=dict)
    _free: dict[str, list[int]] = field(default_factory=dict)
    _n: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Follow workers that come and go."""
        if isinstance(event, (WorkerStarted, Span)):
            self.of(event.device, event.worker)
        elif isinstance(event, WorkerExited):
            # Its last span may still be reported, so it keeps its lane until then.
            slot = self._slots.get((event.device, event.worker))
            if slot is not None and slot not in self._free.get(event.device, ()):
                self._free.setdefault(event.device, []).append(slot)

    def of(self, device: str, worker: str) -> int:
        slot = self._slots.get((device, worker))
        if slot is None:
            free = self._free.get(device)
            if free:
                free.sort(reverse=True)
                slot = free.pop()
            else:
                slot = self._n.get(device, 0)
                self._n[device] = slot + 1
            self._slots[device, worker] = slot
        return slot

    def key(self, device: str, worker: str) -> str:
        """A name for the lane: the device's own for its first, ``cuda:0/1`` for its second."""
        slot = self.of(device, worker)
        return f"{device}/{slot}" if slot else device

    def n(self, device: str) -> int:
        """Workers that ``device`` had at the same time."""
        return self._n.get(device, 0)
