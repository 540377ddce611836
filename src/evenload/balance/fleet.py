"""``ModelDevice``: a device of the simulator; and fleets and items of simulations as text.

fleet   ::= group ("," group)*                                    such as 5,1x0.5
group   ::= count ["x" speed] ["@" seconds ":" speed]* ["!" seconds]
costs   ::= seconds | "uniform:" low ":" high | "lognormal:" sigma [":" mean] | "exponential:" mean
"""

import math
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from evenload.errors import ConfigError, quoted


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


MOST_DEVICES = 1024
MOST_ITEMS = 1_000_000
MOST_COST_S = 1e15  # thirty million years: sums and products of so many stay finite
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_GROUP = re.compile(
    r"(?P<n>\d{1,400})"
    rf"(?:x(?P<speed>{_NUMBER}))?(?P<changes>(?:@{_NUMBER}:{_NUMBER})*)(?:!(?P<dies>{_NUMBER}))?",
    re.IGNORECASE,
)
_CHANGE = re.compile(rf"@({_NUMBER}):({_NUMBER})", re.IGNORECASE)
_FLEET_HINT = (
    "write 5,1x0.5 (five devices and one at half speed), 1x8@2:4 (slows to 4 at 2 s) or 1!3 (dies at 3 s)"
)
_COST_HINT = (
    "write seconds (2.5), uniform:1:3, lognormal:1.0 (sigma), lognormal:1.0:5 (sigma, mean) or exponential:2"
)


def parse_fleet(text: str, *, launch_s: float = 0.0) -> list[ModelDevice]:
    """The devices that ``text`` describes, named d0, d1, ...; speed 1 unless said otherwise.

    launch_s  seconds that every chunk costs on every device
    Raises ConfigError on text that does not follow the grammar, no device, or more than MOST_DEVICES.
    """
    devices: list[ModelDevice] = []
    for part in (piece.strip() for piece in text.split(",")):
        match = _GROUP.fullmatch(part)
        if match is None:
            raise ConfigError(f"{quoted(part)} is not a group of devices", hint=_FLEET_HINT)
        n_devices = int(match["n"])
        if len(devices) + n_devices > MOST_DEVICES:
            raise ConfigError(f"{quoted(text)} is more than {MOST_DEVICES} devices")
        profile = tuple((float(at), float(speed)) for at, speed in _CHANGE.findall(match["changes"]))
        if any(later <= sooner for (sooner, _), (later, _) in pairwise(profile)):
            raise ConfigError(f"{quoted(part)}: changes of speed are not in order of time", hint=_FLEET_HINT)
        speed = float(match["speed"] or 1)
        dies_s = float(match["dies"]) if match["dies"] else None
        devices += [
            ModelDevice(f"d{len(devices) + at}", speed, profile, launch_s, dies_s) for at in range(n_devices)
        ]
    if not devices:
        raise ConfigError(f"{quoted(text)} is no device", hint=_FLEET_HINT)
    return devices


def draw_costs(text: str, n_items: int, seed: int) -> list[float]:
    """``n_items`` costs in seconds on a device of speed 1, as ``text`` says; equal seeds give equal costs.

    The mean of a lognormal is 1 second unless given. Raises ConfigError on text that does not follow the
    grammar, numbers that make no distribution, costs above MOST_COST_S, or more than MOST_ITEMS items.
    """
    if not 0 <= n_items <= MOST_ITEMS:
        raise ConfigError(f"{n_items} items cannot be simulated", hint=f"use 0 to {MOST_ITEMS}")
    kind, *arguments = text.strip().lower().split(":")
    try:
        numbers = [float(number) for number in arguments or [kind]]
    except ValueError:
        raise ConfigError(f"{quoted(text)} says no cost", hint=_COST_HINT) from None
    if not all(0 <= number < math.inf for number in numbers):
        raise ConfigError(f"{quoted(text)}: a number is below zero or not finite", hint=_COST_HINT)
    if (drawn := _drawn(kind, numbers, bool(arguments), n_items, random.Random(seed))) is None:
        raise ConfigError(f"{quoted(text)} says no cost", hint=_COST_HINT)
    if max(drawn, default=0.0) > MOST_COST_S:
        raise ConfigError(f"{quoted(text)}: an item takes over {MOST_COST_S:g} s", hint=_COST_HINT)
    return drawn


def _drawn(
    kind: str, numbers: list[float], is_spread: bool, n_items: int, chance: random.Random
) -> list[float] | None:
    """Draw the costs; None where the numbers make no distribution of this kind."""
    if not is_spread:
        return numbers * n_items
    if kind == "uniform" and len(numbers) == 2 and numbers[0] <= numbers[1]:
        return [chance.uniform(*numbers) for _ in range(n_items)]
    if kind == "lognormal" and len(numbers) in (1, 2) and numbers[0] <= 10:
        sigma, mean = numbers[0], numbers[1] if len(numbers) == 2 else 1.0
        return [mean * chance.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(n_items)]
    if kind == "exponential" and len(numbers) == 1 and numbers[0] > 0:
        return [chance.expovariate(1 / numbers[0]) for _ in range(n_items)]
    return None


def draw_hints(costs: list[float], error: float, seed: int) -> list[float]:
    """Size hints: each cost, wrong by up to ``error`` (0.2 is ±20 %) either way.

    Raises ConfigError if ``error`` is not in 0..1.
    """
    if not 0 <= error <= 1:
        raise ConfigError(f"an error of {error} is not a share", hint="use 0 (exact) to 1")
    chance = random.Random(seed + 1)
    return [cost * chance.uniform(1 - error, 1 + error) for cost in costs]
