"""Pieces of the search: changes of a placement, whether they are allowed, what has to be fetched."""

import numpy as np

from evenload.balance.flow.kernels.jit import inlined
from evenload.moe.search.serving_kernels import piece

__all__ = ["apply", "may_exchange", "may_relabel", "moves"]


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
def may_exchange(problem, state, slot, other):
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
def may_relabel(problem, state, slot, new):
    old, gpu = state.slots[slot], problem.slot2gpu[slot]
    return (
        (old < 0 or (state.n_hosts[old] > 1 and _may_go(problem, state, old, slot, -1)))
        and not state.on[gpu, new]
        and not (problem.is_strict and problem.home[new] >= 0 and problem.node[gpu] != problem.home[new])
    )


@piece
def apply(problem, state, slot, other, new):
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
def moves(problem, state, old_on, slot, other, new):
    """How many more experts must be fetched after the change; ``old_on`` [gpus, experts] is what GPUs have
    now.
    """
    a, gpu = state.slots[slot], problem.slot2gpu[slot]
    if other < 0:
        return _fetched(old_on, gpu, new, a)
    b = state.slots[other]
    return _fetched(old_on, gpu, b, a) + _fetched(old_on, problem.slot2gpu[other], a, b)
