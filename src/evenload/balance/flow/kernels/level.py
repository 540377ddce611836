"""Pieces of the router's kernel: a first division of demand, and the level that no GPU may exceed."""

import numpy as np

from evenload.native.kernel import inlined

# The status of a layer that the router's kernel returns.
ROUTED, NEGATIVE, UNPLACED_DEMAND, BAD_CAPACITY, OVERFLOW = range(5)
MOST_DEMAND = 1 << 39  # in one layer: products with sums of speeds (22 bits) must stay in 64 bits


@inlined
def set_limits(graph, work, speeds, load):
    """Write limits and slack from the level, level[0] / level[1] in load per speed."""
    for gpu in range(graph.n_gpus):
        if not graph.alive[gpu]:
            work.limit[gpu] = 0
        elif speeds is None:
            work.limit[gpu] = work.level[0]
        else:
            work.limit[gpu] = work.level[0] * speeds[gpu] // work.level[1]
        work.slack[gpu] = work.limit[gpu] - load[gpu]


@inlined
def _heaviest_component(graph, layer, speeds, work, load):
    """The connected component with the largest mean load: (load, speed, its number)."""
    component, sums, weights, base = graph.component, work.slack, work.limit, layer * graph.n_gpus
    for gpu in range(graph.n_gpus):
        sums[gpu] = 0
        weights[gpu] = 0
    for gpu in range(graph.n_gpus):
        sums[component[base + gpu]] += load[gpu]
        weights[component[base + gpu]] += graph.alive[gpu] if speeds is None else speeds[gpu]
    num, den, where = np.int64(-1), np.int64(1), 0
    for gpu in range(graph.n_gpus):
        if sums[gpu] * den > num * weights[gpu]:
            num, den, where = sums[gpu], weights[gpu], gpu
    return num, den, where


@inlined
def first_level(graph, layer, speeds, total, work, load, fixed_load, cut, summary):
    """Set the level to a bound that needs no search: a component's mean, or load that cannot leave a GPU."""
    n_gpus, base = graph.n_gpus, layer * graph.n_gpus
    is_one = speeds is None and graph.n_components[layer] == 1
    if is_one:
        num, den, where = np.int64(total), np.int64(n_gpus), 0
    else:
        num, den, where = _heaviest_component(graph, layer, speeds, work, load)
    single = -1
    if speeds is None:
        most = np.int64(0)
        for gpu in range(n_gpus):
            most = max(most, fixed_load[gpu])
        if most * den > num:
            num, den, single = most, np.int64(1), 0
            while fixed_load[single] < most:
                single += 1
    else:
        for gpu in range(n_gpus):
            if fixed_load[gpu] * den > num * speeds[gpu]:
                num, den, single = fixed_load[gpu], speeds[gpu], gpu
    if single >= 0:
        for gpu in range(n_gpus):
            cut[gpu] = gpu == single
    elif is_one:
        for gpu in range(n_gpus):
            cut[gpu] = True
    else:
        for gpu in range(n_gpus):
            cut[gpu] = graph.component[base + gpu] == where and graph.alive[gpu]
    summary[1], summary[2] = num, den
    if speeds is None:
        num, den = (num + den - 1) // den, np.int64(1)
    work.level[0], work.level[1] = num, den


@inlined
def raise_level(graph, n_cut, speeds, work, cut, summary):
    """Raise the level as far as ``order[:n_cut]`` forces it, whose load cannot leave; returns their slack."""
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
