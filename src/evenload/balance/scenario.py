"""Fleets and items of simulations as text: ``5,1x0.5`` and ``lognormal:1.0``.

fleet   ::= group ("," group)*
group   ::= count ["x" speed] ["@" seconds ":" speed]* ["!" seconds]
costs   ::= seconds | "uniform:" low ":" high | "lognormal:" sigma [":" mean] | "exponential:" mean
"""

import math
import random
import re
from itertools import pairwise

from evenload.balance.fleet import ModelDevice
from evenload.errors import ConfigError, quoted

MOST_DEVICES = 1024
MOST_ITEMS = 1_000_000
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_GROUP = re.compile(
    r"(?P<n>\d{1,9})"
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
    grammar, numbers that make no distribution, or more than MOST_ITEMS items.
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
    chance = random.Random(seed)
    if not arguments:
        return numbers * n_items
    if kind == "uniform" and len(numbers) == 2 and numbers[0] <= numbers[1]:
        return [chance.uniform(*numbers) for _ in range(n_items)]
    if kind == "lognormal" and len(numbers) in (1, 2) and numbers[0] <= 10:
        sigma, mean = numbers[0], numbers[1] if len(numbers) == 2 else 1.0
        return [mean * chance.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(n_items)]
    if kind == "exponential" and len(numbers) == 1 and numbers[0] > 0:
        return [chance.expovariate(1 / numbers[0]) for _ in range(n_items)]
    raise ConfigError(f"{quoted(text)} says no cost", hint=_COST_HINT)


def draw_hints(costs: list[float], error: float, seed: int) -> list[float]:
    """Size hints: each cost, wrong by up to ``error`` (0.2 is ±20 %) either way.

    Raises ConfigError if ``error`` is not in 0..1.
    """
    if not 0 <= error <= 1:
        raise ConfigError(f"an error of {error} is not a share", hint="use 0 (exact) to 1")
    chance = random.Random(seed + 1)
    return [cost * chance.uniform(1 - error, 1 + error) for cost in costs]
