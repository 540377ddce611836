"""Least-majorised loads: move load to less loaded GPUs until the sorted loads are the least possible.

Load moved from one GPU to another along edges whose flow may shrink is an exchange; if no single exchange
helps, no routing is better in the sorted order (loads over a bipartite graph are an integral base polytope,
where the local optimum of such an order is global; see Frank and Murota, "Decreasing minimization on M-convex
sets").
"""

import numpy as np

from evenload.native.kernel import compiled, inlined

UNSEEN, ROOT = -2, -1


@inlined
def _lowest_reachable(
    layer, root, row_start, row_edge, edge2gpu, gpu_start, gpu_edges, gpu_rows, speeds, capacity, flow, load,
    parent, order, edge_up, edge_down, seen,
):  # fmt: skip
    """The GPU of least load / speed that load of ``root`` can be moved to; ``root`` if none is lower."""
    first_row, base = row_start[layer], layer * len(load)
    parent[:] = UNSEEN
    seen[: row_start[layer + 1] - first_row] = 0
    parent[root] = ROOT
    order[0] = root
    head, n, best = 0, 1, root
    while head < n:
        gpu = order[head]
        head += 1
        if load[gpu] * speeds[best] < load[best] * speeds[gpu]:
            best = gpu
        for i in range(gpu_start[base + gpu], gpu_start[base + gpu + 1]):
            edge, row = gpu_edges[i], gpu_rows[i]
            if seen[row - first_row] != 0 or flow[edge] <= 0:
                continue
            seen[row - first_row] = 1
            for other in range(row_edge[row], row_edge[row + 1]):
                child = edge2gpu[other]
                if parent[child] == UNSEEN and (capacity is None or flow[other] < capacity[other]):
                    parent[child] = gpu
                    edge_up[child] = edge
                    edge_down[child] = other
                    order[n] = child
                    n += 1
    return best


@inlined
def _augment(best, most, capacity, flow, load, parent, edge_up, edge_down):
    """Move up to ``most`` from the walk's root to ``best``; the path's edges may allow less."""
    gpu = best
    while parent[gpu] >= 0:
        most = min(most, flow[edge_up[gpu]])
        if capacity is not None:
            most = min(most, capacity[edge_down[gpu]] - flow[edge_down[gpu]])
        gpu = parent[gpu]
    load[gpu] -= most
    load[best] += most
    gpu = best
    while parent[gpu] >= 0:
        flow[edge_up[gpu]] -= most
        flow[edge_down[gpu]] += most
        gpu = parent[gpu]


@compiled
def even_out(
    first, last, row_start, row_edge, edge2gpu, edge2slot, gpu_start, gpu_edges, gpu_rows, speeds, capacity,
    flow, loads, quotas,
):  # fmt: skip
    """After ``route_layers``, same arrays: least-majorised loads for layers ``first`` to ``last - 1``.

    speeds [gpus] int64, zero only for a dead GPU; flow, loads and quotas are changed in place.
    """
    width = loads.shape[1]
    for layer in range(first, last):
        width = max(width, row_start[layer + 1] - row_start[layer])
    ints = np.zeros((5, width), dtype=np.int32)
    for layer in range(first, last):
        load = loads[layer]
        changed = True
        while changed:
            changed = False
            root = 0
            while root < len(load):
                if speeds[root] == 0 or load[root] == 0:
                    root += 1
                    continue
                best = _lowest_reachable(
                    layer, root, row_start, row_edge, edge2gpu, gpu_start, gpu_edges, gpu_rows, speeds,
                    capacity, flow, load, ints[0], ints[1], ints[2], ints[3], ints[4],
                )  # fmt: skip
                if (load[best] + 1) * speeds[root] >= load[root] * speeds[best]:
                    root += 1
                    continue
                gap = load[root] * speeds[best] - load[best] * speeds[root]
                _augment(
                    best,
                    max(gap // (speeds[root] + speeds[best]), 1),
                    capacity,
                    flow,
                    load,
                    ints[0],
                    ints[2],
                    ints[3],
                )
                changed = True
        for edge in range(row_edge[row_start[layer]], row_edge[row_start[layer + 1]]):
            quotas[layer, edge2slot[edge]] = flow[edge]
