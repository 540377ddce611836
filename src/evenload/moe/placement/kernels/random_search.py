"""The compiled search that ``plan`` runs: changes of a placement, drawn at random, that lower its cost.

Three things make a change cheap to judge. One that takes no load off the cuts is rejected without routing
(lower_bound.py). Each scenario keeps its flow (cost.py). And a change is rejected as soon as it can no longer
pay.
"""

import numpy as np

from evenload.moe.placement.kernels.change import apply, may_exchange, may_relabel, n_more_fetches
from evenload.moe.placement.kernels.cost import keep_costs, set_up, try_costs
from evenload.moe.placement.kernels.lower_bound import exchange_bound, relabel_bound
from evenload.native.kernel import compiled, inlined

__all__ = ["search"]


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
