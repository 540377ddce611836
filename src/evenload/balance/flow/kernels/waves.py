"""Pieces of the router's kernel: excess pushed along exact shortest distances, as preflow waves."""

from evenload.balance.flow.kernels.forests import move
from evenload.balance.flow.kernels.level import raise_level
from evenload.native.kernel import inlined


@inlined
def _measure(graph, layer, capacity, flow, work):
    """Distance of each GPU, and of each row, to the nearest GPU with room. Returns how many GPUs have one."""
    slack, distance, order, seen = work.slack, work.distance, work.order, work.seen
    gpu_start, gpu_edges, gpu_rows = graph.gpu_start, graph.gpu_edges, graph.gpu_rows
    row_edge, edge2gpu = graph.row_edge, graph.edge2gpu
    first_row, base = graph.row_start[layer], layer * graph.n_gpus
    n, head = 0, 0
    for gpu in range(graph.n_gpus):
        distance[gpu] = -1
        if slack[gpu] > 0:
            distance[gpu] = 0
            order[n] = gpu
            n += 1
    for row in range(graph.row_start[layer + 1] - first_row):
        seen[row] = -1
    while head < n:
        gpu = order[head]
        head += 1
        for i in range(gpu_start[base + gpu], gpu_start[base + gpu + 1]):
            edge, row = gpu_edges[i], gpu_rows[i]
            if seen[row - first_row] >= 0 or (capacity is not None and flow[edge] >= capacity[edge]):
                continue
            seen[row - first_row] = distance[gpu]
            for other in range(row_edge[row], row_edge[row + 1]):
                giver = edge2gpu[other]
                if flow[other] > 0 and distance[giver] < 0:
                    distance[giver] = distance[gpu] + 1
                    order[n] = giver
                    n += 1
    return n


@inlined
def wave_pass(graph, layer, speeds, capacity, flow, work, cut, summary):
    """Push excess one step closer to room, farthest GPUs first. Returns whether the level rose instead."""
    slack, distance, order, seen = work.slack, work.distance, work.order, work.seen
    gpu_start, gpu_edges, gpu_rows = graph.gpu_start, graph.gpu_edges, graph.gpu_rows
    row_edge, edge2gpu = graph.row_edge, graph.edge2gpu
    first_row, base = graph.row_start[layer], layer * graph.n_gpus
    n = _measure(graph, layer, capacity, flow, work)
    n_cut, stuck = 0, False
    for gpu in range(graph.n_gpus):
        if distance[gpu] < 0 and graph.alive[gpu]:
            order[n + n_cut] = gpu
            n_cut += 1
            stuck = stuck or slack[gpu] < 0
    if stuck:
        for i in range(n_cut):
            order[i] = order[n + i]
        raise_level(graph, n_cut, speeds, work, cut, summary)
        return True
    for j in range(n - 1, -1, -1):
        gpu = order[j]
        near = distance[gpu] - 1
        if near < 0:
            break
        for i in range(gpu_start[base + gpu], gpu_start[base + gpu + 1]):
            if slack[gpu] >= 0:
                break
            edge, row = gpu_edges[i], gpu_rows[i]
            if flow[edge] <= 0 or seen[row - first_row] != near:
                continue
            for other in range(row_edge[row], row_edge[row + 1]):
                taker = edge2gpu[other]
                if distance[taker] != near:
                    continue
                step = min(flow[edge], -slack[gpu])
                if near == 0:
                    step = min(step, slack[taker])
                if capacity is not None:
                    step = min(step, capacity[other] - flow[other])
                if step > 0:
                    move(edge, other, step, flow, slack, gpu, taker)
    return False
