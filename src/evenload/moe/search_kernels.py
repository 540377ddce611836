"""The compiled half of ``plan``: a placement, what it costs in each scenario, and changes that make it
cheaper.

A *scenario* is the experts' demand in one batch, scaled so that a perfectly even fleet has load 1 for each
unit of speed. A placement's *cost* in it is the busiest GPU's load for its speed: under exact routing (the
flow of ``balance.flow``, relaxed to fractions), or under an equal split over copies.

Three things make a change cheap to judge. Each cost comes with its *cut*, GPUs that together must carry it: a
change that takes no load off the cuts cannot help, and that is seen without routing. Each scenario keeps its
flow: after a change only what it upset is led elsewhere. And a change is dropped as soon as it can no longer
pay.

Nothing here calls a compiled function of another file: numba's cache on disk would not notice when that one
changes.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from evenload.balance.flow.jit import compiled, inlined

__all__ = ["Problem", "Scratch", "State", "search"]

EXACT = 1e-7  # loads closer than this, in units of the mean, are equal
STEPS = 1000  # of the flow at most; then its upper bound stands for the cost


def piece(function: Any) -> Any:
    """Like ``inlined``, but a call where the compiler prefers one."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(nogil=True, **options)(function)


class Problem(NamedTuple):
    """What does not change. Only living GPUs and open slots are here, slots in the order of their GPUs."""

    demand: NDArray[np.float64]  # [scenarios, experts], rows sum to speed.sum()
    speed: NDArray[np.float64]  # [gpus]
    slot2gpu: NDArray[np.int64]  # [slots]
    first_slot: NDArray[np.int64]  # [gpus + 1]
    node: NDArray[np.int64]  # [gpus]
    home: NDArray[np.int64]  # [experts] the node that must keep a copy, -1 for none
    is_strict: bool  # no copy leaves the home node
    is_routed: bool  # exact routing, not an equal split
    order: NDArray[np.int64]  # [experts] heaviest first


class State(NamedTuple):
    """A placement, and how each scenario is served."""

    slots: NDArray[np.int64]  # [slots] expert, -1 if empty
    hosts: NDArray[np.int64]  # [experts, gpus] the slots that hold it, the first ``n_hosts`` of them
    n_hosts: NDArray[np.int64]  # [experts]
    on: NDArray[np.bool_]  # [gpus, experts]
    flow: NDArray[np.float64]  # [scenarios, slots]
    load: NDArray[np.float64]  # [scenarios, gpus]
    cost: NDArray[np.float64]  # [scenarios]
    cut: NDArray[np.bool_]  # [scenarios, gpus]
    cut_speed: NDArray[np.float64]  # [scenarios]


class Scratch(NamedTuple):
    """How each scenario would be served after a change (first five), and room to work in."""

    flow: NDArray[np.float64]  # [scenarios, slots]
    load: NDArray[np.float64]  # [scenarios, gpus]
    cost: NDArray[np.float64]  # [scenarios]
    cut: NDArray[np.bool_]  # [scenarios, gpus]
    cut_speed: NDArray[np.float64]  # [scenarios]
    least: NDArray[np.float64]  # [scenarios] what the cost can come down to at best
    turn: NDArray[np.int64]  # [scenarios] the order they are tried in: those that refuse most come first
    parent: NDArray[
        np.int64
    ]  # [gpus], and the slots that lead to it from there: out of the one, into the other
    giver: NDArray[np.int64]  # [gpus]
    taker: NDArray[np.int64]  # [gpus]
    queue: NDArray[np.int64]  # [gpus]
    random: NDArray[np.uint64]  # [1]


@inlined
def _draw(scratch, n):
    """A number below ``n``; xorshift64*."""
    x = scratch.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    scratch.random[0] = x
    return np.int64(((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(n))


@inlined
def _pour(problem, state, scratch, t, expert, demand):
    """Demand over an expert's copies, on top of what they have: the lowest GPUs are filled up to one
    level.
    """
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
def _reach_room(problem, state, scratch, t, level):
    """Walk breadth first from the GPUs above ``level``, wherever their load can be led, to the first with
    room.

    Returns that GPU, or -1 if none is in reach, or -2 if none is above; and how many GPUs stand in ``queue``.
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
def _lead(problem, scratch, t, target, level):
    """Move load from the walk's root to ``target``, as much as both ends and the way allow."""
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
    """Lead load away until no GPU is above the level, which rises as cuts demand. Stops early above
    ``limit``.
    """
    for _ in range(STEPS):
        target, n = _reach_room(problem, state, scratch, t, level)
        if target == -2:
            return level
        if target >= 0:
            _lead(problem, scratch, t, target, level)
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
    """Cost as the loads stand; the cut is the busiest GPU."""
    most = 0
    for gpu in range(len(problem.speed)):
        scratch.cut[t, gpu] = False
        if scratch.load[t, gpu] * problem.speed[most] > scratch.load[t, most] * problem.speed[gpu]:
            most = gpu
    scratch.cut[t, most] = True
    scratch.cut_speed[t] = problem.speed[most]
    return scratch.load[t, most] / problem.speed[most]


@inlined
def _upset(problem, state, scratch, t, slot, other, old):
    """The scenario's loads after the change that has been made: an exchange of slots, or ``old`` gone from
    ``slot``.
    """
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
        if problem.is_routed and old >= 0:
            _pour(problem, state, scratch, t, old, gone)


@inlined
def _split(problem, state, scratch, t, expert):
    """Under an equal split: give each copy the share that it has now."""
    share = problem.demand[t, expert] / state.n_hosts[expert]
    for k in range(state.n_hosts[expert]):
        slot = state.hosts[expert, k]
        scratch.load[t, problem.slot2gpu[slot]] += share - scratch.flow[t, slot]
        scratch.flow[t, slot] = share


@piece
def _try_costs(problem, state, scratch, slot, other, old, total, limit):
    """Costs after the change that has been made, in place of the ``least`` that ``total`` sums; stops above
    ``limit``.
    """
    for i in range(len(state.cost)):
        t = scratch.turn[i]
        _upset(problem, state, scratch, t, slot, other, old)
        total -= scratch.least[t]
        if problem.is_routed:
            cost = _route(problem, state, scratch, t, scratch.least[t], limit - total)
        else:
            if other < 0:
                if old >= 0:
                    _split(problem, state, scratch, t, old)
                _split(problem, state, scratch, t, state.slots[slot])
            cost = _busiest(problem, scratch, t)
        scratch.cost[t] = cost
        total += cost
        if total > limit:
            scratch.turn[i], scratch.turn[i // 2] = scratch.turn[i // 2], t
            break
    return total


@inlined
def _keep_costs(state, scratch):
    for t in range(len(state.cost)):
        state.cost[t] = scratch.cost[t]
        state.cut_speed[t] = scratch.cut_speed[t]
        for gpu in range(state.cut.shape[1]):
            state.cut[t, gpu] = scratch.cut[t, gpu]
            state.load[t, gpu] = scratch.load[t, gpu]
        for slot in range(len(state.slots)):
            state.flow[t, slot] = scratch.flow[t, slot]


@inlined
def _set_up(problem, state, scratch):
    """Everything in ``state`` from its slots. Returns the sum of the costs."""
    for slot in range(len(state.slots)):
        expert = state.slots[slot]
        if expert >= 0:
            state.hosts[expert, state.n_hosts[expert]] = slot
            state.n_hosts[expert] += 1
            state.on[problem.slot2gpu[slot], expert] = True
    total = 0.0
    for t in range(len(state.cost)):
        for wave in range(2):  # what cannot be led elsewhere comes first
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
    _keep_costs(state, scratch)
    return total


@inlined
def _rehost(state, expert, old, new):
    for k in range(state.n_hosts[expert]):
        if state.hosts[expert, k] == old:
            state.hosts[expert, k] = new
            return


@inlined
def _exchange(problem, state, slot, other):
    a, b = state.slots[slot], state.slots[other]
    gpu, peer = problem.slot2gpu[slot], problem.slot2gpu[other]
    _rehost(state, a, slot, other)
    _rehost(state, b, other, slot)
    state.slots[slot], state.slots[other] = b, a
    state.on[gpu, a], state.on[peer, b] = False, False
    state.on[peer, a], state.on[gpu, b] = True, True


@inlined
def _relabel(problem, state, slot, new):
    old, gpu = state.slots[slot], problem.slot2gpu[slot]
    if old >= 0:
        last = state.n_hosts[old] - 1
        _rehost(state, old, slot, state.hosts[old, last])
        state.n_hosts[old] = last
        state.on[gpu, old] = False
    if new >= 0:
        state.hosts[new, state.n_hosts[new]] = slot
        state.n_hosts[new] += 1
        state.on[gpu, new] = True
    state.slots[slot] = new


@inlined
def _may_go(problem, state, expert, slot, gpu):
    """Whether the copy in ``slot`` may go to ``gpu`` (-1: away altogether) as far as the home node is
    concerned.
    """
    home = problem.home[expert]
    if home < 0:
        return True
    stays = gpu >= 0 and problem.node[gpu] == home
    if stays or problem.node[problem.slot2gpu[slot]] != home:
        return stays or not problem.is_strict
    if problem.is_strict and gpu >= 0:
        return False
    for k in range(state.n_hosts[expert]):
        other = state.hosts[expert, k]
        if other != slot and problem.node[problem.slot2gpu[other]] == home:
            return True
    return False


@inlined
def _may_exchange(problem, state, slot, other):
    a, b = state.slots[slot], state.slots[other]
    gpu, peer = problem.slot2gpu[slot], problem.slot2gpu[other]
    return (
        a >= 0
        and b >= 0
        and gpu != peer
        and not state.on[gpu, b]
        and not state.on[peer, a]
        and _may_go(problem, state, a, slot, peer)
        and _may_go(problem, state, b, other, gpu)
    )


@inlined
def _may_relabel(problem, state, slot, new):
    old, gpu = state.slots[slot], problem.slot2gpu[slot]
    return (
        (old < 0 or (state.n_hosts[old] > 1 and _may_go(problem, state, old, slot, -1)))
        and not state.on[gpu, new]
        and not (problem.is_strict and problem.home[new] >= 0 and problem.node[gpu] != problem.home[new])
    )


@inlined
def _hosts_inside(problem, state, t, expert):
    n = 0
    for k in range(state.n_hosts[expert]):
        if state.cut[t, problem.slot2gpu[state.hosts[expert, k]]]:
            n += 1
    return n


@inlined
def _exchange_relief(problem, state, t, leaving, coming):
    """Load that a cut gains if a copy of ``leaving`` goes out of it and one of ``coming`` comes in.

    Under routing, only an expert with all its copies inside is shut in; else the cut is one GPU, with its
    shares.
    """
    if not problem.is_routed:
        return (
            problem.demand[t, coming] / state.n_hosts[coming]
            - problem.demand[t, leaving] / state.n_hosts[leaving]
        )
    change = 0.0
    if _hosts_inside(problem, state, t, leaving) == state.n_hosts[leaving]:
        change -= problem.demand[t, leaving]
    if _hosts_inside(problem, state, t, coming) == state.n_hosts[coming] - 1:
        change += problem.demand[t, coming]
    return change


@inlined
def _least_exchange(problem, state, scratch, slot, other):
    """What the costs can sum to at best after an exchange: the old cuts, with what they then hold."""
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        inside = state.cut[t, problem.slot2gpu[slot]]
        if cost > 1.0 and inside != state.cut[t, problem.slot2gpu[other]]:
            a, b = (
                (state.slots[slot], state.slots[other]) if inside else (state.slots[other], state.slots[slot])
            )
            cost = max(1.0, cost + _exchange_relief(problem, state, t, a, b) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total


@inlined
def _relabel_relief(problem, state, t, slot, new):
    """Load that the scenario's cut gains if ``slot`` holds ``new`` instead."""
    old, is_inside = state.slots[slot], state.cut[t, problem.slot2gpu[slot]]
    change = 0.0
    if problem.is_routed:
        if not is_inside and old >= 0 and _hosts_inside(problem, state, t, old) == state.n_hosts[old] - 1:
            change += problem.demand[t, old]
        if not is_inside and _hosts_inside(problem, state, t, new) == state.n_hosts[new]:
            change -= problem.demand[t, new]
        return change
    m = state.n_hosts[new]
    if old >= 0:
        n = state.n_hosts[old]
        if is_inside:
            change -= problem.demand[t, old] / n
        elif _hosts_inside(problem, state, t, old) > 0:
            change += problem.demand[t, old] * (1.0 / (n - 1) - 1.0 / n)
    if is_inside:
        change += problem.demand[t, new] / (m + 1)
    elif _hosts_inside(problem, state, t, new) > 0:
        change += problem.demand[t, new] * (1.0 / (m + 1) - 1.0 / m)
    return change


@inlined
def _least_relabel(problem, state, scratch, slot, new):
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        if cost > 1.0:
            cost = max(1.0, cost + _relabel_relief(problem, state, t, slot, new) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total


@inlined
def _slot_in_a_cut(problem, state, scratch):
    """A slot of a GPU that some scenario's cut holds, or any slot: load is to be led away from there."""
    t = _draw(scratch, len(state.cost))
    gpu = _draw(scratch, len(problem.speed))
    if state.cost[t] > 1.0:
        for _ in range(len(problem.speed)):
            if state.cut[t, gpu]:
                break
            gpu = gpu + 1 if gpu + 1 < len(problem.speed) else 0
    first = problem.first_slot[gpu]
    return first + _draw(scratch, problem.first_slot[gpu + 1] - first)


@inlined
def _propose(problem, state, scratch):
    """A change at random: (slot, other slot or -1, expert or -1), and the least sum of costs; infinite if
    not allowed.

    A quarter of them begin where a cut is: a slot from there is exchanged, or what it holds copied elsewhere.
    """
    slot, busy = _draw(scratch, len(state.slots)), -1
    if _draw(scratch, 4) == 0:
        busy = _slot_in_a_cut(problem, state, scratch)
    if _draw(scratch, 2) == 0:
        other = busy if busy >= 0 else _draw(scratch, len(state.slots))
        if not _may_exchange(problem, state, slot, other):
            return slot, other, -1, np.inf
        return slot, other, -1, _least_exchange(problem, state, scratch, slot, other)
    new = state.slots[busy] if busy >= 0 else _draw(scratch, len(state.n_hosts))
    if new < 0 or not _may_relabel(problem, state, slot, new):
        return slot, -1, new, np.inf
    return slot, -1, new, _least_relabel(problem, state, scratch, slot, new)


@piece
def _apply(problem, state, slot, other, new):
    """Make a change; returns the expert that undoes it if it put another one into ``slot``."""
    old = state.slots[slot]
    if other >= 0:
        _exchange(problem, state, slot, other)
    else:
        _relabel(problem, state, slot, new)
    return old


@inlined
def _fetched(old_on, gpu, coming, going):
    """How many more experts ``gpu`` must fetch if one comes and one goes (-1: none)."""
    return np.int64(not old_on[gpu, coming]) - np.int64(going >= 0 and not old_on[gpu, going])


@inlined
def _moves(problem, state, old_on, slot, other, new):
    """How many more experts must be fetched after the change; ``old_on`` [gpus, experts] is what GPUs have
    now.
    """
    a, gpu = state.slots[slot], problem.slot2gpu[slot]
    if other < 0:
        return _fetched(old_on, gpu, new, a)
    b = state.slots[other]
    return _fetched(old_on, gpu, b, a) + _fetched(old_on, problem.slot2gpu[other], a, b)


@compiled
def search(problem, state, scratch, old_on, price, goal, n_tries):
    """Change ``state`` for the better, one change at a time; at most ``n_tries`` changes are priced by the
    router.

    Better is a lower sum of costs plus ``price`` for each expert that a GPU has to fetch. Ends early once the
    costs sum to ``goal`` or less, or after 50 proposals a try. Returns the sum of the costs, which stand in
    ``state.cost``.
    """
    total = _set_up(problem, state, scratch)
    tried = proposed = 0
    while tried < n_tries and proposed < 50 * n_tries and total > goal:
        proposed += 1
        slot, other, new, least = _propose(problem, state, scratch)
        if least == np.inf:
            continue
        fee = price * _moves(problem, state, old_on, slot, other, new) if price > 0.0 else 0.0
        if least + fee >= total - 1e-9:
            continue
        tried += 1
        old = _apply(problem, state, slot, other, new)
        after = _try_costs(problem, state, scratch, slot, other, old, least, total - fee)
        if after + fee < total - 1e-9:
            total = after
            _keep_costs(state, scratch)
        else:
            _apply(problem, state, slot, other, old)
    return total
