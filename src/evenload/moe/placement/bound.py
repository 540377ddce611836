"""The loads and imbalance of a placement under an equal split, and a bound of any placement's imbalance."""

import numpy as np
from numpy.typing import NDArray


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
