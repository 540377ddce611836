"""Batches and placements for the MoE benchmarks: drifting log-normal loads, and real routing traces."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.trace import count_ids

TESTS = Path(__file__).parents[1] / "tests"
TRACES = TESTS / "data" / "routing"
sys.path.append(str(TESTS / "reference"))  # for what benchmarks, too, hold our results against


def popularity(n_layers: int, n_experts: int, sigma: float, seed: int) -> Iterator[NDArray[np.float64]]:
    """[layers, experts] odds, window after window: log-normal, each an AR(1) step (0.1) from the last."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1, (n_layers, n_experts))
    while True:
        weight = np.exp(sigma * z)
        yield weight / weight.sum(axis=1, keepdims=True)
        z = np.sqrt(1 - 0.1**2) * z + 0.1 * rng.normal(0, 1, z.shape)


def draw(odds: NDArray[np.float64], n_ids: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[layers, experts] counts of one batch of ``n_ids`` ids in each layer."""
    return np.stack([rng.multinomial(n_ids, row) for row in odds])


def synthetic(
    n_slots: int,
    n_gpus: int,
    n_ids: int,
    *,
    n_batches: int = 12,
    n_layers: int = 58,
    n_experts: int = 256,
    seed: int = 1,
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """(phy2log [layers, slots], batches of [layers, experts]): EPLB's on one window, batches of the next."""
    windows = popularity(n_layers, n_experts, 0.7, seed)
    rng = np.random.default_rng(seed)
    history = draw(next(windows), 2**20, rng)
    phy2log = np.asarray(rebalance_experts(history, n_slots, 1, 1, n_gpus).phy2log)
    odds = next(windows)
    return phy2log, [draw(odds, n_ids, rng) for _ in range(n_batches)]


def traces() -> dict[str, NDArray[np.int64]]:
    """Name -> [layers, tokens, top-k] expert ids, of every trace beside the tests."""
    return {
        path.stem.removeprefix("routing_"): np.load(path)["experts"].astype(np.int64)
        for path in sorted(TRACES.glob("*.npz"))
    }


def windows_of(ids: NDArray[np.int64], n_experts: int, n_tokens: int) -> NDArray[np.int64]:
    """[windows, layers, experts] counts of consecutive windows of ``n_tokens`` tokens."""
    n_windows = ids.shape[1] // n_tokens
    return count_ids(ids[:, : n_windows * n_tokens], n_windows, n_experts)


def real(
    ids: NDArray[np.int64], n_slots: int, n_gpus: int, *, n_experts: int = 64, n_tokens: int = 512
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Like ``synthetic`` from a trace: EPLB's on its first half; ``n_tokens``-token batches of the rest."""
    windows = windows_of(ids, n_experts, n_tokens)
    half = len(windows) // 2
    phy2log = np.asarray(rebalance_experts(windows[:half].sum(axis=0), n_slots, 1, 1, n_gpus).phy2log)
    return phy2log, list(windows[half:])
