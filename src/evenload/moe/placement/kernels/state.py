"""Values that the compiled searches of a layer work on: the problem, a placement with its costs, scratch.

A *scenario* is the experts' demand in one batch, scaled so that a perfectly even fleet has load 1 for each
unit of speed. A placement's *cost* in a scenario is the largest load / speed of a GPU: under exact routing
(the flow of ``balance.flow``, relaxed to fractions), or under an equal split over copies. Each cost comes
with its *cut*: GPUs that together must carry it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenload.native.kernel import inlined, piece


class LayerProblem(NamedTuple):
    """One layer's scenarios and fleet, which a search never changes.

    GPUs are the living ones only, and slots the open ones only, in the order of their GPUs.
    """

    demand: NDArray[np.float64]  # [scenarios, experts], rows sum to speed.sum()
    speed: NDArray[np.float64]  # [gpus]
    slot2gpu: NDArray[np.int64]  # [slots]
    first_slot: NDArray[np.int64]  # [gpus + 1]
    node: NDArray[np.int64]  # [gpus]
    home: NDArray[np.int64]  # [experts] the node that must keep a copy, -1 for none
    is_strict: bool  # whether no copy may leave the home node
    is_routed: bool  # whether exact routing is the judge, not an equal split
    order: NDArray[np.int64]  # [experts] heaviest first


class LayerState(NamedTuple):
    """A placement of one layer, with each scenario's flow, loads, cost and cut."""

    slots: NDArray[np.int64]  # [slots] expert, -1 if empty
    hosts: NDArray[np.int64]  # [experts, gpus] the slots that hold it, the first ``n_hosts`` of them
    n_hosts: NDArray[np.int64]  # [experts] copies
    on: NDArray[np.bool_]  # [gpus, experts] whether the GPU holds the expert
    flow: NDArray[np.float64]  # [scenarios, slots] load that each slot serves
    load: NDArray[np.float64]  # [scenarios, gpus]
    cost: NDArray[np.float64]  # [scenarios]
    cut: NDArray[np.bool_]  # [scenarios, gpus] whether the GPU is in the cut
    cut_speed: NDArray[np.float64]  # [scenarios] of the cut's GPUs


class Scratch(NamedTuple):
    """The flow, loads, costs and cuts after a change that is being tried, and working memory."""

    flow: NDArray[np.float64]  # [scenarios, slots]
    load: NDArray[np.float64]  # [scenarios, gpus]
    cost: NDArray[np.float64]  # [scenarios]
    cut: NDArray[np.bool_]  # [scenarios, gpus]
    cut_speed: NDArray[np.float64]  # [scenarios]
    least: NDArray[np.float64]  # [scenarios] lower bound of the cost
    turn: NDArray[np.int64]  # [scenarios] the order they are tried in: those that rejected most changes first
    parent: NDArray[np.int64]  # [gpus] the GPU from which the walk came to this one
    giver: NDArray[np.int64]  # [gpus] the slot there that gives load to this GPU
    taker: NDArray[np.int64]  # [gpus] the slot of this GPU that takes it
    queue: NDArray[np.int64]  # [gpus]
    random: NDArray[np.uint64]  # [1] state of the random numbers


@inlined
def _replace_host(state, expert, old, new):
    """Replace the slot ``old`` by ``new`` among the slots that hold ``expert``."""
    for k in range(state.n_hosts[expert]):
        if state.hosts[expert, k] == old:
            state.hosts[expert, k] = new
            return


@inlined
def _exchange(problem, state, slot, other):
    a, b = state.slots[slot], state.slots[other]
    gpu, peer = problem.slot2gpu[slot], problem.slot2gpu[other]
    _replace_host(state, a, slot, other)
    _replace_host(state, b, other, slot)
    state.slots[slot], state.slots[other] = b, a
    state.on[gpu, a], state.on[peer, b] = False, False
    state.on[peer, a], state.on[gpu, b] = True, True


@inlined
def _relabel(problem, state, slot, new):
    old, gpu = state.slots[slot], problem.slot2gpu[slot]
    if old >= 0:
        last = state.n_hosts[old] - 1
        _replace_host(state, old, slot, state.hosts[old, last])
        state.n_hosts[old] = last
        state.on[gpu, old] = False
    if new >= 0:
        state.hosts[new, state.n_hosts[new]] = slot
        state.n_hosts[new] += 1
        state.on[gpu, new] = True
    state.slots[slot] = new


@inlined
def _home_allows(problem, state, expert, slot, gpu):
    """Whether the home node's rule lets the copy in ``slot`` move to ``gpu`` (-1: be dropped)."""
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
    """Whether the exchange keeps experts at home and puts none twice on a GPU."""
    a, b = state.slots[slot], state.slots[other]
    gpu, peer = problem.slot2gpu[slot], problem.slot2gpu[other]
    return (
        a >= 0
        and b >= 0
        and gpu != peer
        and not state.on[gpu, b]
        and not state.on[peer, a]
        and _home_allows(problem, state, a, slot, peer)
        and _home_allows(problem, state, b, other, gpu)
    )


@inlined
def may_relabel(problem, state, slot, new):
    """Whether the relabel keeps experts at home and in some slot, and puts none twice on a GPU."""
    old, gpu = state.slots[slot], problem.slot2gpu[slot]
    return (
        (old < 0 or (state.n_hosts[old] > 1 and _home_allows(problem, state, old, slot, -1)))
        and not state.on[gpu, new]
        and not (problem.is_strict and problem.home[new] >= 0 and problem.node[gpu] != problem.home[new])
    )


@piece
def apply(problem, state, slot, other, new):
    """Make a change; returns the expert that was in ``slot``, which undoes a relabel."""
    old = state.slots[slot]
    if other >= 0:
        _exchange(problem, state, slot, other)
    else:
        _relabel(problem, state, slot, new)
    return old


@inlined
def _n_more_fetches_of(old_on, gpu, coming, going):
    """How many more experts ``gpu`` must fetch if it gets ``coming`` and loses ``going`` (-1: none)."""
    return np.int64(not old_on[gpu, coming]) - np.int64(going >= 0 and not old_on[gpu, going])


@inlined
def n_more_fetches(problem, state, old_on, slot, other, new):
    """How many more experts must be fetched after the change, -2 to 2.

    old_on  [gpus, experts] whether the GPU holds the expert today
    """
    a, gpu = state.slots[slot], problem.slot2gpu[slot]
    if other < 0:
        return _n_more_fetches_of(old_on, gpu, new, a)
    b = state.slots[other]
    return _n_more_fetches_of(old_on, gpu, b, a) + _n_more_fetches_of(old_on, problem.slot2gpu[other], a, b)
