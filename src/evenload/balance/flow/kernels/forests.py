"""Pieces of the router's kernel: excess moved along whole forests, one visit per GPU.

Some forests are made once per graph, from the placement alone, with the connected components of GPUs.
"""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph
from evenload.balance.flow.kernels.level import raise_level
from evenload.native.kernel import compiled, inlined

ROOT = -1  # in ``above``
UNSEEN, MET = -1, 0  # in ``distance`` while a forest grows


@inlined
def _walk(graph, layer, root, n, capacity, flow, work):
    """Extend the forest ``order[:n]``, breadth first, by all GPUs that ``root``'s load can reach; new n."""
    order, above, edge_up, edge_down = work.order, work.above, work.edge_up, work.edge_down
    met, seen = work.distance, work.seen
    gpu_start, gpu_edges, gpu_rows = graph.gpu_start, graph.gpu_edges, graph.gpu_rows
    row_edge, edge2gpu = graph.row_edge, graph.edge2gpu
    first_row, base = graph.row_start[layer], layer * graph.n_gpus
    met[root] = MET
    order[n] = root
    above[n] = ROOT
    head, n = n, n + 1
    while head < n:
        gpu = order[head]
        head += 1
        for i in range(gpu_start[base + gpu], gpu_start[base + gpu + 1]):
            edge, row = gpu_edges[i], gpu_rows[i]
            if seen[row - first_row] != 0 or flow[edge] <= 0:
                continue
            seen[row - first_row] = 1
            for other in range(row_edge[row], row_edge[row + 1]):
                child = edge2gpu[other]
                if met[child] == UNSEEN and (capacity is None or flow[other] < capacity[other]):
                    met[child] = MET
                    order[n] = child
                    above[n] = gpu
                    edge_up[n] = edge
                    edge_down[n] = other
                    n += 1
    return n


@inlined
def grow_forest(graph, layer, root, speeds, capacity, flow, work, cut, summary):
    """Breadth-first forest over all that excess can reach. Returns (its size, whether the level rose)."""
    slack, met = work.slack, work.distance
    for gpu in range(graph.n_gpus):
        met[gpu] = UNSEEN
    for row in range(graph.row_start[layer + 1] - graph.row_start[layer]):
        work.seen[row] = 0
    n, room, rose = 0, 0, False
    while root < graph.n_gpus:
        before, n = n, _walk(graph, layer, root, n, capacity, flow, work)
        for i in range(before, n):
            room += slack[work.order[i]]
        if room < 0:
            room = raise_level(graph, n, speeds, work, cut, summary)
            rose = True
        root = 0
        while root < graph.n_gpus and (met[root] != UNSEEN or slack[root] >= 0):
            root += 1
    return n, rose


@inlined
def move(source, target, n, flow, slack, giver, taker):
    """Move ``n`` from edge ``source`` of GPU ``giver`` to edge ``target`` of GPU ``taker``."""
    flow[source] -= n
    flow[target] += n
    slack[giver] += n
    slack[taker] -= n


@inlined
def flow_along(n, order, above, edge_up, edge_down, capacity, flow, slack, room):
    """Move excess along a forest: up from subtrees that are too full, then down into those with room.

    GPU order[i] hangs below GPU above[i], which comes earlier, by edges edge_up[i] and edge_down[i] of one
    row.
    """
    for i in range(n):
        room[order[i]] = slack[order[i]]
    for i in range(n - 1, -1, -1):  # leaves first
        gpu, over, up, down = order[i], above[i], edge_up[i], edge_down[i]
        if over == ROOT:
            continue
        surplus = min(max(-room[gpu], 0), flow[down])
        if capacity is not None:
            surplus = min(surplus, capacity[up] - flow[up])
        move(down, up, surplus, flow, slack, gpu, over)
        space = min(max(room[gpu], 0), flow[up])
        if capacity is not None:
            space = min(space, capacity[down] - flow[down])
        room[over] += space - surplus
    for i in range(n):  # roots first
        gpu, over, up, down = order[i], above[i], edge_up[i], edge_down[i]
        if over == ROOT:
            continue
        step = min(room[gpu], -slack[over], flow[up])
        if capacity is not None:
            step = min(step, capacity[down] - flow[down])
        move(up, down, max(step, 0), flow, slack, over, gpu)


N_TREES = 3  # spanning forests for each layer, from different roots


def spanning_forests(graph: ReplicaGraph) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """component [layers, gpus], n_linked [layers] and forests [layers, trees, 4, gpus] of ``graph``, int32.

    A component has the number of one of its GPUs. The rest is as in ``grow_forests``.
    """
    component = np.zeros((graph.n_layers, graph.n_gpus), np.int32)
    n_linked = np.zeros(graph.n_layers, np.int32)
    forests = np.zeros((graph.n_layers, N_TREES, 4, graph.n_gpus), np.int32)
    grow_forests(
        graph.row_start, graph.row_edge, graph.edge2gpu, graph.gpu_start, graph.gpu_edges, graph.gpu_rows,
        component, n_linked, forests,
    )  # fmt: skip
    return component, n_linked, forests


@inlined
def _grow_tree(
    layer, tree, root, n, row_start, row_edge, edge2gpu, gpu_start, gpu_edges, gpu_rows, component, forest,
    seen, met,
):  # fmt: skip
    """Append the tree of all GPUs connected to ``root`` to the forest's first ``n``; returns the new n."""
    base = layer * component.shape[1]
    order, above, up, down = forest
    met[root] = tree + 1
    order[n] = root
    above[n] = -1
    head, n = n, n + 1
    while head < n:
        gpu = order[head]
        head += 1
        component[layer, gpu] = root
        at, until = gpu_start[base + gpu], gpu_start[base + gpu + 1]
        for turn in range(at, until):
            i = at + (turn - at + tree) % (until - at)
            row = gpu_rows[i]
            if seen[row - row_start[layer]] == tree + 1:
                continue
            seen[row - row_start[layer]] = tree + 1
            for edge in range(row_edge[row], row_edge[row + 1]):
                child = edge2gpu[edge]
                if met[child] != tree + 1:
                    met[child] = tree + 1
                    order[n] = child
                    above[n] = gpu
                    up[n] = gpu_edges[i]
                    down[n] = edge
                    n += 1
    return n


@compiled
def grow_forests(row_start, row_edge, edge2gpu, gpu_start, gpu_edges, gpu_rows, component, n_linked, forests):
    """Write component [layers, gpus], n_linked [layers] and forests [layers, trees, 4, gpus], all int32.

    A forest is its ``n_linked`` GPUs (those with a shared expert) in breadth-first order, and for each of
    them the GPU above it (-1 for a root), that one's edge and its own edge in the row that joins them. The
    first forest starts at the lowest GPU, each later one at the last GPU of the one before, which is far.
    """
    n_layers, n_gpus = component.shape
    for layer in range(n_layers):
        seen = np.zeros(row_start[layer + 1] - row_start[layer], dtype=np.int32)
        met = np.zeros(n_gpus, dtype=np.int32)
        base = layer * n_gpus
        for tree in range(forests.shape[1]):
            n = 0
            for start in range(n_gpus if tree == 0 else n_linked[layer]):
                root = start if tree == 0 else forests[layer, tree - 1, 0, n_linked[layer] - 1 - start]
                if met[root] == tree + 1:
                    continue
                if gpu_start[base + root] == gpu_start[base + root + 1]:
                    component[layer, root] = root
                    continue
                n = _grow_tree(
                    layer, tree, root, n, row_start, row_edge, edge2gpu, gpu_start, gpu_edges, gpu_rows,
                    component, forests[layer, tree], seen, met,
                )  # fmt: skip
            n_linked[layer] = n
