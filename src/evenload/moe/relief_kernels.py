"""The compiled half of ``plan`` with few fetches where load is split equally: what relieves most for a fetch.

Where several GPUs tie for the busiest, no single change lowers the maximum, and a search that looks at the
maximum alone sticks. So every change is judged by the *burden* it takes away: what all GPUs carry beyond the
target, plus a fixed toll for each that does, since one that is only just beyond needs a change of its own as
well.
"""

from pathlib import Path

import numpy as np

from evenload.balance.flow.jit import compiled, fingerprint, inlined

from .change_kernels import apply, may_exchange, may_relabel, moves
from .serving_kernels import busiest, keep_costs, set_up, split

__all__ = ["PIECES", "relieve"]

PIECES = ("change_kernels", "relief_kernels", "serving_kernels")

TOLL = 0.02  # of the mean load, for each GPU beyond the target
LEAST_GAIN = 1e-7
LEAST_PAY = 1e-4  # of burden, for each expert fetched and scenario
NO_FETCH = 0.01  # what a change counts that has nothing fetched, or less than before


@inlined
def _burden(load, limit):
    return load - limit + TOLL if load > limit + LEAST_GAIN else 0.0


@inlined
def _exchange_gain(problem, state, target, slot, other):
    """Burden that goes if two slots change places."""
    gpu, peer = problem.slot2gpu[slot], problem.slot2gpu[other]
    limit, far_limit = target * problem.speed[gpu], target * problem.speed[peer]
    gain = 0.0
    for t in range(len(state.cost)):
        step = state.flow[t, slot] - state.flow[t, other]
        load, far = state.load[t, gpu], state.load[t, peer]
        gain += _burden(load, limit) - _burden(load - step, limit)
        gain += _burden(far, far_limit) - _burden(far + step, far_limit)
    return gain


@inlined
def _add_shares(problem, state, t, expert, change, delta):
    """Add to ``delta`` [gpus] that each copy of ``expert`` carries so much more."""
    for k in range(state.n_hosts[expert]):
        delta[problem.slot2gpu[state.hosts[expert, k]]] += change


@inlined
def _take_gain(problem, state, target, t, expert, delta):
    """Burden that goes with ``delta`` on the GPUs of ``expert``; there it is back to zero after that."""
    gain = 0.0
    for k in range(state.n_hosts[expert]):
        gpu = problem.slot2gpu[state.hosts[expert, k]]
        load, limit = state.load[t, gpu], target * problem.speed[gpu]
        gain += _burden(load, limit) - _burden(load + delta[gpu], limit)
        delta[gpu] = 0.0
    return gain


@inlined
def _relabel_gain(problem, state, delta, target, slot, new):
    """Burden that goes if ``slot`` holds ``new`` instead."""
    old, gpu, gain = state.slots[slot], problem.slot2gpu[slot], 0.0
    n, m = state.n_hosts[old] if old >= 0 else 0, state.n_hosts[new]
    limit = target * problem.speed[gpu]
    for t in range(len(state.cost)):
        share, own = problem.demand[t, new] / m, problem.demand[t, new] / (m + 1)
        if old >= 0:
            gone = problem.demand[t, old] / n
            _add_shares(problem, state, t, old, gone / (n - 1), delta)
            delta[gpu] -= gone / (n - 1) + gone
        delta[gpu] += own
        _add_shares(problem, state, t, new, own - share, delta)
        load = state.load[t, gpu]
        gain += _burden(load, limit) - _burden(load + delta[gpu], limit)
        delta[gpu] = 0.0
        if old >= 0:
            gain += _take_gain(problem, state, target, t, old, delta)
        gain += _take_gain(problem, state, target, t, new, delta)
    return gain


@inlined
def _mark_burdened(problem, state, target, is_burdened):
    for gpu in range(len(problem.speed)):
        is_burdened[gpu] = False
        for t in range(len(state.cost)):
            if state.load[t, gpu] > target * problem.speed[gpu] + LEAST_GAIN:
                is_burdened[gpu] = True


@inlined
def _has_burdened_host(problem, state, expert, is_burdened):
    found = False
    for k in range(state.n_hosts[expert]):
        found = found or is_burdened[problem.slot2gpu[state.hosts[expert, k]]]
    return found


@inlined
def _per_fetch(problem, state, old_on, gain, slot, other, new):
    return gain / max(np.float64(moves(problem, state, old_on, slot, other, new)), NO_FETCH)


@inlined
def _best_exchange(problem, state, old_on, target, is_burdened):
    """(slot, other slot) that relieve most for a fetch, and how much."""
    best, best_slot, best_other = 0.0, -1, -1
    for slot in range(len(state.slots)):
        if not is_burdened[problem.slot2gpu[slot]]:
            continue
        for other in range(len(state.slots)):
            if not may_exchange(problem, state, slot, other):
                continue
            gain = _exchange_gain(problem, state, target, slot, other)
            if gain <= LEAST_GAIN:
                continue
            gain = _per_fetch(problem, state, old_on, gain, slot, other, -1)
            if gain > best:
                best, best_slot, best_other = gain, slot, other
    return best, best_slot, best_other


@inlined
def _best_relabel(problem, state, old_on, delta, target, is_burdened):
    """(slot, expert) that relieve most for a fetch, and how much."""
    best, best_slot, best_new = 0.0, -1, -1
    for slot in range(len(state.slots)):
        old = state.slots[slot]
        if old >= 0 and state.n_hosts[old] < 2:
            continue
        from_burdened = is_burdened[problem.slot2gpu[slot]]
        for new in range(len(state.n_hosts)):
            if not (from_burdened or _has_burdened_host(problem, state, new, is_burdened)):
                continue
            if not may_relabel(problem, state, slot, new):
                continue
            gain = _relabel_gain(problem, state, delta, target, slot, new)
            if gain <= LEAST_GAIN:
                continue
            gain = _per_fetch(problem, state, old_on, gain, slot, -1, new)
            if gain > best:
                best, best_slot, best_new = gain, slot, new
    return best, best_slot, best_new


@inlined
def _settle(problem, state, scratch, slot, other, old):
    """Flows, loads and costs after the change that has been made."""
    for t in range(len(state.cost)):
        for gpu in range(len(problem.speed)):
            scratch.load[t, gpu] = state.load[t, gpu]
        for i in range(len(state.slots)):
            scratch.flow[t, i] = state.flow[t, i]
        if other < 0:
            scratch.load[t, problem.slot2gpu[slot]] -= scratch.flow[t, slot]
            scratch.flow[t, slot] = 0.0
            if old >= 0:
                split(problem, state, scratch, t, old)
            split(problem, state, scratch, t, state.slots[slot])
        else:
            step = state.flow[t, slot] - state.flow[t, other]
            scratch.flow[t, slot], scratch.flow[t, other] = state.flow[t, other], state.flow[t, slot]
            scratch.load[t, problem.slot2gpu[slot]] -= step
            scratch.load[t, problem.slot2gpu[other]] += step
        scratch.cost[t] = busiest(problem, scratch, t)
    keep_costs(state, scratch)


def _sealed(seal):
    @compiled
    def relieve(problem, state, scratch, old_on, target, n_changes):
        """Bring the mean of the costs to ``target``, by what takes off most for each expert that is fetched.

        Every exchange and every new label that can help is looked at before each of the ``n_changes`` changes
        at most. Returns the sum of the costs.
        """
        _ = seal  # a new one is a new key in numba's cache
        delta = np.zeros(len(problem.speed))
        is_burdened = np.zeros(len(problem.speed), np.bool_)
        set_up(problem, state, scratch)
        for _change in range(n_changes):
            if state.cost.sum() <= target * len(state.cost):
                break
            _mark_burdened(problem, state, target, is_burdened)
            best, slot, other = _best_exchange(problem, state, old_on, target, is_burdened)
            better, at, new = _best_relabel(problem, state, old_on, delta, target, is_burdened)
            if better > best:
                best, slot, other = better, at, -1
            if best < LEAST_PAY * len(state.cost):
                break
            old = apply(problem, state, slot, other, new)
            _settle(problem, state, scratch, slot, other, old)
        return state.cost.sum()

    return relieve


relieve = _sealed(fingerprint(str(Path(__file__).parent), *PIECES))
