"""What the compiled search of a layer works on: the problem, a placement, how it is served, room to work.

A *scenario* is the experts' demand in one batch, scaled so that a perfectly even fleet has load 1 for each
unit of speed. A placement's *cost* in it is the busiest GPU's load for its speed: under exact routing (the
flow of ``balance.flow``, relaxed to fractions), or under an equal split over copies.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Problem", "Scratch", "State"]


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
