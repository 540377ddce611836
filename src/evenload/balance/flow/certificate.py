"""``Certificate``: the proof that a routing is best, a set of GPUs and the load that they must carry."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph

__all__ = ["Certificate"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A set of GPUs that must carry ``load`` together, whatever the routing, with ``speed`` in all.

    So some GPU among them has load / speed of at least ``bound``, even if demand could be cut into fractions;
    and no routing of whole tokens has a maximum below ``peak``. ``experts`` are those whose demand only these
    GPUs can serve, all of it or (where replicas have capacities) a part. The fastest GPU has speed 1.
    """

    gpus: tuple[int, ...]
    experts: tuple[int, ...]
    load: int
    speed: Fraction
    bound: Fraction
    peak: Fraction

    def proves(
        self,
        graph: ReplicaGraph,
        layer: int,
        demand: NDArray[np.int64],
        speeds: NDArray[np.int64] | None = None,
        fixed: NDArray[np.int64] | None = None,
        capacities: NDArray[np.int64] | None = None,
    ) -> bool:
        """Whether sums over the graph, without the router, show that the set's load allows no lower peak.

        demand [experts], speeds [gpus] whole numbers, fixed [gpus], capacities [slots]: as in the call of the
        router.
        """
        relative = relative_speeds(graph, speeds)
        inside = np.zeros(graph.n_gpus, dtype=bool)
        inside[list(self.gpus)] = True
        shut_in = forced_demand(graph, layer, demand, inside, capacities)
        load = int(shut_in.sum()) + (0 if fixed is None else int(np.asarray(fixed)[inside].sum()))
        speed = sum((relative[gpu] for gpu in self.gpus), Fraction(0))
        room_below_peak = sum(max(math.ceil(self.peak * relative[gpu]) - 1, -1) for gpu in self.gpus)
        return (
            load == self.load
            and speed == self.speed
            and self.bound == Fraction(load) / speed
            and tuple(np.flatnonzero(shut_in).tolist()) == self.experts
            and room_below_peak < load
        )


def relative_speeds(graph: ReplicaGraph, speeds: NDArray[np.int64] | None) -> list[Fraction]:
    """[gpus] speeds: 1 for the fastest, 0 for a dead one."""
    if speeds is None:
        return [Fraction(int(alive)) for alive in graph.alive]
    return [Fraction(int(speed), int(speeds.max())) for speed in speeds]


def forced_demand(
    graph: ReplicaGraph,
    layer: int,
    demand: NDArray[np.int64],
    inside: NDArray[np.bool_],
    capacities: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """[experts] int64: how much of each expert's demand cannot be served outside the GPUs of ``inside``."""
    outside = np.zeros(graph.n_experts, dtype=np.int64)
    seen: set[tuple[int, int]] = set()
    for slot, expert in enumerate(graph.phy2log[layer].tolist()):
        gpu = int(graph.slot2gpu[slot])
        if expert < 0 or inside[gpu] or (expert, gpu) in seen:
            continue
        seen.add((expert, gpu))
        most = demand[expert] if capacities is None else min(demand[expert], capacities[slot])
        outside[expert] = min(outside[expert] + most, demand[expert])
    return demand - outside
