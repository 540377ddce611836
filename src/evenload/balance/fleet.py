"""``ModelDevice``: a device of the simulator, with a speed that may change, launch costs and faults."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from evenload.errors import ConfigError


@dataclass(frozen=True)
class ModelDevice:
    """A modelled device that does ``speed`` units of work per second.

    profile   changes of speed, ``(seconds, new speed)`` in order of time; a speed of 0 is a device that hangs
    launch_s  seconds that every chunk costs, whatever it holds
    dies_s    when its worker dies, with what it runs; None if it lives
    back_s    how long after its death it takes work again; None if never

    Raises ConfigError on a speed, time or cost below zero, or changes out of order.
    """

    name: str
    speed: float = 1.0
    profile: tuple[tuple[float, float], ...] = ()
    launch_s: float = 0.0
    dies_s: float | None = None
    back_s: float | None = None
    _times: list[float] = field(init=False, repr=False, compare=False)
    _speeds: list[float] = field(init=False, repr=False, compare=False)
    _work: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        times = [0.0, *(t for t, _ in self.profile)]
        speeds = [self.speed, *(speed for _, speed in self.profile)]
        if any(not 0 <= value < inf for value in (*speeds, *times, self.launch_s)):
            raise ConfigError(f"device {self.name}: a speed, time or launch cost is below zero or not finite")
        if any(later < sooner for sooner, later in pairwise(times)):
            raise ConfigError(f"device {self.name}: its changes of speed are not in order of time")
        steps = ((b - a) * speed for a, b, speed in zip(times, times[1:], speeds, strict=False))
        object.__setattr__(self, "_times", times)
        object.__setattr__(self, "_speeds", speeds)
        object.__setattr__(self, "_work", list(accumulate(steps, initial=0.0)))

    def work_until(self, t: float) -> float:
        """Work it can do from 0 to ``t`` without a pause; none after its death, unless it comes back."""
        lost = 0.0
        if self.dies_s is not None and t > self.dies_s:
            back = inf if self.back_s is None else self.dies_s + self.back_s
            lost = self._integral(min(t, back)) - self._integral(self.dies_s)
        return self._integral(t) - lost

    def _integral(self, t: float) -> float:
        at = max(0, bisect_right(self._times, t) - 1)
        return self._work[at] + (t - self._times[at]) * self._speeds[at]

    def finish(self, start_s: float, work: float) -> float:
        """When ``work`` begun at ``start_s`` is done; infinite if never. Does not count its death."""
        goal = self._integral(start_s) + work
        at = max(bisect_right(self._work, goal) - 1, bisect_right(self._times, start_s) - 1, 0)
        while at > 0 and self._work[at] >= goal and self._times[at] > start_s:
            at -= 1
        rest = goal - self._work[at]
        if rest <= 0:
            return max(start_s, self._times[at])
        return max(start_s, self._times[at] + rest / self._speeds[at]) if self._speeds[at] else inf


def fluid_bound(devices: Sequence[ModelDevice], work: float) -> float:
    """When devices that never pause and may divide items freely have done ``work``; inf if never.

    A lower bound for any policy. Launch costs are not counted.
    """
    if work <= 0:
        return 0.0
    ends = {t for d in devices for t, _ in d.profile}
    ends |= {d.dies_s for d in devices if d.dies_s is not None}
    ends |= {d.dies_s + d.back_s for d in devices if d.dies_s is not None and d.back_s is not None}
    start = done = 0.0
    for end in [*sorted(ends), inf]:
        probe = end if end < inf else start + 1.0
        reached = sum(d.work_until(probe) for d in devices)
        speed = (reached - done) / (probe - start) if probe > start else 0.0
        if end == inf:
            return start + (work - done) / speed if speed > 0 else inf
        if reached >= work:
            return start + (work - done) / speed
        start, done = end, reached
    return inf
