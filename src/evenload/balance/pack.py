"""Which device gets which item, when every item's weight is known up front."""

from collections.abc import Sequence

from evenload.balance.metrics import check_amounts
from evenload.errors import ConfigError

__all__ = ["loads", "pack_lpt"]


def pack_lpt(weights: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Assign items, longest first, each to the device that would end it soonest.

    weights  [items] work in each item
    speeds   [devices] work per second; a device of speed zero gets nothing
    Returns ``item2device`` [items]. Ties go to the faster, then to the first device.
    Raises ConfigError on negative or non-finite numbers, or if there are items but no speed above zero.
    The makespan is at most 2m/(m+1) times the best for m unequal devices, 4/3 - 1/(3m) for equal ones.
    Source: Gonzalez, Ibarra, Sahni, SIAM J. Comput. 6(1), 1977; Graham, SIAM J. Appl. Math. 17(2), 1969.
    """
    check_amounts("weight", weights)
    check_amounts("speed", speeds)
    # Faster devices first, so that min() breaks ties in their favour.
    usable = sorted((d for d, speed in enumerate(speeds) if speed > 0), key=lambda d: -speeds[d])
    if weights and not usable:
        raise ConfigError(
            f"{len(weights)} items but no device of speed above 0", hint="give at least one speed > 0"
        )
    item2device = [0] * len(weights)
    load = [0.0] * len(speeds)
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        device = min(usable, key=lambda d: (load[d] + weights[item]) / speeds[d])
        load[device] += weights[item]
        item2device[item] = device
    return item2device


def loads(weights: Sequence[float], item2bin: Sequence[int], n_bins: int) -> list[float]:
    """Weight in each of ``n_bins`` devices. Raises ConfigError on unequal lengths."""
    if len(weights) != len(item2bin):
        raise ConfigError(f"{len(weights)} weights but {len(item2bin)} assigned items")
    totals = [0.0] * n_bins
    for weight, chosen in zip(weights, item2bin, strict=True):
        totals[chosen] += weight
    return totals
