"""The compiled half of ``plan``: changes of a placement, drawn at random, that make it cheaper.

Three things make a change cheap to judge. A change that takes no load off the cuts is seen without routing
(prospect_kernels). Each scenario keeps its flow (serving_kernels). And a change is dropped as soon as it can
no longer pay.
"""

from pathlib import Path

import numpy as np

from evenload.balance.flow.kernels.jit import compiled, fingerprint, inlined
from evenload.moe.search.change_kernels import apply, may_exchange, may_relabel, moves
from evenload.moe.search.prospect_kernels import least_exchange, least_relabel
from evenload.moe.search.serving_kernels import keep_costs, set_up, try_costs

__all__ = ["PIECES", "search"]

PIECES = ("change_kernels", "layer_state", "prospect_kernels", "search_kernels", "serving_kernels")


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
        if not may_exchange(problem, state, slot, other):
            return slot, other, -1, np.inf
        return slot, other, -1, least_exchange(problem, state, scratch, slot, other)
    new = state.slots[busy] if busy >= 0 else _draw(scratch, len(state.n_hosts))
    if new < 0 or not may_relabel(problem, state, slot, new):
        return slot, -1, new, np.inf
    return slot, -1, new, least_relabel(problem, state, scratch, slot, new)


def _sealed(seal):
    @compiled
    def search(problem, state, scratch, old_on, price, goal, n_tries):
        """Change ``state`` for the better, one change at a time; the router prices ``n_tries`` at most.

        Better is a lower sum of costs plus ``price`` for each expert that a GPU has to fetch. Ends early once
        the costs sum to ``goal`` or less, or after 50 proposals a try. Returns the sum of the costs, which
        stand in ``state.cost``.
        """
        _ = seal  # a new one is a new key in numba's cache
        total = set_up(problem, state, scratch)
        tried = proposed = 0
        while tried < n_tries and proposed < 50 * n_tries and total > goal:
            proposed += 1
            slot, other, new, least = _propose(problem, state, scratch)
            if least == np.inf:
                continue
            fee = price * moves(problem, state, old_on, slot, other, new) if price > 0.0 else 0.0
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

    return search


search = _sealed(fingerprint(str(Path(__file__).parent), *PIECES))
