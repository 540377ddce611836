"""How many items each device gets, decided in advance, and the contiguous slices that this makes.

Every function returns one count per device, in device order, that sums to ``n_items`` exactly.
``slices`` turns counts into ranges of the input.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from evenload.errors import ConfigError, UnknownName

__all__ = [
    "STRATEGIES",
    "dynamic",
    "equal",
    "proportional",
    "slices",
    "split",
    "water_filling",
    "water_level",
]

STRATEGIES = ("equal", "proportional", "dynamic")


def split(
    strategy: str, n_items: int, scores: Sequence[float], utilisation: Sequence[float | None] | None = None
) -> list[int]:
    """Counts by the strategy's name; ``utilisation`` (0..1 per device) is used by "dynamic" only.

    Raises UnknownName on a name outside ``STRATEGIES``, ConfigError as the strategies themselves do.
    """
    if strategy == "equal":
        return equal(n_items, len(scores))
    if strategy == "proportional":
        return proportional(n_items, scores)
    if strategy == "dynamic":
        return dynamic(n_items, scores, utilisation or [None] * len(scores))
    raise UnknownName("partition", strategy, STRATEGIES)


def equal(n_items: int, n_devices: int) -> list[int]:
    """Equal counts, the remainder one each to the first devices: 10 over 3 is 4, 3, 3."""
    _check(n_items, n_devices)
    if not n_devices:
        return []
    base, extra = divmod(n_items, n_devices)
    return [base + (device < extra) for device in range(n_devices)]


def proportional(n_items: int, scores: Sequence[float]) -> list[int]:
    """Counts in proportion to ``scores``, rounded by largest remainder: 1000 by 95 : 80 is 543, 457.

    A device of score zero gets nothing; if every score is zero, nothing is known and all get the same.
    Ties in the remainder go to the first device. Exact for any magnitude of scores and items.
    Raises ConfigError if a score is negative or not finite, or if there are items but no device.
    """
    _check(n_items, len(scores))
    weights = _as_integers(scores)
    total = sum(weights)
    if not total:
        return equal(n_items, len(scores))
    counts, remainders = map(list, zip(*(divmod(n_items * weight, total) for weight in weights), strict=True))
    first_to_round_up = sorted(range(len(scores)), key=lambda device: -remainders[device])
    for device in first_to_round_up[: n_items - sum(counts)]:
        counts[device] += 1
    return counts


def dynamic(n_items: int, scores: Sequence[float], utilisation: Sequence[float | None]) -> list[int]:
    """Proportional to what is free of each device: score x (1 - utilisation).

    utilisation  [devices] share in 0..1 that is busy already, None where it is not known (taken as idle)
    If all are saturated, there is nothing to tell them apart but their scores: plain ``proportional``.
    Raises ConfigError on a utilisation outside 0..1, on lengths that differ, and as ``proportional`` does.
    """
    if len(utilisation) != len(scores):
        raise ConfigError(
            f"{len(scores)} scores but {len(utilisation)} utilisations",
            hint="give one utilisation per device",
        )
    free = [1.0 - _share(share) for share in utilisation]
    effective = [score * share for score, share in zip(scores, free, strict=True)]
    return proportional(n_items, effective if any(share > 0 for share in effective) else scores)


def water_filling(
    n_items: int,
    launch_s: Sequence[float],
    per_item_s: Sequence[float],
    most: Sequence[int | None] | None = None,
) -> list[int]:
    """The counts that finish soonest when device d needs ``launch_s[d] + n * per_item_s[d]`` for n items.

    launch_s    [devices] seconds a launch costs, whatever its size; infinite is a device to leave out
    per_item_s  [devices] seconds per item, zero or more
    most        [devices] items that a device can have at most, None for no limit
    Solves n_d = (T - launch_s[d]) / per_item_s[d] for the common finish time T, drops the devices
    that T leaves nothing for, and rounds so that the integer makespan is the least possible.
    Raises ConfigError on negative or NaN numbers, if there are items but no device to leave in, or if the
    items are more than all devices can have.
    """
    finish_s = water_level(n_items, launch_s, per_item_s, most)
    room = _room(n_items, launch_s, per_item_s, most)
    counts = [0] * len(launch_s)
    for d, limit in room.items():
        if finish_s > launch_s[d] and per_item_s[d] > 0:
            counts[d] = min(limit, int((finish_s - launch_s[d]) / per_item_s[d]))
    for d in (d for d in room if not per_item_s[d] and launch_s[d] <= finish_s):
        counts[d] += min(room[d], max(0, n_items - sum(counts)))
    _settle(counts, n_items, launch_s, per_item_s, room)
    return counts


def water_level(
    n_items: float,
    launch_s: Sequence[float],
    per_item_s: Sequence[float],
    most: Sequence[int | None] | None = None,
) -> float:
    """The common finish time T of ``water_filling`` if items could be cut at will: no counts finish sooner.

    0 if there are no items. Arguments and errors as there.
    """
    if len(launch_s) != len(per_item_s):
        raise ConfigError(f"{len(launch_s)} launch costs but {len(per_item_s)} costs per item")
    for cost in (*launch_s, *per_item_s):
        if not cost >= 0:
            raise ConfigError(f"cost {cost} s is not zero or more", hint="give measured seconds")
    room = _room(n_items, launch_s, per_item_s, most)
    _check(n_items, len(room))
    if n_items > sum(room.values()):
        raise ConfigError(
            f"{n_items} items, but the devices can have {sum(room.values())}", hint="give fewer items"
        )
    full: set[int] = set()
    finish_s = 0.0
    while n_items > 0:  # who is full stays so as T rises
        left = n_items - sum(room[d] for d in full)
        free = [d for d in room if d not in full]
        if left > 0:
            rates = ((launch_s[d], 1.0 / per_item_s[d] if per_item_s[d] else math.inf) for d in free)
            finish_s = max(finish_s, common_finish(left, rates))
        over = {d for d in free if _wanted(finish_s - launch_s[d], per_item_s[d], left) > room[d]}
        if not over:
            break
        full |= over
    return finish_s


def _wanted(free_s: float, per_item_s: float, n_items: float) -> float:
    """Items that fit into ``free_s``, of ``n_items`` at most."""
    if free_s < 0:
        return 0.0
    return min(n_items, free_s / per_item_s) if per_item_s else n_items


def _room(
    n_items: float, launch_s: Sequence[float], per_item_s: Sequence[float], most: Sequence[int | None] | None
) -> dict[int, Any]:
    """Items that each device can have, without those that are left out."""
    limits = [None] * len(launch_s) if most is None else list(most)
    if len(limits) != len(launch_s):
        raise ConfigError(f"{len(launch_s)} devices but {len(limits)} limits", hint="give one per device")
    return {
        d: n_items if limit is None else max(0, min(limit, n_items))
        for d, limit in enumerate(limits)
        if math.isfinite(launch_s[d]) and math.isfinite(per_item_s[d])
    }


def slices(counts: Sequence[int]) -> list[range]:
    """``counts`` as contiguous ranges from 0 on: [4, 3, 3] is 0..3, 4..6, 7..9."""
    stops = list(accumulate(counts))
    return [range(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]


def common_finish(work: float, devices: Iterable[tuple[float, float]]) -> float:
    """The T at which devices that start before T have done ``work`` between them, however it is cut.

    devices  when each starts, and its work a second, above 0; infinite is a device that needs no time
    """
    rate = filled = 0.0
    finish_s = math.inf
    for start_s, its_rate in sorted(devices):
        if start_s >= finish_s:
            break
        if its_rate == math.inf:
            return start_s
        rate += its_rate
        filled += start_s * its_rate
        finish_s = (work + filled) / rate
    return finish_s


def _settle(
    counts: list[int],
    n_items: int,
    launch_s: Sequence[float],
    per_item_s: Sequence[float],
    room: Mapping[int, int],
) -> None:
    """Give the items lost to rounding to the devices that finish them first; take back any excess."""

    def after(d: int, n: int) -> float:
        return launch_s[d] + n * per_item_s[d]

    missing = n_items - sum(counts)
    for _ in range(missing):
        counts[min((d for d in room if counts[d] < room[d]), key=lambda d: after(d, counts[d] + 1))] += 1
    for _ in range(-missing):
        counts[max((d for d in room if counts[d]), key=lambda d: after(d, counts[d]))] -= 1


def _as_integers(scores: Sequence[float]) -> list[int]:
    """Integers in exactly the proportions of ``scores``: a float is a fraction over a power of two."""
    for device, score in enumerate(scores):
        if not (score >= 0 and math.isfinite(score)):
            raise ConfigError(
                f"score {score} of device {device} is not a finite number of at least 0",
                hint="give each device a score of zero or more",
            )
    ratios = [float(score).as_integer_ratio() for score in scores]
    scale = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _share(utilisation: float | None) -> float:
    if utilisation is None:
        return 0.0
    if not 0 <= utilisation <= 1:
        raise ConfigError(
            f"utilisation {utilisation} is not in 0..1",
            hint="give a share: 0.9 for a device that is 90 % busy",
        )
    return utilisation


def _check(n_items: float, n_devices: int) -> None:
    if n_items < 0:
        raise ConfigError(f"{n_items} items cannot be shared out", hint="give zero items or more")
    if n_items and not n_devices:
        raise ConfigError(f"{n_items} items but no device to give them to", hint="select at least one device")
