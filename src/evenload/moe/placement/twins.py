"""Twins removed where that costs no balance: the result is never less even than the placement with them."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from evenload.moe.placement.kernels.part_twins import part_layers

__all__ = ["part_twins"]

ENOUGH = 1.0 + 1e-6  # loads are float32 sums: closer than this is equal
MOST_PLACEMENTS = 20_000  # of a tiny node, all of which are tried


def part_twins(
    loads: NDArray[np.float32],
    local2log: NDArray[np.int64],
    holds: NDArray[np.int64],
    ranks: NDArray[np.int64],
    count: NDArray[np.int64],
    limit: NDArray[np.float32],
    is_twinned: NDArray[np.bool_],
) -> None:
    """Replace twins in the plan of ``plan_layers``; arguments as there, written in place.

    A node whose busiest GPU would do more than any GPU of its layer did keeps its twins, unless trying all
    placements of a tiny node finds one without.
    """
    part_layers(loads, local2log, holds, ranks, count, limit, is_twinned)
    for layer, node in np.argwhere(is_twinned):
        weight = loads[layer, local2log[layer, node]].astype(np.float64)
        rows = _without_twins(weight, holds.shape[2], holds.shape[3], float(limit[layer]) * ENOUGH)
        if rows is None:
            continue
        holds[layer, node] = rows
        held = rows.reshape(-1)
        count[layer, node] = np.bincount(held, minlength=count.shape[2])
        earlier = np.tril(held[:, None] == held[None], -1)  # slots that hold the same expert
        ranks[layer, node] = earlier.sum(axis=1).reshape(rows.shape)


def _without_twins(
    weight: NDArray[np.float64], n_gpus: int, n_slots: int, most: float
) -> NDArray[np.int64] | None:
    """[GPUs, slots] the most even placement of all without twins; None if that is above ``most``.

    None, too, if there are more than ``MOST_PLACEMENTS`` to try.
    """
    n_rows = math.comb(len(weight), n_slots)
    if not n_rows or math.comb(n_rows + n_gpus - 1, n_gpus) > MOST_PLACEMENTS:
        return None
    rows = np.array(list(itertools.combinations(range(len(weight)), n_slots)))
    holds = np.zeros((n_rows, len(weight)))
    np.put_along_axis(holds, rows, 1.0, axis=1)
    chosen = np.array(list(itertools.combinations_with_replacement(range(n_rows), n_gpus)))
    on = holds[chosen]
    count = on.sum(axis=1)
    is_whole = (count > 0).all(axis=1)
    share = weight / np.maximum(count, 1)
    busiest = np.where(is_whole, (on * share[:, None]).sum(axis=2).max(axis=1), np.inf)
    best = int(busiest.argmin())
    return rows[chosen[best]] if busiest[best] <= most else None
