"""Shares of each copy of an expert, and how they give way: what ``WeightedCopies`` holds, in numpy."""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow import ReplicaGraph, Router
from evenload.errors import ConfigError
from evenload.moe.routing.weighted_choice import ONE, RELIEF_ONE

__all__ = ["layer_arrays"]

MOST_RELIEF = 8  # tokens moved for one too many
LEAST_SHARE = 0.1  # that a copy counts for when loads are evened out
N_SWEEPS = 32
SLACK = 1.01  # shares away from the ends may have loads so much higher


def layer_arrays(
    slots: NDArray[np.int64], demands: NDArray[np.int64], n_experts: int, n_gpus: int, dead: tuple[int, ...]
) -> tuple[NDArray, ...]:
    """The arrays of ``LayerWeights``, [layers, ...] each, for ``demands`` [layers, experts].

    Many divisions of the tokens are optimal, and the router's has most shares at 0 or 1, from where they
    can give way to one side only. So it is averaged with the division nearest to equal shares, if that is
    about as good: loads are linear in shares, and a batch that differs can be evened out both ways.
    """
    graph = ReplicaGraph.from_slots(slots, n_experts, n_gpus, dead=dead)
    quotas = Router(graph).solve(demands).quotas
    expert = np.where(_is_first_on_gpu(graph.phy2log, n_gpus), slots, n_experts)
    order = np.argsort(expert, axis=1, kind="stable")
    layers = np.arange(len(slots))[:, None]
    n_copies = np.zeros((len(slots), n_experts + 1), np.int64)
    np.add.at(n_copies, (layers, expert), 1)
    lost = np.argwhere(n_copies[:, :-1] == 0)
    if len(lost):
        raise ConfigError(
            f"layer {lost[0, 0]} has expert {lost[0, 1]} on dead GPUs only", hint="place it on a living one"
        )
    first = np.concatenate([np.zeros((len(slots), 1), np.int64), n_copies[:, :-1].cumsum(axis=1)], axis=1)
    demand = np.pad(demands, ((0, 0), (0, 1)))[layers, expert].astype(np.float64)
    even = np.where(expert < n_experts, 1.0 / np.maximum(n_copies[layers, expert], 1), 0.0)
    exact = np.divide(quotas, demand, out=even.copy(), where=demand > 0)
    share = np.stack(
        [_inner(*row, n_experts, n_gpus) for row in zip(expert, demand, even, exact, strict=True)]
    )
    relief = np.stack(
        [relief_of(e, d, s, n_experts, n_gpus) for e, d, s in zip(expert, demand, share, strict=True)]
    )
    whole = np.rint(share * ONE).astype(np.int64)
    sums = np.zeros((len(slots), n_experts + 1), np.int64)
    np.add.at(sums, (layers, expert), whole)
    largest = np.lexsort((-share, expert), axis=1)[layers, first[:, :-1]]  # each expert's slot with most
    np.add.at(whole, (layers, largest), ONE - sums[:, :-1])
    relief = np.rint(np.clip(relief, -MOST_RELIEF, MOST_RELIEF) * RELIEF_ONE).astype(np.int32)
    return expert, order, first, whole, relief


def _inner(
    expert: NDArray, demand: NDArray, even: NDArray, exact: NDArray, n_experts: int, n_gpus: int
) -> NDArray[np.float64]:
    """[slots] shares of one layer: ``exact``, or halfway to those nearest to equal ones."""
    relief = relief_of(expert, demand, even, n_experts, n_gpus)
    total = np.bincount(expert, demand * even, minlength=n_experts + 1)
    tokens = demand * even
    for _ in range(N_SWEEPS):
        load = _loads(tokens, n_gpus)
        tokens = np.maximum(tokens - relief @ (load - load.mean()), 0.0)
        found = np.bincount(expert, tokens, minlength=n_experts + 1)
        tokens *= np.divide(total, found, out=np.ones_like(total), where=found > 0)[expert]
    if _loads(tokens, n_gpus).max() > SLACK * _loads(demand * exact, n_gpus).max():
        return exact
    near = np.divide(tokens, demand, out=even.copy(), where=demand > 0)
    return (near + exact) / 2


def _loads(tokens: NDArray[np.float64], n_gpus: int) -> NDArray[np.float64]:
    return tokens.reshape(n_gpus, -1).sum(axis=1)


def _is_first_on_gpu(slots: NDArray[np.int32], n_gpus: int) -> NDArray[np.bool_]:
    """[layers, slots] whether each is its expert's first on its GPU: a second one gets nothing."""
    gpu = np.arange(slots.shape[1]) // (slots.shape[1] // n_gpus)
    found = np.zeros(slots.shape, bool)
    for row, mine in zip(np.where(slots >= 0, slots * n_gpus + gpu, -1), found, strict=True):
        mine[np.unique(row, return_index=True)[1]] = True
    return found & (slots >= 0)


def relief_of(
    expert: NDArray[np.int64],
    demand: NDArray[np.float64],
    share: NDArray[np.float64],
    n_experts: int,
    n_gpus: int,
) -> NDArray[np.float64]:
    """[slots, GPUs] of one layer: what leaves each slot for a token too many on each GPU.

    The flow that makes all loads equal with the least sum of squares over what the slots have: potentials of
    the GPUs by the Laplacian of the graph whose edges are shared experts, as of a current between them.
    """
    weight = np.maximum(demand, 1.0) * np.maximum(share, LEAST_SHARE) * (expert < n_experts)
    gpu = np.arange(len(expert)) // (len(expert) // n_gpus)
    on_gpu = np.zeros((n_experts + 1, n_gpus))
    np.add.at(on_gpu, (expert, gpu), weight)
    per_expert = np.maximum(on_gpu.sum(axis=1, keepdims=True), 1e-300)
    laplacian = np.diag(on_gpu.sum(axis=0)) - on_gpu.T @ (on_gpu / per_expert)
    # Never singular; what it adds for each connected part is a constant, which cancels below.
    laplacian += np.eye(n_gpus) * max(laplacian.trace() / n_gpus, 1.0) * 1e-7
    lean = np.eye(n_gpus)[gpu] - (on_gpu / per_expert)[expert]
    return weight[:, None] * (lean @ np.linalg.inv(laplacian))
