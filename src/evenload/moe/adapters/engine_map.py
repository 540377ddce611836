"""What an engine expects of a map of experts to slots, held before a map leaves an adapter."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_map", "without_empty_slots"]


def without_empty_slots(
    phy2log: NDArray[np.int64], loads: NDArray[np.floating], n_gpus: int
) -> NDArray[np.int64]:
    """Return the map with an expert in each slot: the one that has most load for each of its copies.

    phy2log  [layers, slots] with -1 for an empty slot; ``loads`` [layers, experts]
    A GPU gets an expert twice only where it has all of them.
    """
    filled = phy2log.copy()
    for layer, row in enumerate(filled):
        copies = np.bincount(row[row >= 0], minlength=loads.shape[1])
        by_gpu = row.reshape(n_gpus, -1)
        for gpu, slot in np.argwhere(by_gpu < 0):
            lacks = np.setdiff1d(np.arange(loads.shape[1]), by_gpu[gpu])
            some = lacks if len(lacks) else np.arange(loads.shape[1])
            each = (loads[layer, some] + 1e-9) / np.maximum(copies[some], 1e-9)  # without a copy: first
            expert = some[each.argmax()]
            by_gpu[gpu, slot] = expert
            copies[expert] += 1
    return filled


def check_map(phy2log: NDArray[np.int64], shape: tuple[int, int], n_experts: int) -> None:
    """Check that a map is of the width asked for, holds an expert in each slot, and each expert.

    A fault is evenload's own, and told before an engine moves weights by it: AssertionError.
    """
    assert phy2log.shape == shape, f"a map of {phy2log.shape} where {shape} was asked for"
    assert phy2log.min() >= 0, "a map with an empty slot"
    assert phy2log.max() < n_experts, f"a map with expert {phy2log.max()} of {n_experts}"
    lacking = [layer for layer, row in enumerate(phy2log) if len(np.unique(row)) < n_experts]
    assert not lacking, f"a map that lacks experts in layer {lacking[:1]}"
