"""Pieces of the router's kernel: a first division of demand such that excess spreads like a current.

For large sparse graphs. The factors come from spread.py. All is sums, products and quotients in float64
in a fixed order, which IEEE 754 rounds in the same way everywhere.
"""

import numpy as np

from evenload.native.kernel import inlined


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
