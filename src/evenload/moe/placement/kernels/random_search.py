"""The compiled search that ``plan`` runs: changes of a placement, drawn at random, that lower its cost.

Three things make a change cheap to judge. One that takes no load off the cuts is rejected without routing, by
a lower bound of its costs: what the old cuts hold after it. Each scenario keeps its flow (cost.py). And a
change is rejected as soon as it can no longer pay.
"""

import numpy as np

from evenload.moe.placement.kernels.cost import keep_costs, set_up, try_costs
from evenload.moe.placement.kernels.state import apply, may_exchange, may_relabel, n_more_fetches
from evenload.native.kernel import compiled, inlined


@inlined
def _n_copies_inside(problem, state, t, expert):
    """Copies of ``expert`` on the GPUs of the scenario's cut."""
    n = 0
    for k in range(state.n_hosts[expert]):
        if state.cut[t, problem.slot2gpu[state.hosts[expert, k]]]:
            n += 1
    return n


@inlined
def _exchange_change(problem, state, t, leaving, coming):
    """Load that a cut gains if a copy of ``leaving`` goes out of it and one of ``coming`` comes in.

    Under routing, a cut must carry experts with all their copies inside. Under an equal split the cut is one
    GPU, with its shares.
    """
    if not problem.is_routed:
        return (
            problem.demand[t, coming] / state.n_hosts[coming]
            - problem.demand[t, leaving] / state.n_hosts[leaving]
        )
    change = 0.0
    if _n_copies_inside(problem, state, t, leaving) == state.n_hosts[leaving]:
        change -= problem.demand[t, leaving]
    if _n_copies_inside(problem, state, t, coming) == state.n_hosts[coming] - 1:
        change += problem.demand[t, coming]
    return change


@inlined
def exchange_bound(problem, state, scratch, slot, other):
    """A lower bound of the sum of costs after an exchange; writes each scenario's to ``least``."""
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        inside = state.cut[t, problem.slot2gpu[slot]]
        if cost > 1.0 and inside != state.cut[t, problem.slot2gpu[other]]:
            a, b = (
                (state.slots[slot], state.slots[other]) if inside else (state.slots[other], state.slots[slot])
            )
            cost = max(1.0, cost + _exchange_change(problem, state, t, a, b) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total


@inlined
def _relabel_change(problem, state, t, slot, new):
    """Load that the scenario's cut gains if ``slot`` holds ``new`` instead."""
    old, is_inside = state.slots[slot], state.cut[t, problem.slot2gpu[slot]]
    change = 0.0
    if problem.is_routed:
        if not is_inside and old >= 0 and _n_copies_inside(problem, state, t, old) == state.n_hosts[old] - 1:
            change += problem.demand[t, old]
        if not is_inside and _n_copies_inside(problem, state, t, new) == state.n_hosts[new]:
            change -= problem.demand[t, new]
        return change
    m = state.n_hosts[new]
    if old >= 0:
        n = state.n_hosts[old]
        if is_inside:
            change -= problem.demand[t, old] / n
        elif _n_copies_inside(problem, state, t, old) > 0:
            change += problem.demand[t, old] * (1.0 / (n - 1) - 1.0 / n)
    if is_inside:
        change += problem.demand[t, new] / (m + 1)
    elif _n_copies_inside(problem, state, t, new) > 0:
        change += problem.demand[t, new] * (1.0 / (m + 1) - 1.0 / m)
    return change


@inlined
def relabel_bound(problem, state, scratch, slot, new):
    """A lower bound of the sum of costs after a relabel; writes each scenario's to ``least``."""
    total = 0.0
    for t in range(len(state.cost)):
        cost = state.cost[t]
        if cost > 1.0:
            cost = max(1.0, cost + _relabel_change(problem, state, t, slot, new) / state.cut_speed[t])
        scratch.least[t] = cost
        total += cost
    return total


@inlined
def _draw(scratch, n):
    """Draw a whole number below ``n``. Source: xorshift64*, Vigna, ACM TOMS 42(4), 2016."""
    x = scratch.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    scratch.random[0] = x
    return np.int64(((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(n))


@inlined
def _slot_in_a_cut(problem, state, scratch):
    """Draw a slot of a GPU that is in the cut of a scenario drawn at random, or any slot if that is even."""
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
    """Draw a change (slot, other, new), with a lower bound of its sum of costs: infinite if not allowed.

    A quarter of them start from a cut: a slot there is exchanged, or its expert copied to another slot.
    """
    slot, busy = _draw(scratch, len(state.slots)), -1
    if _draw(scratch, 4) == 0:
        busy = _slot_in_a_cut(problem, state, scratch)
    if _draw(scratch, 2) == 0:
        other = busy if busy >= 0 else _draw(scratch, len(state.slots))
        if not may_exchange(problem, state, slot, other):
            return slot, other, -1, np.inf
        return slot, other, -1, exchange_bound(problem, state, scratch, slot, other)
    new = state.slots[busy] if busy >= 0 else _draw(scratch, len(state.n_hosts))
    if new < 0 or not may_relabel(problem, state, slot, new):
        return slot, -1, new, np.inf
    return slot, -1, new, relabel_bound(problem, state, scratch, slot, new)


@compiled
def search(problem, state, scratch, old_on, price, goal, n_tries):
    """Improve ``state``, one change at a time, each drawn at random and kept if it pays.

    A change pays if it lowers the sum of costs plus ``price`` for each expert that a GPU has to fetch.
    Ends after ``n_tries`` changes were judged by their costs or 50 times as many were drawn, or once the
    costs sum to ``goal`` or less. Returns the sum of the costs; ``state.cost`` holds them.
    """
    total = set_up(problem, state, scratch)
    tried = proposed = 0
    while tried < n_tries and proposed < 50 * n_tries and total > goal:
        proposed += 1
        slot, other, new, least = _propose(problem, state, scratch)
        if least == np.inf:
            continue
        fee = price * n_more_fetches(problem, state, old_on, slot, other, new) if price > 0.0 else 0.0
        if least + fee >= total - 1e-9:
            continue
        tried += 1
        old = apply(problem, state, slot, other, new)
        after = try_costs(problem, state, scratch, slot, other, old, least, total - fee)
        if after + fee < total - 1e-9:
            total = after
            keep_costs(state, scratch)
        else:
            apply(problem, state, slot, other, old)
    return total
