"""The compiled search that ``repair`` runs under an equal split: at each step the change that gains most.

Where several GPUs tie for the busiest, no single change lowers the maximum, and a search that looks at the
maximum alone is stuck. So a change's *gain* is how much it lowers the *burden*: the load of all GPUs beyond
the target, plus a fixed toll for each GPU beyond it, as each of these needs a change of its own.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenload.moe.placement.kernels.cost import displace, keep_costs, set_up, split_cost
from evenload.moe.placement.kernels.state import apply, may_exchange, may_relabel, n_more_fetches
from evenload.native.kernel import compiled, inlined

TOLL = 0.02  # of the mean load, for each GPU beyond the target
LEAST_GAIN = 1e-7
LEAST_PAY = 1e-4  # of burden, for each expert fetched and scenario
UNKNOWN = -2
NO_FETCH = 0.01  # fetches that a change counts as, at least


class BestChanges(NamedTuple):
    """The best exchange and the best relabel of each slot, kept from step to step."""

    gain: NDArray[np.float64]  # [slots] gain per fetch of the best exchange
    other: NDArray[np.int64]  # [slots] the slot to exchange with, -1 if no exchange gains, or UNKNOWN
    relabel_gain: NDArray[np.float64]  # [slots] gain per fetch of the best relabel
    new: NDArray[np.int64]  # [slots] its expert, -1 if no relabel gains, or UNKNOWN
    is_touched: NDArray[np.bool_]  # [gpus] whether the last step changed the GPU's load or slots


@inlined
def _burden(load, limit):
    """The burden of one GPU."""
    return load - limit + TOLL if load > limit + LEAST_GAIN else 0.0


@inlined
def _exchange_gain(problem, state, target, slot, other):
    """The gain of an exchange."""
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
    """Add ``change`` to ``delta`` [gpus] for each copy of ``expert``."""
    for k in range(state.n_hosts[expert]):
        delta[problem.slot2gpu[state.hosts[expert, k]]] += change


@inlined
def _take_gain(problem, state, target, t, expert, delta):
    """The gain of adding ``delta`` [gpus] to the loads of the GPUs of ``expert``; resets it to zero there."""
    gain = 0.0
    for k in range(state.n_hosts[expert]):
        gpu = problem.slot2gpu[state.hosts[expert, k]]
        load, limit = state.load[t, gpu], target * problem.speed[gpu]
        gain += _burden(load, limit) - _burden(load + delta[gpu], limit)
        delta[gpu] = 0.0
    return gain


@inlined
def _relabel_gain(problem, state, delta, target, slot, new):
    """The gain of putting ``new`` into ``slot``."""
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
    """Write which GPUs are beyond the target in any scenario."""
    for gpu in range(len(problem.speed)):
        is_burdened[gpu] = False
        for t in range(len(state.cost)):
            if state.load[t, gpu] > target * problem.speed[gpu] + LEAST_GAIN:
                is_burdened[gpu] = True


@inlined
def _has_copy_on(problem, state, expert, chosen):
    """Whether one of the ``chosen`` [gpus] holds ``expert``."""
    found = False
    for k in range(state.n_hosts[expert]):
        found = found or chosen[problem.slot2gpu[state.hosts[expert, k]]]
    return found


@inlined
def _per_fetch(problem, state, old_on, gain, slot, other, new):
    return gain / max(np.float64(n_more_fetches(problem, state, old_on, slot, other, new)), NO_FETCH)


@inlined
def _consider_exchange(problem, state, old_on, target, known, slot, other):
    """Keep the exchange if it gains more per fetch than the best known one of ``slot``."""
    if not may_exchange(problem, state, slot, other):
        return
    gain = _exchange_gain(problem, state, target, slot, other)
    if gain > LEAST_GAIN:
        gain = _per_fetch(problem, state, old_on, gain, slot, other, -1)
        if gain > known.gain[slot]:
            known.gain[slot], known.other[slot] = gain, other


@inlined
def _best_exchange(problem, state, old_on, target, is_burdened, known):
    """The exchange that gains most per fetch: (gain per fetch, slot, other slot).

    Only exchanges with GPUs that the last step touched are judged anew.
    """
    best, best_slot, best_other = 0.0, -1, -1
    for slot in range(len(state.slots)):
        gpu, other = problem.slot2gpu[slot], known.other[slot]
        if not is_burdened[gpu]:
            known.other[slot] = UNKNOWN
            continue
        if (
            known.is_touched[gpu]
            or other == UNKNOWN
            or (other >= 0 and known.is_touched[problem.slot2gpu[other]])
        ):
            known.gain[slot], known.other[slot] = 0.0, -1
            for peer in range(len(state.slots)):
                _consider_exchange(problem, state, old_on, target, known, slot, peer)
        else:
            for peer_gpu in range(len(problem.speed)):
                if known.is_touched[peer_gpu]:
                    for peer in range(problem.first_slot[peer_gpu], problem.first_slot[peer_gpu + 1]):
                        _consider_exchange(problem, state, old_on, target, known, slot, peer)
        if known.gain[slot] > best:
            best, best_slot, best_other = known.gain[slot], slot, known.other[slot]
    return best, best_slot, best_other


@inlined
def _best_relabel(problem, state, old_on, delta, target, is_burdened, known):
    """The relabel that gains most per fetch: (gain per fetch, slot, expert); like ``_best_exchange``."""
    best, best_slot, best_new = 0.0, -1, -1
    for slot in range(len(state.slots)):
        old, gpu, held = state.slots[slot], problem.slot2gpu[slot], known.new[slot]
        if old >= 0 and state.n_hosts[old] < 2:
            known.new[slot] = UNKNOWN
            continue
        is_anew = (
            known.is_touched[gpu]
            or held == UNKNOWN
            or (held >= 0 and _has_copy_on(problem, state, held, known.is_touched))
            or (old >= 0 and _has_copy_on(problem, state, old, known.is_touched))
        )
        if is_anew:
            known.relabel_gain[slot], known.new[slot] = 0.0, -1
        for new in range(len(state.n_hosts)):
            if not (is_anew or _has_copy_on(problem, state, new, known.is_touched)):
                continue
            if not (is_burdened[gpu] or _has_copy_on(problem, state, new, is_burdened)):
                continue
            if not may_relabel(problem, state, slot, new):
                continue
            gain = _relabel_gain(problem, state, delta, target, slot, new)
            if gain > LEAST_GAIN:
                gain = _per_fetch(problem, state, old_on, gain, slot, -1, new)
                if gain > known.relabel_gain[slot]:
                    known.relabel_gain[slot], known.new[slot] = gain, new
        if known.relabel_gain[slot] > best and known.new[slot] >= 0:
            best, best_slot, best_new = known.relabel_gain[slot], slot, known.new[slot]
    return best, best_slot, best_new


@inlined
def _update(problem, state, scratch, slot, other, old, is_touched):
    """Update flows, loads and costs after a change that has been applied; write the GPUs that it touched."""
    for gpu in range(len(problem.speed)):
        is_touched[gpu] = gpu == problem.slot2gpu[slot] or (other >= 0 and gpu == problem.slot2gpu[other])
    for t in range(len(state.cost)):
        displace(problem, state, scratch, t, slot, other)
        scratch.cost[t] = split_cost(problem, state, scratch, t, slot, other, old)
        for gpu in range(len(problem.speed)):
            is_touched[gpu] = is_touched[gpu] or scratch.load[t, gpu] != state.load[t, gpu]
    keep_costs(state, scratch)


@compiled
def repair(problem, state, scratch, old_on, target, n_changes):
    """Bring the mean of the costs to ``target``, by the changes that gain most for each expert fetched.

    Makes ``n_changes`` changes at most, and judges every exchange and relabel that can help before each.
    Returns the sum of the costs.
    """
    delta = np.zeros(len(problem.speed))
    is_burdened = np.zeros(len(problem.speed), np.bool_)
    known = BestChanges(
        np.zeros(len(state.slots)), np.full(len(state.slots), UNKNOWN),
        np.zeros(len(state.slots)), np.full(len(state.slots), UNKNOWN),
        np.zeros(len(problem.speed), np.bool_),
    )  # fmt: skip
    set_up(problem, state, scratch)
    for _change in range(n_changes):
        if state.cost.sum() <= target * len(state.cost):
            break
        _mark_burdened(problem, state, target, is_burdened)
        best, slot, other = _best_exchange(problem, state, old_on, target, is_burdened, known)
        better, at, new = _best_relabel(problem, state, old_on, delta, target, is_burdened, known)
        if better > best:
            best, slot, other = better, at, -1
        if best < LEAST_PAY * len(state.cost):
            break
        is_allowed = (
            may_exchange(problem, state, slot, other)
            if other >= 0
            else may_relabel(problem, state, slot, new)
        )
        if not is_allowed:  # a change elsewhere took away a copy that the home node relied on
            known.other[:], known.new[:] = UNKNOWN, UNKNOWN
            continue
        old = apply(problem, state, slot, other, new)
        _update(problem, state, scratch, slot, other, old, known.is_touched)
    return state.cost.sum()
