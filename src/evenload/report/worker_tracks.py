"""The track of a timeline that a worker's spans are drawn on.

A worker that replaces a dead one takes over its track, so that a device has as many tracks as it had workers
at the same time, and spans on one track never overlap.
"""

from dataclasses import dataclass, field

from evenload.events import Event, Span, WorkerExited, WorkerStarted


@dataclass(slots=True)
class WorkerTracks:
    """Numbers for the tracks of each device: ``of(device, worker)`` is a worker's, 0 for the only one."""

    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _free: dict[str, list[int]] = field(default_factory=dict)
    _n: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Take note of workers that come and go."""
        if isinstance(event, (WorkerStarted, Span)):
            self.of(event.device, event.worker)
        elif isinstance(event, WorkerExited):
            # Its last span may still be reported, so it keeps its track until then.
            number = self._numbers.get((event.device, event.worker))
            if number is not None and number not in self._free.get(event.device, ()):
                self._free.setdefault(event.device, []).append(number)

    def of(self, device: str, worker: str) -> int:
        number = self._numbers.get((device, worker))
        if number is None:
            free = self._free.get(device)
            if free:
                free.sort(reverse=True)
                number = free.pop()
            else:
                number = self._n.get(device, 0)
                self._n[device] = number + 1
            self._numbers[device, worker] = number
        return number

    def key(self, device: str, worker: str) -> str:
        """A name for the track: the device's own for its first, ``cuda:0/1`` for its second."""
        number = self.of(device, worker)
        return f"{device}/{number}" if number else device

    def n(self, device: str) -> int:
        """Workers that ``device`` had at the same time."""
        return self._n.get(device, 0)
