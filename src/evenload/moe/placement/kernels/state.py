"""Values that the compiled searches of a layer work on: the problem, a placement with its costs, scratch.

A *scenario* is the experts' demand in one batch, scaled so that a perfectly even fleet has load 1 for each
unit of speed. A placement's *cost* in a scenario is the largest load / speed of a GPU: under exact routing
(the flow of ``balance.flow``, relaxed to fractions), or under an equal split over copies. Each cost comes
with its *cut*: GPUs that together must carry it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
