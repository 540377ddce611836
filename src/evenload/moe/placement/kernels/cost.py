"""Pieces of the searches: a placement's cost in each scenario, from scratch or after a change.

Each scenario keeps its flow, so that after a change only load that it displaced is routed again.
"""

import numpy as np

from evenload.native.kernel import inlined, piece

EXACT = 1e-7  # loads closer than this, in units of the mean, are equal
STEPS = 1000  # of routing at most; then the largest load / speed reached so far is taken as the cost


@inlined
def _pour(problem, state, scratch, t, expert, demand):
    """Add ``demand`` to an expert's copies: fill the least loaded of their GPUs up to one level."""
    load, speed, queue = scratch.load[t], problem.speed, scratch.queue
    n = state.n_hosts[expert]
    for k in range(n):
        slot = state.hosts[expert, k]
        gpu = problem.slot2gpu[slot]
        j = k
        while j > 0:
            other = problem.slot2gpu[queue[j - 1]]
            if load[other] * speed[gpu] <= load[gpu] * speed[other]:
                break
            queue[j] = queue[j - 1]
            j -= 1
        queue[j] = slot
    total, width, used = demand, 0.0, 0
    while used < n:
        gpu = problem.slot2gpu[queue[used]]
        if used > 0 and total * speed[gpu] <= load[gpu] * width:
            break
        total += load[gpu]
        width += speed[gpu]
        used += 1
    for k in range(used):
        gpu = problem.slot2gpu[queue[k]]
        share = total / width * speed[gpu] - load[gpu]
        scratch.flow[t, queue[k]] += share
        load[gpu] += share


@inlined
def _find_room(problem, state, scratch, t, level):
    """Search breadth first, from the GPUs above ``level`` along copies, for the first GPU below it.

    Returns that GPU, -1 if none is in reach, or -2 if no GPU is above; and how many GPUs ``queue`` holds.
    """
    parent, queue, load = scratch.parent, scratch.queue, scratch.load[t]
    n, head = 0, 0
    for gpu in range(len(problem.speed)):
        parent[gpu] = -2
        if load[gpu] > level * problem.speed[gpu] + EXACT:
            parent[gpu] = -1
            queue[n] = gpu
            n += 1
    if n == 0:
        return -2, 0
    while head < n:
        gpu = queue[head]
        head += 1
        for slot in range(problem.first_slot[gpu], problem.first_slot[gpu + 1]):
            expert = state.slots[slot]
            if expert < 0 or state.n_hosts[expert] < 2 or scratch.flow[t, slot] <= EXACT:
                continue
            for k in range(state.n_hosts[expert]):
                into = state.hosts[expert, k]
                other = problem.slot2gpu[into]
                if parent[other] == -2:
                    parent[other] = gpu
                    scratch.giver[other] = slot
                    scratch.taker[other] = into
                    queue[n] = other
                    n += 1
                    if load[other] < level * problem.speed[other] - EXACT:
                        return other, n
    return -1, n


@inlined
def _augment(problem, scratch, t, target, level):
    """Move load from the path's root to ``target``, as much as both ends and the path allow."""
    load, parent = scratch.load[t], scratch.parent
    step = level * problem.speed[target] - load[target]
    gpu = target
    while parent[gpu] >= 0:
        step = min(step, scratch.flow[t, scratch.giver[gpu]])
        gpu = parent[gpu]
    step = min(step, load[gpu] - level * problem.speed[gpu])
    load[gpu] -= step
    load[target] += step
    gpu = target
    while parent[gpu] >= 0:
        scratch.flow[t, scratch.giver[gpu]] -= step
        scratch.flow[t, scratch.taker[gpu]] += step
        gpu = parent[gpu]


@inlined
def _route(problem, state, scratch, t, level, limit):
    """Reroute load until no GPU is above the level, which rises as far as cuts force it to.

    Returns the level reached; stops early once it is above ``limit``.
    """
    for _ in range(STEPS):
        target, n = _find_room(problem, state, scratch, t, level)
        if target == -2:
            return level
        if target >= 0:
            _augment(problem, scratch, t, target, level)
            continue
        load = speed = 0.0
        for gpu in range(len(problem.speed)):
            scratch.cut[t, gpu] = scratch.parent[gpu] != -2
        for i in range(n):
            load += scratch.load[t, scratch.queue[i]]
            speed += problem.speed[scratch.queue[i]]
        level = max(load / speed, level + EXACT)
        scratch.cut_speed[t] = speed
        if level > limit:
            return level
    for gpu in range(len(problem.speed)):
        level = max(level, scratch.load[t, gpu] / problem.speed[gpu])
    return level


@inlined
def _busiest(problem, scratch, t):
    """The largest load / speed; writes the busiest GPU as the cut."""
    most = 0
    for gpu in range(len(problem.speed)):
        scratch.cut[t, gpu] = False
        if scratch.load[t, gpu] * problem.speed[most] > scratch.load[t, most] * problem.speed[gpu]:
            most = gpu
    scratch.cut[t, most] = True
    scratch.cut_speed[t] = problem.speed[most]
    return scratch.load[t, most] / problem.speed[most]


@inlined
def displace(problem, state, scratch, t, slot, other):
    """Write a scenario's flow and loads right after a change: slots exchanged, or ``slot`` emptied."""
    for gpu in range(len(problem.speed)):
        scratch.load[t, gpu] = state.load[t, gpu]
        scratch.cut[t, gpu] = state.cut[t, gpu]
    scratch.cut_speed[t] = state.cut_speed[t]
    for i in range(len(state.slots)):
        scratch.flow[t, i] = state.flow[t, i]
    gone = state.flow[t, slot]
    gpu = problem.slot2gpu[slot]
    if other >= 0:
        come = state.flow[t, other]
        peer = problem.slot2gpu[other]
        scratch.flow[t, slot], scratch.flow[t, other] = come, gone
        scratch.load[t, gpu] += come - gone
        scratch.load[t, peer] += gone - come
    else:
        scratch.flow[t, slot] = 0.0
        scratch.load[t, gpu] -= gone


@inlined
def _split(problem, state, scratch, t, expert):
    """Give each copy of ``expert`` an equal share of its demand."""
    share = problem.demand[t, expert] / state.n_hosts[expert]
    for k in range(state.n_hosts[expert]):
        slot = state.hosts[expert, k]
        scratch.load[t, problem.slot2gpu[slot]] += share - scratch.flow[t, slot]
        scratch.flow[t, slot] = share


@inlined
def split_cost(problem, state, scratch, t, slot, other, old):
    """A scenario's cost under an equal split, after a change that has been applied and displaced its load.

    old  the expert that a relabel took out of ``slot``, -1 for none
    """
    if other < 0:
        if old >= 0:
            _split(problem, state, scratch, t, old)
        _split(problem, state, scratch, t, state.slots[slot])
    return _busiest(problem, scratch, t)


@piece
def try_costs(problem, state, scratch, slot, other, old, total, limit):
    """Write the costs after a change that has been applied; returns their sum, or a sum above ``limit``.

    ``total`` is the sum of the lower bounds ``least``, which costs replace one by one. Ends as soon as it
    exceeds ``limit``.
    """
    for i in range(len(state.cost)):
        t = scratch.turn[i]
        displace(problem, state, scratch, t, slot, other)
        total -= scratch.least[t]
        if problem.is_routed:
            if other < 0 and old >= 0:
                _pour(problem, state, scratch, t, old, state.flow[t, slot])
            cost = _route(problem, state, scratch, t, scratch.least[t], limit - total)
        else:
            cost = split_cost(problem, state, scratch, t, slot, other, old)
        scratch.cost[t] = cost
        total += cost
        if total > limit:
            scratch.turn[i], scratch.turn[i // 2] = scratch.turn[i // 2], t
            break
    return total


@inlined
def keep_costs(state, scratch):
    """Copy flow, loads, costs and cuts from ``scratch`` to ``state``."""
    for t in range(len(state.cost)):
        state.cost[t] = scratch.cost[t]
        state.cut_speed[t] = scratch.cut_speed[t]
        for gpu in range(state.cut.shape[1]):
            state.cut[t, gpu] = scratch.cut[t, gpu]
            state.load[t, gpu] = scratch.load[t, gpu]
        for slot in range(len(state.slots)):
            state.flow[t, slot] = scratch.flow[t, slot]


@inlined
def set_up(problem, state, scratch):
    """Fill ``state`` from its slots. Returns the sum of the costs."""
    for slot in range(len(state.slots)):
        expert = state.slots[slot]
        if expert >= 0:
            state.hosts[expert, state.n_hosts[expert]] = slot
            state.n_hosts[expert] += 1
            state.on[problem.slot2gpu[slot], expert] = True
    total = 0.0
    for t in range(len(state.cost)):
        for wave in range(2):  # experts with one copy come first, as their load cannot be routed elsewhere
            for i in range(len(problem.order)):
                expert = problem.order[i]
                if not problem.is_routed and wave == 0:
                    _split(problem, state, scratch, t, expert)
                elif problem.is_routed and (state.n_hosts[expert] > 1) == (wave == 1):
                    _pour(problem, state, scratch, t, expert, problem.demand[t, expert])
        if problem.is_routed:
            for gpu in range(len(problem.speed)):
                scratch.cut[t, gpu] = False
            scratch.cost[t] = _route(problem, state, scratch, t, 1.0, np.inf)
        else:
            scratch.cost[t] = _busiest(problem, scratch, t)
        total += scratch.cost[t]
    keep_costs(state, scratch)
    return total
