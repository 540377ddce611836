"""A first division of demand, for large sparse graphs, such that excess spreads like a current.

Each row is taken for a star of equal springs between its GPUs. The springs' equilibrium moves load along all
paths at once, a little along each, so that hardly any edge runs empty; a tree would use one path only. The
springs' matrix depends on the placement alone and is sparse: it is factored once per graph as L D L' by
elimination, least degree first. All is sums, products and quotients in float64 in a fixed order, which IEEE
754 rounds in the same way everywhere.
"""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph
from evenload.native.kernel import compiled, inlined


@inlined
def _solve_springs(graph, layer, rest):
    """Solve the springs' equations: ``rest`` [gpus] is each GPU's excess, and becomes its potential."""
    base, n = layer * graph.n_gpus, graph.n_linked[layer]
    for i in range(base, base + n):
        x = rest[graph.spread_order[i]]
        for j in range(graph.fill_start[i], graph.fill_start[i + 1]):
            rest[graph.fill_gpu[j]] -= graph.fill_value[j] * x
    for i in range(base + n - 1, base - 1, -1):
        gpu = graph.spread_order[i]
        x, y = rest[gpu] * graph.pivots[i], 0.0
        first, last = graph.fill_start[i], graph.fill_start[i + 1]
        for j in range(first, last - 1, 2):  # two sums side by side, in a fixed order
            x -= graph.fill_value[j] * rest[graph.fill_gpu[j]]
            y -= graph.fill_value[j + 1] * rest[graph.fill_gpu[j + 1]]
        if (last - first) % 2:
            x -= graph.fill_value[last - 1] * rest[graph.fill_gpu[last - 1]]
        rest[gpu] = x + y


@inlined
def _cut_by_potential(first, last, n, edge2gpu, rest, flow, load):
    """Divide ``n`` over edges first..last: less for GPUs of higher potential."""
    middle = 0.0
    for edge in range(first, last):
        middle += rest[edge2gpu[edge]]
    middle = (middle + n) / (last - first)
    left = n
    for edge in range(first, last):
        share = min(np.int64(max(middle - rest[edge2gpu[edge]], 0.0)), left)
        flow[edge] = share
        left -= share
    for edge in range(first, last):
        flow[edge] += edge - first < left
        load[edge2gpu[edge]] += flow[edge]


@inlined
def spread(graph, layer, demand, total, flow, load, work):
    """Divide the demand of every row such that excess spreads like a current."""
    rest, sums, counts = work.rest, work.sums, work.counts
    first_row, last_row, base = graph.row_start[layer], graph.row_start[layer + 1], layer * graph.n_gpus
    for gpu in range(graph.n_gpus):
        rest[gpu] = work.room[gpu]
    for row in range(first_row, last_row):
        first, last = graph.row_edge[row], graph.row_edge[row + 1]
        share = demand[graph.row2log[row]] / (last - first)
        for edge in range(first, last):
            rest[graph.edge2gpu[edge]] += share
    if graph.n_components[layer] == 1:
        mean = total / graph.n_gpus
        for gpu in range(graph.n_gpus):
            rest[gpu] -= mean
    else:
        for gpu in range(graph.n_gpus):
            sums[gpu] = 0.0
            counts[gpu] = 0.0
        for gpu in range(graph.n_gpus):
            sums[graph.component[base + gpu]] += rest[gpu]
            counts[graph.component[base + gpu]] += 1.0
        for gpu in range(graph.n_gpus):
            where = graph.component[base + gpu]
            rest[gpu] -= sums[where] / counts[where]
    _solve_springs(graph, layer, rest)
    for row in range(first_row, last_row):
        first, last = graph.row_edge[row], graph.row_edge[row + 1]
        _cut_by_potential(first, last, demand[graph.row2log[row]], graph.edge2gpu, rest, flow, load)


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
