"""What items did not do: seconds in which they told that they wait, and those of which nobody knows."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from evenload.balance.factors import unknown_seconds, waited_seconds
from evenload.events import DeviceSample, Event, RunStarted, Span

MOST = 4096
IDLE = 0.02  # of the time before a sample
WIDEST_GAP = 1 / 3  # of the stretch that is asked for: fewer samples say too little of it


class IdleSamples:
    """The latest samples of one device's load."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._busy: list[float] = []  # times of those that found it at work, or could not say

    def add(self, t: float, utilization: float | None) -> None:
        """Count a sample, in the order of time."""
        self._times.append(t)
        if utilization is None or utilization > IDLE:
            self._busy.append(t)
        if len(self._times) > MOST:
            del self._times[: MOST // 2]
            del self._busy[: bisect_left(self._busy, self._times[0])]

    def are_idle(self, start_s: float, stop_s: float) -> bool:
        """Whether there were samples all through the stretch, and each found that the device did nothing."""
        first, last = bisect_left(self._times, start_s), bisect_right(self._times, stop_s)
        if bisect_left(self._busy, start_s) < bisect_right(self._busy, stop_s):
            return False
        seen = [start_s, *self._times[first:last], stop_s]
        return max(b - a for a, b in pairwise(seen)) <= WIDEST_GAP * (stop_s - start_s)


class InsideItems:
    """A reading of what chunks did inside: ``add`` every event, and ask for a span when it comes."""

    def __init__(self) -> None:
        self._facts: dict[str, Mapping[str, Any]] = {}
        self._samples: dict[str, IdleSamples] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._facts.update(event.devices)
        elif isinstance(event, DeviceSample):
            self._samples.setdefault(event.device, IdleSamples()).add(event.t, event.utilization)

    def seconds(self, span: Span, busy_s: float) -> tuple[float, float]:
        """Seconds of a chunk's ``busy_s`` in which it told that it waits, and those that are not known."""
        waited_s = waited_seconds(span, busy_s)
        is_known = span.cpu_s is None or not all(self._tells(part, span) for part in span.device.split("+"))
        return waited_s, 0.0 if is_known else unknown_seconds(busy_s, waited_s, span.cpu_s)

    def _tells(self, device: str, span: Span) -> bool:
        """Whether what its processor did tells what ``device`` did: it is one, or was seen to do nothing."""
        samples = self._samples.get(device)
        is_seen_idle = samples is not None and samples.are_idle(span.start_s, span.stop_s)
        return self._facts.get(device, {}).get("kind") == "cpu" or is_seen_idle
