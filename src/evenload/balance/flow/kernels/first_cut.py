"""Pieces of the router's kernel: load that cannot move, and a first division of the rest over replicas."""

import numpy as np

from evenload.balance.flow.kernels.status import (
    BAD_CAPACITY,
    MOST_DEMAND,
    NEGATIVE,
    OVERFLOW,
    ROUTED,
    UNPLACED_DEMAND,
)
from evenload.native.kernel import inlined

FEW = 1 << 31  # factors below this multiply safely


@inlined
def place_homes(graph, layer, demand, fixed, load):
    """Write load that cannot move to ``load`` [gpus + 2]. Returns the status, and the load of all experts.

    Experts with several replicas are summed in ``load[n_gpus]``, those without any in ``load[n_gpus + 1]``.
    """
    n_gpus, first = graph.n_gpus, layer * len(demand)
    bits, total = np.int64(0), np.int64(0)
    for gpu in range(n_gpus + 2):
        load[gpu] = 0
    if fixed is not None:
        for gpu in range(n_gpus):
            if fixed[gpu] < 0 or (fixed[gpu] > 0 and not graph.alive[gpu]):
                return NEGATIVE, total
            if fixed[gpu] >= MOST_DEMAND:
                return OVERFLOW, total
            load[gpu] = fixed[gpu]
            total += fixed[gpu]
    for expert in range(len(demand)):
        bits |= demand[expert]
        total += demand[expert]
    if bits < 0:
        return NEGATIVE, total
    if bits >= MOST_DEMAND or total >= MOST_DEMAND:  # any of them by itself: their sum may have wrapped round
        return OVERFLOW, total
    for expert in range(len(demand)):
        load[graph.home[first + expert]] += demand[expert]
    return UNPLACED_DEMAND if load[n_gpus + 1] > 0 else ROUTED, total


@inlined
def _cut_evenly(first, last, n, flow):
    """Divide ``n`` equally over edges first..last; the first ones get the remainder."""
    share = int(n / (last - first))  # exact below 2**39, and several times faster than whole-number division
    left = n - share * (last - first)
    for edge in range(first, last):
        flow[edge] = share + (edge - first < left)


@inlined
def _cut_by_speed(first, last, n, edge2gpu, speeds, flow):
    """Divide ``n`` over edges first..last in proportion to the speeds of their GPUs."""
    left, speed = n, 0
    for edge in range(first, last):
        speed += speeds[edge2gpu[edge]]
    for edge in range(first, last):
        flow[edge] = n * speeds[edge2gpu[edge]] // speed
        left -= flow[edge]
    for edge in range(first, last):
        flow[edge] += edge - first < left


@inlined
def _rescale(first, last, n, flow):
    """Divide ``n`` in the proportions of the last batch. Returns False if those are not known."""
    before = 0
    for edge in range(first, last):
        before += flow[edge]
    if before <= 0 or before >= FEW or n >= FEW:
        return False
    left = n
    for edge in range(first, last):
        flow[edge] = flow[edge] * n // before
        left -= flow[edge]
    for edge in range(first, last):
        flow[edge] += edge - first < left
    return True


@inlined
def _fit(first, last, capacity, flow):
    """Move flow above an edge's capacity to its row's other edges. Returns False if they are too small."""
    over = 0
    for edge in range(first, last):
        if flow[edge] > capacity[edge]:
            over += flow[edge] - capacity[edge]
            flow[edge] = capacity[edge]
    for edge in range(first, last):
        step = min(over, capacity[edge] - flow[edge])
        flow[edge] += step
        over -= step
    return over == 0


@inlined
def start(graph, layer, demand, warm, speeds, capacity, flow, load):
    """Divide the demand of every row over its edges. Returns the status."""
    for row in range(graph.row_start[layer], graph.row_start[layer + 1]):
        first, last = graph.row_edge[row], graph.row_edge[row + 1]
        n = demand[graph.row2log[row]]
        if not (warm and _rescale(first, last, n, flow)):
            if speeds is None:
                _cut_evenly(first, last, n, flow)
            else:
                _cut_by_speed(first, last, n, graph.edge2gpu, speeds, flow)
        if capacity is not None and not _fit(first, last, capacity, flow):
            return BAD_CAPACITY
        for edge in range(first, last):
            load[graph.edge2gpu[edge]] += flow[edge]
    return ROUTED
