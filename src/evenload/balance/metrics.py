"""How even a load was, how long it took, and the least time that any plan could have taken.

Everything takes plain sequences of numbers and returns plain numbers; times are seconds, costs are
seconds on a device of speed 1.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from evenload.errors import ConfigError

__all__ = [
    "amdahl",
    "efficiency",
    "imbalance",
    "longest_item_bound",
    "lower_bound",
    "makespan",
    "sorted_prefix_bound",
    "speed_up",
    "spread",
    "utilisation",
    "utilisation_deviation",
    "work_bound",
]


def imbalance(loads: Sequence[float]) -> float:
    """The largest load over the mean load: 1.0 is perfectly even, ``len(loads)`` is all on one device.

    1.0 where there is nothing to balance: no devices, or no load at all.
    Raises ConfigError if a load is negative or not finite.
    """
    check_amounts("load", loads)
    total = math.fsum(loads)
    return max(loads) * len(loads) / total if total > 0 else 1.0


def spread(loads: Sequence[float]) -> float:
    """(max - min) / max, in 0..1: the measure that triggers ``migrate.LoadBalancer``. 0.0 without load."""
    check_amounts("load", loads)
    most = max(loads, default=0.0)
    return (most - min(loads)) / most if most > 0 else 0.0


def makespan(loads: Sequence[float], speeds: Sequence[float] | None = None) -> float:
    """Seconds until the last device is done with its ``loads[d]`` of work at ``speeds[d]`` (1 by default).

    0.0 without devices or work; infinite if work lies on a device of speed zero.
    Raises ConfigError on negative or non-finite numbers, or if the two lengths differ.
    """
    check_amounts("load", loads)
    if speeds is None:
        return max(loads, default=0.0)
    check_amounts("speed", speeds)
    if len(speeds) != len(loads):
        raise ConfigError(f"{len(loads)} loads but {len(speeds)} speeds", hint="give one speed per device")
    return max((_seconds(load, speed) for load, speed in zip(loads, speeds, strict=True)), default=0.0)


def utilisation(busy_s: Sequence[float], wall_s: float) -> list[float]:
    """Share of ``wall_s`` that each device was busy; zeros if no time has passed."""
    check_amounts("busy time", busy_s)
    check_amounts("wall time", [wall_s])
    return [busy / wall_s if wall_s > 0 else 0.0 for busy in busy_s]


def utilisation_deviation(busy_s: Sequence[float], wall_s: float) -> float:
    """Population standard deviation of the devices' utilisation; 0.0 is perfectly even."""
    shares = utilisation(busy_s, wall_s)
    if not shares:
        return 0.0
    mean = math.fsum(shares) / len(shares)
    return math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / len(shares))


def speed_up(serial_s: float, parallel_s: float) -> float:
    """How many times faster ``parallel_s`` is than ``serial_s``; 1.0 if both are zero."""
    check_amounts("time", [serial_s, parallel_s])
    if parallel_s > 0:
        return serial_s / parallel_s
    return math.inf if serial_s > 0 else 1.0


def efficiency(serial_s: float, parallel_s: float, n_devices: float) -> float:
    """Speed-up per device. On unequal devices give the sum of their speeds relative to the serial one.

    Raises ConfigError unless ``n_devices`` is above zero.
    """
    if not n_devices > 0:
        raise ConfigError(
            f"efficiency over {n_devices} devices is not defined", hint="give at least one device"
        )
    return speed_up(serial_s, parallel_s) / n_devices


def work_bound(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """Total work over total speed: no plan is faster, even one that cuts items into pieces."""
    check_amounts("cost", costs)
    check_amounts("speed", speeds)
    return _seconds(math.fsum(costs), math.fsum(speeds))


def longest_item_bound(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """The longest item on the fastest device: no plan that keeps items whole is faster."""
    check_amounts("cost", costs)
    check_amounts("speed", speeds)
    return _seconds(max(costs, default=0.0), max(speeds, default=0.0))


def sorted_prefix_bound(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """The k longest items keep at most k devices busy, the k fastest at best; the worst k counts.

    k = 1 is ``longest_item_bound``; from k = number of devices on, ``work_bound`` says more.
    """
    check_amounts("cost", costs)
    check_amounts("speed", speeds)
    prefixes = zip(
        accumulate(sorted(costs, reverse=True)), accumulate(sorted(speeds, reverse=True)), strict=False
    )
    return max((_seconds(work, speed) for work, speed in prefixes), default=_seconds(sum(costs), 0.0))


def lower_bound(costs: Sequence[float], speeds: Sequence[float]) -> float:
    """The least seconds in which whole items of ``costs`` can be through devices of ``speeds``.

    costs   [items] seconds each item takes on a device of speed 1
    speeds  [devices] work per second; zero is a device that cannot help
    Returns the largest of the three bounds: 0.0 without items, infinite without a device for them.
    Raises ConfigError if a number is negative or not finite.
    """
    return max(work_bound(costs, speeds), sorted_prefix_bound(costs, speeds))


def amdahl(parallel_share: float, n_devices: float) -> float:
    """Predicted speed-up of a job of fixed size, of which ``parallel_share`` (0..1) can be shared out.

    Raises ConfigError if the share is outside 0..1 or there is less than one device.
    Source: G. Amdahl, AFIPS 1967.
    """
    if not 0 <= parallel_share <= 1:
        raise ConfigError(
            f"parallel share {parallel_share} is not in 0..1", hint="give a share, such as 0.95"
        )
    if not n_devices >= 1:
        raise ConfigError(
            f"{n_devices} devices are too few to predict a speed-up", hint="give at least one device"
        )
    return 1.0 / ((1.0 - parallel_share) + parallel_share / n_devices)


def _seconds(work: float, speed: float) -> float:
    if work <= 0:
        return 0.0
    return work / speed if speed > 0 else math.inf


def check_amounts(what: str, amounts: Sequence[float]) -> None:
    """Raises ConfigError unless every amount is finite and at least 0; ``what`` names them in the message."""
    for position, amount in enumerate(amounts):
        if not (amount >= 0 and math.isfinite(amount)):
            raise ConfigError(
                f"{what} {amount} at position {position} is not a finite number of at least 0",
                hint=f"give each {what} as a finite number, zero or more",
            )
