"""Loads of GPUs when an engine chooses each token's copy: evenly, by hash, by weights, exactly.

    python benchmarks/moe_engines.py

Loads, not times: busiest GPU over the mean, of whole tokens, mean over layers and batches that no plan and no
weights have seen. 64 experts in 80 slots on 16 GPUs. Placements are made from the first half of each trace;
weights from the 2,048 tokens before the batch. ``by hash`` is vLLM's choice (``base_router.py``: the token's
place, times 2654435769, modulo the number of copies), ``in turn`` is SGLang's where all ranks must agree
(``expert_location_dispatch.py``: the token's row modulo the number of copies), both as written
there; a slow test (tests/moe/adapters) holds the formula to the engines' own functions, taken out of their
wheels.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from moe_workloads import popularity, traces, windows_of
from numpy.typing import NDArray
from record import record

from evenload.moe import Fleet, WeightedCopies, place, rebalance_experts
from evenload.moe.placement.rebalance import logical_maps
from evenload.moe.replay.replayer import imbalances

N_EXPERTS, N_SLOTS, N_GPUS, WINDOW, TOP_K = 64, 80, 16, 2048, 6
FLEET = Fleet.even(N_GPUS, N_SLOTS)
KNUTH = 2654435769


def drifting(n_layers: int = 26, n_tokens: int = 8192, seed: int = 0) -> NDArray[np.int64]:
    """[layers, tokens, top-k] ids: log-normal popularity (0.7) that takes an AR(1) step each 512 tokens."""
    rng = np.random.default_rng(seed)
    parts = []
    for odds, _ in zip(popularity(n_layers, N_EXPERTS, 0.7, seed), range(n_tokens // 512), strict=False):
        noise = rng.gumbel(size=(n_layers, 512, N_EXPERTS)) + np.log(odds)[:, None]
        parts.append(np.argpartition(-noise, TOP_K, axis=-1)[..., :TOP_K])
    return np.concatenate(parts, axis=1)


def peak(slots: NDArray[np.int64]) -> float:
    load = np.bincount(slots.reshape(-1) // (N_SLOTS // N_GPUS), minlength=N_GPUS)
    return float(load.max() / load.mean())


def by_place(ids: NDArray, log2phy: NDArray, n_copies: NDArray, factor: int) -> NDArray[np.int64]:
    token = (np.arange(len(ids))[:, None] * factor) & 0xFFFFFFFF
    return log2phy[ids, token % n_copies[ids]]


def chosen(ids: NDArray, end: int, size: int, layer: int, phy2log: dict, copies: WeightedCopies) -> Iterator:
    """(name, imbalance) of each way to choose copies for the batch ``ids[layer, end : end + size]``."""
    batch = ids[layer, end : end + size]
    for placement, name in (("EPLB", "EPLB"), ("search", "search")):
        log2phy, n_copies = (one[0] for one in logical_maps(phy2log[placement][layer][None], N_EXPERTS))
        yield f"{name}, by hash", peak(by_place(batch, log2phy, n_copies, KNUTH))
        yield f"{name}, in turn", peak(by_place(batch, log2phy, n_copies, 1))
    tokens = torch.from_numpy(batch)
    yield "weights", peak(copies.map(tokens, layer, sweeps=0).numpy())
    yield "weights, evened out", peak(copies.map(tokens, layer).numpy())
    parts = tokens.chunk(N_GPUS)
    own = [copies.map(part, layer, rank=r, n_ranks=N_GPUS, sweeps=0) for r, part in enumerate(parts)]
    yield "weights, own tokens", peak(torch.cat(own).numpy())
    counts = torch.bincount(tokens.reshape(-1), minlength=N_EXPERTS)
    summed = [copies.map(part, layer, rank=r, n_ranks=N_GPUS, counts=counts) for r, part in enumerate(parts)]
    yield "weights, own tokens, summed counts", peak(torch.cat(summed).numpy())


def rows_of(name: str, ids: NDArray[np.int64]) -> Iterator[dict[str, object]]:
    half = ids.shape[1] // 2
    history = windows_of(ids[:, :half], N_EXPERTS, 128)
    phy2log = {
        "EPLB": np.asarray(rebalance_experts(history.sum(axis=0), N_SLOTS, 1, 1, N_GPUS).phy2log),
        "search": place(history, FLEET).phy2log,
    }
    copies = WeightedCopies(phy2log["search"], N_EXPERTS, N_GPUS)
    for size in (512, 1024, 2048):
        found: dict[str, list[float]] = {}
        for end in range(half, ids.shape[1] - size + 1, size):
            copies.refresh(windows_of(ids[:, end - WINDOW : end], N_EXPERTS, WINDOW)[0])
            for layer in range(len(ids)):
                for key, value in chosen(ids, end, size, layer, phy2log, copies):
                    found.setdefault(key, []).append(value)
        batches = windows_of(ids[:, half:], N_EXPERTS, size)
        exact = imbalances(phy2log["search"], batches, FLEET).mean()
        even = imbalances(phy2log["EPLB"], batches, FLEET, routed=False).mean()
        means = {key: round(float(np.mean(values)), 4) for key, values in found.items()}
        yield (
            {"traffic": name, "tokens": size, "EPLB, split equally": round(float(even), 4)}
            | means
            | {"exact": round(float(exact), 4)}
        )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    torch.set_num_threads(1)
    traffic = traces() | {"made up, drifting": drifting()}
    rows = [row for name, ids in traffic.items() for row in rows_of(name, ids)]
    unit = "busiest GPU over the mean; 64 experts, 80 slots, 16 GPUs, 26 layers"
    record("moe_engines", rows, is_of_speed=False, unit=unit)
