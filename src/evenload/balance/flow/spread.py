"""Factors by which a batch's excess spreads over large sparse graphs like a current, made once per graph.

Each row is taken for a star of equal springs between its GPUs. The springs' equilibrium moves load along all
paths at once, a little along each, so that hardly any edge runs empty; a tree would use one path only. The
springs' matrix depends on the placement alone and is sparse: it is factored as L D L' by elimination, least
degree first.
"""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph
from evenload.native.kernel import compiled, inlined

FEWEST_GPUS = 48
# Edges for each GPU that has any. With fewer a graph has hardly a cycle, and trees do as well; with more, no
# two GPUs are far apart, and the springs' matrix is no longer sparse.
FEWEST_EDGES, MOST_EDGES = 2.5, 8.0


def springs(
    graph: ReplicaGraph,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """``order``, ``fill_start``, ``fill_gpu``, ``pivots`` and ``fill_value`` of ``eliminate``.

    All are empty for graphs where an even first cut of demand is as good.
    """
    none = np.zeros(0, np.int32)
    n_linked = np.count_nonzero(np.diff(graph.gpu_start))
    if n_linked < FEWEST_GPUS * graph.n_layers or not (
        FEWEST_EDGES * n_linked <= graph.n_edges <= MOST_EDGES * n_linked
    ):
        return none, none, none, np.zeros(0), np.zeros(0)
    order = np.zeros((graph.n_layers, graph.n_gpus), np.int32)
    fill_start, pivots = np.zeros(order.size + 1, np.int32), np.zeros(order.shape)
    n_entries, fill_gpu, fill_value = 16 * n_linked, none, np.zeros(0)
    while len(fill_gpu) < n_entries:
        fill_gpu, fill_value = np.zeros(n_entries, np.int32), np.zeros(n_entries)
        n_entries = eliminate(
            graph.row_start, graph.row_edge, graph.edge2gpu, graph.n_gpus, order, pivots, fill_start,
            fill_gpu, fill_value,
        )  # fmt: skip
    return order, fill_start, fill_gpu[:n_entries], pivots, fill_value[:n_entries]


@inlined
def _set_up_layer(layer, row_start, row_edge, edge2gpu, matrix, linked, degree):
    """Write a layer's matrix of springs, which GPUs it links, and each GPU's degree (-1: no link)."""
    n_gpus = len(degree)
    matrix[:] = 0.0
    linked[:] = False
    degree[:] = -1
    for row in range(row_start[layer], row_start[layer + 1]):
        first, last = row_edge[row], row_edge[row + 1]
        for a in range(first, last):
            degree[edge2gpu[a]] = 0
            for b in range(first, last):
                matrix[edge2gpu[a], edge2gpu[b]] += (a == b) - 1.0 / (last - first)
                if a != b:
                    linked[edge2gpu[a], edge2gpu[b]] = True
    for gpu in range(n_gpus):
        if degree[gpu] == 0:
            for other in range(n_gpus):
                degree[gpu] += linked[gpu, other]


@inlined
def _least_degree(degree):
    """The GPU of least degree that is not eliminated; -1 if there is none."""
    gpu = -1
    for other in range(len(degree)):
        if degree[other] >= 0 and (gpu < 0 or degree[other] < degree[gpu]):
            gpu = other
    return gpu


@inlined
def _eliminate_gpu(gpu, near, pivot, matrix, linked, degree, n_entries, fill_gpu, fill_value):
    """Subtract a GPU's row from those of its neighbours ``near``; returns the new number of entries."""
    degree[gpu] = -1
    for j in range(len(near)):
        other = near[j]
        factor = matrix[other, gpu] * pivot
        if n_entries < len(fill_gpu):
            fill_gpu[n_entries] = other
            fill_value[n_entries] = factor
        n_entries += 1
        linked[other, gpu] = False
        degree[other] -= 1
        for k in range(len(near)):
            matrix[other, near[k]] -= factor * matrix[gpu, near[k]]
            if j != k and not linked[other, near[k]]:
                linked[other, near[k]] = True
                degree[other] += 1
    return n_entries


@compiled
def eliminate(row_start, row_edge, edge2gpu, n_gpus, order, pivots, fill_start, fill_gpu, fill_value):
    """Write the factors of all layers. Returns how many entries they have; only those for which ``fill_gpu``
    is long enough are written.

    order       [layers, gpus] int32: GPUs in the order of elimination, those without a shared expert left out
    pivots      [layers, gpus] float64: 1 / D in that order; 0 for the last of each connected component
    fill_start  [layers * gpus + 1] int32: entries of the i-th eliminated are fill_gpu and fill_value
                [fill_start[i] : fill_start[i + 1]]

    Sums, products and quotients in a fixed order: the same bits on every machine.
    """
    n_entries = 0
    fill_start[0] = 0
    matrix = np.zeros((n_gpus, n_gpus))
    linked = np.zeros((n_gpus, n_gpus), dtype=np.bool_)
    degree = np.zeros(n_gpus, dtype=np.int64)
    near = np.zeros(n_gpus, dtype=np.int64)
    for layer in range(len(row_start) - 1):
        _set_up_layer(layer, row_start, row_edge, edge2gpu, matrix, linked, degree)
        for at in range(layer * n_gpus, (layer + 1) * n_gpus):
            gpu = _least_degree(degree)
            if gpu < 0:
                fill_start[at + 1] = n_entries
                continue
            n = 0
            for other in range(n_gpus):
                if linked[gpu, other]:
                    near[n] = other
                    n += 1
            i = at - layer * n_gpus
            order[layer, i] = gpu
            pivots[layer, i] = 1.0 / matrix[gpu, gpu] if n > 0 else 0.0
            n_entries = _eliminate_gpu(
                gpu, near[:n], pivots[layer, i], matrix, linked, degree, n_entries, fill_gpu, fill_value
            )
            fill_start[at + 1] = n_entries
    return n_entries
