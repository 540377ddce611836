"""The router, compiled: integer min-max flow of expert demand over GPUs, layer by layer.

Per layer the state is ``slack[gpu] = limit[gpu] - load[gpu]`` and ``flow[edge]``. The limit starts at a lower
bound that needs no proof (the mean, or the heaviest load that cannot move). Every expert is cut evenly over
its replicas, or, where load has far to go (see spread.py), such that excess flows to all sides like a
current. Trees known beforehand carry off most of what is left. Then, while some slack is negative:

- a *walk* goes breadth first from the most overloaded GPU along edges whose flow may shrink, and leads excess
  to the GPUs with room that it meets;
- should that take too many of them, a *forest pass* goes from all overloaded GPUs at once and moves
  excess along that forest, up from each subtree that is too full and down into each that has room, one visit
  per GPU;
- if the GPUs reached so far have no room together, nothing can leave them: they are a certificate, and the
  limit rises exactly as far as they force it to, never further;
- should a few forest passes not be enough, *wave passes* push along exact shortest distances to free room,
  which bounds the number of passes (preflow waves after Karzanov; the discrete Newton step on the limit is
  Dinkelbach's).

What is decided in whole numbers is so in int64; the spread is in float64, by sums, products and quotients in
a fixed order, which IEEE 754 rounds alike everywhere. So the same input gives the same bits on every rank.
Nothing here calls a compiled function of another file: numba's cache on disk would not notice when that one
changes.
"""

from collections import namedtuple

import numpy as np

from .jit import compiled, inlined

__all__ = ["BAD_CAPACITY", "NEGATIVE", "OVERFLOW", "ROUTED", "UNPLACED_DEMAND", "route_layers"]

ROUTED, NEGATIVE, UNPLACED_DEMAND, BAD_CAPACITY, OVERFLOW = range(5)  # status of a layer
UNPLACED = -2  # in ``home``, as in graph.py
UNSEEN, MET = -1, 0  # in ``distance`` while a forest grows
ROOT = -1  # in ``above``
N_TREES = 3  # as in plant.py
MOST_WALKS = 64  # before forests
FOREST_PASSES = 3  # before waves, counted anew whenever the limit rises
MOST_DEMAND = 1 << 39  # in one layer: products with sums of speeds (22 bits) must stay in 64 bits
FEW = 1 << 31  # factors below this multiply safely

Graph = namedtuple(
    "Graph",
    "n_gpus alive home home_slot row_start row2log row_edge edge2gpu edge2slot gpu_start gpu_edges gpu_rows "
    "component n_linked forests spread_order fill_start fill_gpu pivots fill_value",
)
Work = namedtuple(
    "Work", "slack limit room level order above edge_up edge_down distance seen rest sums counts"
)


@inlined
def _place_homes(graph, layer, demand, fixed, load):
    """Load that cannot move. Returns the status."""
    total = 0
    for gpu in range(graph.n_gpus):
        load[gpu] = 0
    if fixed is not None:
        for gpu in range(graph.n_gpus):
            if fixed[gpu] < 0 or (fixed[gpu] > 0 and not graph.alive[gpu]):
                return NEGATIVE
            if fixed[gpu] >= MOST_DEMAND:
                return OVERFLOW
            load[gpu] = fixed[gpu]
            total += fixed[gpu]
    for expert in range(len(demand)):
        n = demand[expert]
        if n < 0:
            return NEGATIVE
        if n >= MOST_DEMAND:  # each by itself: their sum might wrap round to anything
            return OVERFLOW
        total += n
        home = graph.home[layer * len(demand) + expert]
        if home >= 0:
            load[home] += n
        elif home == UNPLACED and n > 0:
            return UNPLACED_DEMAND
    return OVERFLOW if total >= MOST_DEMAND else ROUTED


@inlined
def _cut_evenly(first, last, n, flow):
    """Cut ``n`` over edges first..last, the first ones taking what is left over."""
    share = int(n / (last - first))  # exact below 2**39, and several times faster than whole-number division
    left = n - share * (last - first)
    for edge in range(first, last):
        flow[edge] = share + (edge - first < left)


@inlined
def _cut_by_speed(first, last, n, edge2gpu, speeds, flow):
    """Cut ``n`` over edges first..last in proportion to the speeds of their GPUs."""
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
    """Cut ``n`` as the last batch's flow was cut. False if that one says nothing."""
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
    """Move what exceeds an edge's capacity to its row's other edges. False if the row is too small."""
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
def _start(graph, layer, demand, warm, speeds, capacity, flow, load):
    """First cut of every row. Returns the status."""
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


@inlined
def _come_to_rest(graph, layer, rest):
    """Solve for the springs' rest: ``rest`` [gpus] is what each GPU has too much, and becomes its height."""
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
def _cut_by_height(first, last, n, edge2gpu, rest, flow, load):
    """Cut ``n`` over edges first..last: evenly, less for GPUs that stand higher than the others."""
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
def _spread(graph, layer, demand, flow, load, work):
    """First cut of every row, such that what is too much anywhere flows to all sides like a current."""
    rest, sums, counts = work.rest, work.sums, work.counts
    first_row, last_row, base = graph.row_start[layer], graph.row_start[layer + 1], layer * graph.n_gpus
    for gpu in range(graph.n_gpus):
        rest[gpu] = load[gpu]
        sums[gpu] = 0.0
        counts[gpu] = 0.0
    for row in range(first_row, last_row):
        first, last = graph.row_edge[row], graph.row_edge[row + 1]
        share = demand[graph.row2log[row]] / (last - first)
        for edge in range(first, last):
            rest[graph.edge2gpu[edge]] += share
    for gpu in range(graph.n_gpus):
        sums[graph.component[base + gpu]] += rest[gpu]
        counts[graph.component[base + gpu]] += 1.0
    for gpu in range(graph.n_gpus):
        where = graph.component[base + gpu]
        rest[gpu] -= sums[where] / counts[where]
    _come_to_rest(graph, layer, rest)
    for row in range(first_row, last_row):
        first, last = graph.row_edge[row], graph.row_edge[row + 1]
        _cut_by_height(first, last, demand[graph.row2log[row]], graph.edge2gpu, rest, flow, load)


@inlined
def _set_limits(graph, work, speeds, load):
    """Limits and slack from the level, which is a fraction level[0] / level[1] of load per speed."""
    for gpu in range(graph.n_gpus):
        if not graph.alive[gpu]:
            work.limit[gpu] = 0
        elif speeds is None:
            work.limit[gpu] = work.level[0]
        else:
            work.limit[gpu] = work.level[0] * speeds[gpu] // work.level[1]
        work.slack[gpu] = work.limit[gpu] - load[gpu]


@inlined
def _first_level(graph, layer, speeds, work, load, fixed_load, cut, summary):
    """Lower bounds that need no search: the mean of each connected component, what cannot leave a GPU."""
    component, sums, weights = graph.component, work.slack, work.limit
    for gpu in range(graph.n_gpus):
        sums[gpu] = 0
        weights[gpu] = 0
    base = layer * graph.n_gpus
    for gpu in range(graph.n_gpus):
        sums[component[base + gpu]] += load[gpu]
        weights[component[base + gpu]] += graph.alive[gpu] if speeds is None else speeds[gpu]
    num, den, where, single = -1, 1, 0, False
    for gpu in range(graph.n_gpus):
        if sums[gpu] * den > num * weights[gpu]:
            num, den, where = sums[gpu], weights[gpu], gpu
    for gpu in range(graph.n_gpus):
        speed = 1 if speeds is None else speeds[gpu]
        if fixed_load[gpu] * den > num * speed:
            num, den, where, single = fixed_load[gpu], speed, gpu, True
    for gpu in range(graph.n_gpus):
        cut[gpu] = gpu == where if single else component[base + gpu] == where and graph.alive[gpu]
    summary[1], summary[2] = num, den
    if speeds is None:
        num, den = (num + den - 1) // den, 1
    work.level[0], work.level[1] = num, den


@inlined
def _raise_level(graph, n_cut, speeds, work, cut, summary):
    """``order[:n_cut]`` is shut in and too full: lift the level just enough. Returns its slack's new sum."""
    inside, speed = 0, 0
    for gpu in range(graph.n_gpus):
        cut[gpu] = False
    for i in range(n_cut):
        gpu = work.order[i]
        cut[gpu] = True
        inside += work.limit[gpu] - work.slack[gpu]
        speed += 1 if speeds is None else speeds[gpu]
    summary[1], summary[2] = inside, speed
    level = work.level
    if speeds is None:
        level[0] = (inside + speed - 1) // speed
    elif inside * level[1] > level[0] * speed:
        level[0], level[1] = inside, speed
    while speeds is not None:  # whole tokens: step from limit to limit until the set has room for its load
        room = -inside
        best, best_speed = 0, 0
        for i in range(n_cut):
            s = speeds[work.order[i]]
            limit = level[0] * s // level[1]
            room += limit
            if best_speed == 0 or (limit + 1) * best_speed < best * s:
                best, best_speed = limit + 1, s
        if room >= 0:
            break
        level[0], level[1] = best, best_speed
    for gpu in range(graph.n_gpus):
        limit = level[0] if speeds is None else level[0] * speeds[gpu] // level[1]
        if graph.alive[gpu]:
            work.slack[gpu] += limit - work.limit[gpu]
            work.limit[gpu] = limit
    room = 0
    for i in range(n_cut):
        room += work.slack[work.order[i]]
    return room


@inlined
def _walk(graph, layer, root, n, capacity, flow, work):
    """Extend the forest ``order[:n]``, breadth first, by all that ``root``'s load can be led to. New n."""
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
def _grow_forest(graph, layer, root, speeds, capacity, flow, work, cut, summary):
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
            room = _raise_level(graph, n, speeds, work, cut, summary)
            rose = True
        root = 0
        while root < graph.n_gpus and (met[root] != UNSEEN or slack[root] >= 0):
            root += 1
    return n, rose


@inlined
def _move(source, target, n, flow, slack, giver, taker):
    flow[source] -= n
    flow[target] += n
    slack[giver] += n
    slack[taker] -= n


@inlined
def _flow_along(n, order, above, edge_up, edge_down, capacity, flow, slack, room):
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
        _move(down, up, surplus, flow, slack, gpu, over)
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
        _move(up, down, max(step, 0), flow, slack, over, gpu)


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
def _wave_pass(graph, layer, speeds, capacity, flow, work, cut, summary):
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
        _raise_level(graph, n_cut, speeds, work, cut, summary)
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
                    _move(edge, other, step, flow, slack, gpu, taker)
    return False


@inlined
def _lead(root, child, capacity, flow, work):
    """Lead excess of the walk's root to ``child``. Returns whether the way there is still open."""
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
    """Lead excess of ``root`` to the GPUs with room next to it, until none is left or a way is used up.

    Here ``above`` and the edges to there go by GPU; what this walk met has its ``stamp``. Returns 0, or how
    many GPUs stand in ``order`` if they are all that the excess can be led to and none of them has room.
    """
    order, met, seen, above = work.order, work.distance, work.seen, work.above
    gpu_start, gpu_edges, gpu_rows = graph.gpu_start, graph.gpu_edges, graph.gpu_rows
    row_edge, edge2gpu = graph.row_edge, graph.edge2gpu
    first_row, base = graph.row_start[layer], layer * graph.n_gpus
    met[root], above[root], order[0] = stamp, ROOT, root
    head, n = 0, 1
    while head < n:
        gpu = order[head]
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
                if work.slack[child] > 0 and (
                    not _lead(root, child, capacity, flow, work) or work.slack[root] == 0
                ):
                    return 0
    return n


@inlined
def _most_overloaded(slack):
    worst = 0
    for gpu in range(len(slack)):
        if slack[gpu] < slack[worst]:
            worst = gpu
    return worst


@inlined
def _walk_from_the_worst(graph, layer, speeds, capacity, flow, work, cut, summary):
    """Walks from whatever GPU is the most overloaded one, a limited number of them."""
    slack = work.slack
    work.distance[: graph.n_gpus] = 0
    work.seen[: graph.row_start[layer + 1] - graph.row_start[layer]] = 0
    for stamp in range(1, MOST_WALKS + 1):
        root = _most_overloaded(slack)
        if slack[root] >= 0:
            return
        n = _walk_to_room(graph, layer, root, stamp, capacity, flow, work)
        if n > 0:
            _raise_level(graph, n, speeds, work, cut, summary)


@inlined
def _drain(graph, layer, speeds, capacity, flow, work, cut, summary):
    """Until no GPU is over its limit: known trees, then walks, then forests and waves."""
    n_gpus, slack = graph.n_gpus, work.slack
    for tree in range(N_TREES - 1 if len(graph.pivots) > 0 else N_TREES):
        if slack[_most_overloaded(slack)] >= 0:
            return
        at = (layer * N_TREES + tree) * 4 * n_gpus
        n = graph.n_linked[layer]
        order, above = graph.forests[at : at + n_gpus], graph.forests[at + n_gpus : at + 2 * n_gpus]
        up, down = (
            graph.forests[at + 2 * n_gpus : at + 3 * n_gpus],
            graph.forests[at + 3 * n_gpus : at + 4 * n_gpus],
        )
        _flow_along(n, order, above, up, down, capacity, flow, slack, work.room)
    if slack[_most_overloaded(slack)] < 0:
        _walk_from_the_worst(graph, layer, speeds, capacity, flow, work, cut, summary)
    passes = 0
    while True:
        root = _most_overloaded(slack)
        if slack[root] >= 0:
            return
        passes += 1
        if passes <= FOREST_PASSES:
            n, rose = _grow_forest(graph, layer, root, speeds, capacity, flow, work, cut, summary)
            _flow_along(
                n, work.order, work.above, work.edge_up, work.edge_down, capacity, flow, slack, work.room
            )
        else:
            rose = _wave_pass(graph, layer, speeds, capacity, flow, work, cut, summary)
        if rose:
            passes = 0


@inlined
def _route_layer(graph, layer, demand, fixed, speeds, capacity, warm, flow, load, work, cut, summary):
    """One layer; ``load`` ends as each GPU's load. Returns the status."""
    status = _place_homes(graph, layer, demand, fixed, load)
    if status == ROUTED:
        for gpu in range(graph.n_gpus):
            work.room[gpu] = load[gpu]
        if speeds is None and capacity is None and not warm and len(graph.pivots) > 0:
            _spread(graph, layer, demand, flow, load, work)
        else:
            status = _start(graph, layer, demand, warm, speeds, capacity, flow, load)
    if status != ROUTED:
        return status
    _first_level(graph, layer, speeds, work, load, work.room, cut, summary)
    _set_limits(graph, work, speeds, load)
    _drain(graph, layer, speeds, capacity, flow, work, cut, summary)
    for gpu in range(graph.n_gpus):
        load[gpu] = work.limit[gpu] - work.slack[gpu]
    return ROUTED


@inlined
def _write_quotas(graph, layer, demand, flow, quotas):
    quotas[:] = 0
    for expert in range(len(demand)):
        if graph.home[layer * len(demand) + expert] >= 0:
            quotas[graph.home_slot[layer * len(demand) + expert]] = demand[expert]
    for edge in range(graph.row_edge[graph.row_start[layer]], graph.row_edge[graph.row_start[layer + 1]]):
        quotas[graph.edge2slot[edge]] = flow[edge]


@compiled
def route_layers(
    first, last, tables, where, alive, demands, fixed, speeds, capacity, warm, flow, loads, quotas, cuts,
    summary, longs, ints, factors, floats,
):  # fmt: skip
    """Route layers ``first`` to ``last - 1``. Returns the highest status, ROUTED if all is well.

    tables   int32, Graph's arrays from ``home`` to ``fill_gpu`` end to end, array i from ``where[i]`` to
             ``where[i + 1]``
    alive    [gpus] bool
    demands  [layers, experts] int64      fixed  [layers, gpus] int64 or None     speeds  [gpus] int64 or None
    capacity [edges] int64 or None        warm   start from what ``flow`` [edges] int64 holds of the last
    batch
    loads    [layers, gpus] int64, quotas [layers, slots] int64, cuts [layers, gpus] bool: written
    summary  [layers, 3] int64, written: status, and the certificate's load and speed
    longs    [4, gpus or 2 at least] int64 and ints [6, gpus or rows of a layer] int32: scratch, one per
             thread
    factors  float64, ``pivots`` and ``fill_value`` of spread.py end to end; empty for an even first cut
    floats   [3, gpus] float64: scratch, one per thread
    """
    plain = tables.view(np.uint32)  # for what is used as an index: no index can be below 0, none is looked at
    graph = Graph(
        len(alive), alive, tables[where[0] : where[1]], tables[where[1] : where[2]],
        tables[where[2] : where[3]], tables[where[3] : where[4]], tables[where[4] : where[5]],
        plain[where[5] : where[6]], plain[where[6] : where[7]], tables[where[7] : where[8]],
        plain[where[8] : where[9]], plain[where[9] : where[10]], tables[where[10] : where[11]],
        tables[where[11] : where[12]], tables[where[12] : where[13]], plain[where[13] : where[14]],
        tables[where[14] : where[15]], plain[where[15] : where[16]], factors[: where[14] - where[13]],
        factors[where[14] - where[13] :],
    )  # fmt: skip
    work = Work(
        longs[0, : len(alive)],
        longs[1],
        longs[2],
        longs[3],
        ints[0],
        ints[1],
        ints[2],
        ints[3],
        ints[4],
        ints[5],
        floats[0],
        floats[1],
        floats[2],
    )
    worst = ROUTED
    for layer in range(first, last):
        shift = None if fixed is None else fixed[layer]
        status = _route_layer(
            graph, layer, demands[layer], shift, speeds, capacity, warm, flow, loads[layer], work,
            cuts[layer], summary[layer],
        )  # fmt: skip
        summary[layer, 0] = status
        if status == ROUTED:
            _write_quotas(graph, layer, demands[layer], flow, quotas[layer])
        else:
            worst = max(worst, status)
    return worst
