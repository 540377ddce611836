"""Pieces of the router's kernel: excess moved along whole forests, one visit per GPU."""

from evenload.balance.flow.kernels.level import raise_level
from evenload.native.kernel import inlined

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
