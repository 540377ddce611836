"""Connected components of GPUs, and trees that span them: made once per graph, from the placement alone."""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph
from evenload.native.kernel import compiled, inlined

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
