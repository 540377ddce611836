"""Pieces of the router's kernel: walks from the most overloaded GPU to those with room, and preflow waves."""

import numpy as np

from evenload.balance.flow.kernels.forests import ROOT, move
from evenload.balance.flow.kernels.level import raise_level
from evenload.native.kernel import inlined

MOST_WALKS = 64  # before forests
MOST_WITH_ROOM = 8  # for it to pay to flag their neighbours


@inlined
def _flag_neighbours_of_room(graph, layer, flow, work):
    """Set ``is_near`` of the GPUs that share an expert with one that has room, as long as those are few."""
    is_near, n = work.is_near, 0
    base = layer * graph.n_gpus
    for gpu in range(graph.n_gpus):
        is_near[gpu] = 0
        n += work.slack[gpu] > 0
    if n > MOST_WITH_ROOM:
        return
    for gpu in range(graph.n_gpus):
        if work.slack[gpu] > 0:
            for i in range(graph.gpu_start[base + gpu], graph.gpu_start[base + gpu + 1]):
                row = graph.gpu_rows[i]
                for edge in range(graph.row_edge[row], graph.row_edge[row + 1]):
                    if flow[edge] > 0:
                        is_near[graph.edge2gpu[edge]] = 1


@inlined
def _augment(root, child, capacity, flow, work):
    """Move excess of the walk's root to ``child``. Returns whether the path there can still carry load."""
    slack, above, up, down = work.slack, work.above, work.edge_up, work.edge_down
    step, is_open, gpu = min(slack[child], -slack[root]), True, child
    while above[gpu] != ROOT:
        most = flow[up[gpu]]
        if capacity is not None:
            most = min(most, capacity[down[gpu]] - flow[down[gpu]])
        if most <= step:
            step, is_open = most, False
        gpu = above[gpu]
    gpu = child
    while above[gpu] != ROOT:
        flow[up[gpu]] -= step
        flow[down[gpu]] += step
        gpu = above[gpu]
    slack[child] -= step
    slack[root] += step
    return is_open


@inlined
def _walk_to_room(graph, layer, root, stamp, capacity, flow, work):
    """Move excess of ``root`` to the nearest GPUs with room, until none is left or a path is used up.

    ``above`` and the edges to it are indexed by GPU here; GPUs and rows met by this walk have its ``stamp``.
    The order is breadth first, but GPUs next to one with room come before all others. Returns 0, or the
    number of GPUs in ``order`` if they are all that the excess can reach and none of them has room.
    """
    order, met, seen, above = work.order, work.distance, work.seen, work.above
    gpu_start, gpu_edges, gpu_rows = graph.gpu_start, graph.gpu_edges, graph.gpu_rows
    row_edge, edge2gpu = graph.row_edge, graph.edge2gpu
    first_row, base = graph.row_start[layer], layer * graph.n_gpus
    met[root], above[root], order[0] = stamp, ROOT, root
    head, n, n_near = 0, 1, 0
    while head < n:
        if n_near > 0:
            n_near -= 1
            gpu = np.int64(work.near[n_near])
        else:
            gpu = np.int64(order[head])
            head += 1
        for i in range(gpu_start[base + gpu], gpu_start[base + gpu + 1]):
            edge, row = gpu_edges[i], gpu_rows[i]
            if seen[row - first_row] == stamp or flow[edge] <= 0:
                continue
            seen[row - first_row] = stamp
            for other in range(row_edge[row], row_edge[row + 1]):
                child = edge2gpu[other]
                if met[child] == stamp or (capacity is not None and flow[other] >= capacity[other]):
                    continue
                met[child] = stamp
                order[n] = child
                n += 1
                above[child], work.edge_up[child], work.edge_down[child] = gpu, edge, other
                if work.slack[child] > 0:
                    if not _augment(root, child, capacity, flow, work) or work.slack[root] == 0:
                        return 0
                elif work.is_near[child] != 0:
                    work.near[n_near] = child
                    n_near += 1
    return n


@inlined
def most_overloaded(slack):
    """The GPU with the least slack."""
    least, worst = slack[0], 0
    for gpu in range(1, len(slack)):
        least = min(least, slack[gpu])
    while slack[worst] > least:
        worst += 1
    return worst


@inlined
def walk_from_the_worst(graph, layer, speeds, capacity, flow, work, cut, summary):
    """Walk from the most overloaded GPU, again and again, a limited number of times."""
    slack = work.slack
    work.distance[: graph.n_gpus] = 0
    work.seen[: graph.row_start[layer + 1] - graph.row_start[layer]] = 0
    _flag_neighbours_of_room(graph, layer, flow, work)
    for stamp in range(1, MOST_WALKS + 1):
        root = most_overloaded(slack)
        if slack[root] >= 0:
            return
        n = _walk_to_room(graph, layer, root, stamp, capacity, flow, work)
        if n > 0:
            raise_level(graph, n, speeds, work, cut, summary)
            _flag_neighbours_of_room(graph, layer, flow, work)


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
