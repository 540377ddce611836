"""A placement's loads under an equal split, a bound of any placement's imbalance, and certificates."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import array_of
from evenload.balance.claim import claim, exact, rounded_down
from evenload.certificate import by_copies
from evenload.errors import ConfigError
from evenload.moe.placement.fleet import Fleet


def equal_split_imbalance(phy2log: NDArray[np.int64], weight: NDArray, n_gpus: int) -> NDArray[np.float64]:
    """[layers] busiest GPU over the mean; arguments as in ``equal_split_loads``."""
    load = equal_split_loads(phy2log, np.asarray(weight, np.float64), n_gpus)
    mean = load.mean(axis=1)
    return np.divide(load.max(axis=1), mean, out=np.ones(len(load)), where=mean > 0)


def equal_split_loads(phy2log: NDArray[np.int64], weight: NDArray, n_gpus: int) -> NDArray[np.float64]:
    """[layers, gpus] loads when each expert's load is split equally over its copies.

    phy2log  [layers, slots] integers, -1 for an empty slot; the slots divide over the GPUs in order
    weight   [layers, experts] loads
    """
    n_layers, n_experts = weight.shape
    is_held = phy2log >= 0
    flat = np.where(is_held, phy2log, 0) + np.arange(n_layers)[:, None] * n_experts
    copies = np.bincount(flat[is_held], minlength=n_layers * n_experts)
    share = weight.reshape(-1) / np.maximum(copies, 1)
    return np.where(is_held, share[flat], 0.0).reshape(n_layers, n_gpus, -1).sum(axis=2)


def equal_split_tokens(phy2log: NDArray[np.int64], counts: NDArray[np.int64], n_gpus: int) -> NDArray:
    """[layers, gpus] whole tokens when each expert's are dealt to its copies in turn, from the first slot on.

    phy2log  as in ``equal_split_loads``;  counts  [layers, experts] tokens
    """
    layers, slots = np.nonzero(phy2log >= 0)
    experts = layers * counts.shape[1] + phy2log[layers, slots]
    order = np.argsort(experts, kind="stable")
    copies = np.bincount(experts, minlength=counts.size)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(copies) - copies, copies)
    tokens, n = counts.reshape(-1)[experts], copies[experts]
    loads = np.zeros(phy2log.shape, np.int64)
    loads[layers, slots] = tokens // n + (rank < tokens % n)
    return loads.reshape(len(phy2log), n_gpus, -1).sum(axis=2)


def checked_loads(name: str, values: Any, axes: str) -> NDArray[Any]:
    """``values`` as an array of loads along ``axes``, such as "layer expert".

    Raises ConfigError for another shape, or a load that is negative or not finite.
    """
    loads, named = array_of(name, values), axes.split()
    if loads.ndim != len(named) or not loads.size:
        shape = ", ".join(f"{axis}s" for axis in named)
        raise ConfigError(f"{name} has shape {loads.shape}", hint=f"give [{shape}], at least one of each")
    if not (loads.min() >= 0 and loads.max() < np.inf):
        at = np.argwhere(~((loads >= 0) & (loads < np.inf)))[0].tolist()
        where = ", ".join(f"{axis} {i}" for axis, i in reversed([*zip(named, at, strict=True)]))
        raise ConfigError(
            f"load {loads[*at]} of {where}, is no finite number from 0 up",
            hint="give each load as a count of tokens, zero or more",
        )
    return loads


def is_first_on_gpu(phy2log: NDArray[np.integer], slot2gpu: NDArray[np.integer]) -> NDArray[np.bool_]:
    """[layers, slots] whether each is its expert's first on its GPU, which a second or none is not."""
    found = np.zeros(phy2log.shape, bool)
    n_gpus = int(slot2gpu.max()) + 1
    for row, mine in zip(np.where(phy2log >= 0, phy2log * n_gpus + slot2gpu, -1), found, strict=True):
        mine[np.unique(row, return_index=True)[1]] = True
    return found & (phy2log >= 0)


def whole_bound(
    bound: NDArray[np.float64], counts: NDArray[np.int64], speeds: NDArray
) -> NDArray[np.float64]:
    """[layers] ``placement_bound`` of ``counts`` tokens if none is divided: a GPU has whole ones."""
    speeds = speeds[speeds > 0]
    mean = counts.sum(axis=1, keepdims=True) / speeds.sum()
    least = np.ceil(bound[:, None] * mean * speeds * (1 - 1e-9)) / speeds
    return np.divide(least.min(axis=1), mean[:, 0], out=bound.copy(), where=mean[:, 0] > 0)


def placement_bound(
    weight: NDArray, n_slots: int, n_gpus: int, speeds: NDArray | None = None
) -> NDArray[np.float64]:
    """[layers] lower bound of the imbalance of any placement and routing: the minimum of a relaxation.

    weight  [layers, experts] loads;  n_slots  copies in all;  speeds  [GPUs], 1 by default, 0 for a dead one

    If the busiest GPU needs time T, all load fits into T times all speed; and an expert has copies on as many
    GPUs, the fastest ones at best, as it takes to serve it in T, which makes at most ``n_slots`` copies. The
    bound is the least T that allows both, over (all load / all speed); infinite if there are fewer slots than
    experts, 1 without load.
    """
    weight = np.asarray(weight, np.float64)
    speeds = np.ones(n_gpus) if speeds is None else np.sort(np.asarray(speeds, np.float64))[::-1]
    speeds = speeds[speeds > 0]
    if n_slots < weight.shape[1] or not len(speeds):
        return np.full(len(weight), np.inf)
    total = weight.sum(axis=1)
    reach = np.cumsum(speeds)  # what the k fastest GPUs serve in T = 1
    share = np.divide(weight * reach[-1], total[:, None], out=np.zeros_like(weight), where=total[:, None] > 0)
    low, high = np.ones(len(weight)), np.maximum(share.max(axis=1) / reach[0], 1.0)

    def copies(limit: NDArray) -> NDArray:
        needed = np.searchsorted(reach, share / limit[:, None] * (1 - 1e-12)) + 1
        return np.maximum(needed, 1).sum(axis=1)

    fits = copies(low) <= n_slots
    high = np.where(fits, low, high)
    for _ in range(50):
        middle = (low + high) / 2
        fits = copies(middle) <= n_slots
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


MOST_ROUNDING = 40  # halvings of the last digits of a bound until it is proved


def fleet_certificate(
    phy2log: NDArray[np.int64], windows: NDArray, fleet: Fleet, *, is_routed: bool, name: str = "placement"
) -> dict[str, Any]:
    """Return the certificate of a placement for a fleet, as ``placement_certificate`` does.

    phy2log    [layers, GPUs * width];  windows  [windows, layers, experts]
    is_routed  loads, whole numbers then, are routed exactly; else split equally over copies
    """
    is_there, speeds, quotas = fleet.open_slots(), fleet.living_speeds(), None
    phy2log, slot2gpu = phy2log[:, is_there], np.flatnonzero(is_there) // fleet.width
    if is_routed:
        from evenload.balance.flow import ReplicaGraph, Router

        if (windows != np.rint(windows)).any():
            raise ConfigError(
                "loads that are not whole numbers cannot be routed", hint="give counts of tokens"
            )
        n_experts = windows.shape[2]
        graph = ReplicaGraph.from_slots(phy2log, n_experts, fleet.n_gpus, slot2gpu=slot2gpu, dead=fleet.dead)
        router = Router(graph, speeds=speeds)
        quotas = [router.solve(one).quotas.tolist() for one in windows.astype(np.int64)]
    return placement_certificate(phy2log, windows, slot2gpu, speeds, quotas, name)


def placement_certificate(
    phy2log: NDArray[np.int64],
    windows: NDArray,
    slot2gpu: NDArray[np.int64],
    speeds: NDArray[np.float64],
    quotas: Sequence[Sequence[list[int] | None]] | None = None,
    name: str = "placement",
) -> dict[str, Any]:
    """Return the certificate of a placement under windows of loads, for ``json.dumps``.

    phy2log   [layers, slots] the expert in each slot, -1 for an empty one
    windows   [windows, layers, experts] loads;  slot2gpu  [slots] of slots that are there
    speeds    [GPUs], 0 for a dead one
    quotas    [windows][layers] what each slot serves; split equally over copies where None

    It claims the load of the busiest GPU, summed over windows and layers. Raises ConfigError without load.
    """
    n_slots = int((speeds[slot2gpu] > 0).sum())
    gpus, relative = slot2gpu.tolist(), [exact(one) / exact(float(speeds.max())) for one in speeds.tolist()]
    layers, achieved, bound = [], Fraction(0), Fraction(0)
    for number, window in enumerate(windows):
        bounds = placement_bound(window, n_slots, len(speeds), speeds)
        for layer, loads in enumerate(window):
            if not loads.any():
                continue
            demand = [_plain(one) for one in loads.tolist()]
            split = None if quotas is None else quotas[number][layer]
            slots = [None if expert < 0 else expert for expert in phy2log[layer].tolist()]
            part: dict[str, Any] = {"phy2log": slots, "demand": demand, "quotas": split}
            mean = sum(map(exact, demand), Fraction(0)) / sum(relative, Fraction(0))
            part["peak"] = _proved(exact(float(bounds[layer])) * mean, part, gpus, relative)
            layers.append(part)
            achieved += exact_up(_peak(part, gpus, relative))
            bound += exact(part["peak"])
    if not layers:
        raise ConfigError("a placement without load has no certificate", hint="give loads above 0")
    evidence = {"slot2gpu": gpus, "speeds": speeds.tolist(), "layers": layers}
    return claim("placement", name, achieved, bound, evidence)


def exact_up(value: Fraction) -> Fraction:
    """Return billionths, which is how finely the checker adds up layers."""
    return Fraction(-(-value * 10**9 // 1), 10**9)


def _plain(load: float) -> float:
    return int(load) if float(load).is_integer() else float(load)


def _peak(part: dict[str, Any], gpus: list[int], speeds: list[Fraction]) -> Fraction:
    slots, demand = part["phy2log"], [exact(one) for one in part["demand"]]
    copies = {expert: slots.count(expert) for expert in set(slots)}
    loads = [Fraction(0)] * len(speeds)
    for slot, (gpu, expert) in enumerate(zip(gpus, slots, strict=True)):
        if expert is not None:
            shared = demand[expert] / copies[expert] if part["quotas"] is None else part["quotas"][slot]
            loads[gpu] += shared
    return max(load / speed for load, speed in zip(loads, speeds, strict=True) if speed)


def _proved(bound: Fraction, part: dict[str, Any], gpus: list[int], speeds: list[Fraction]) -> float:
    """Return the bound, less the rounding of its search, such that the checker finds it proved."""
    layer = {"demand": [exact(one) for one in part["demand"]]}
    for power in range(MOST_ROUNDING):
        peak = rounded_down(bound * (1 - Fraction(2**power - 1, 10**13)))
        if peak > 0 and by_copies(layer, exact(peak), gpus, speeds):
            return peak
    return 0
