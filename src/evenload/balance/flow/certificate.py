"""``Certificate``: the proof that a routing is best, a set of GPUs and the load that they must carry."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.balance.claim import claim, exact, rounded_down, rounded_up
from evenload.balance.flow.graph import ReplicaGraph
from evenload.errors import ConfigError

__all__ = ["Certificate", "claim_routings"]


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
    routed: "RoutedLayer | None" = field(default=None, repr=False, compare=False)

    def to_json(self, name: str = "batch") -> dict[str, Any]:
        """Return the proof with the batch and its routing, for ``json.dumps``: see ``evenload.certificate``.

        Raises ConfigError if replicas had capacities, or there was no load.
        """
        return claim_routings([self], name)

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
        living = (
            relative[gpu] for gpu in self.gpus if relative[gpu]
        )  # a dead GPU has no room, below any peak
        room_below_peak = sum(math.ceil(self.peak * speed) - 1 for speed in living)
        return (
            load == self.load
            and speed == self.speed
            and self.bound == Fraction(load) / speed
            and tuple(np.flatnonzero(shut_in).tolist()) == self.experts
            and room_below_peak < load
        )


@dataclass(frozen=True, slots=True)
class RoutedLayer:
    """A layer's routing as its certificate was made: copies, so that the router's next call changes nothing.

    demand [experts] and fixed [gpus] in units of cost, quotas [slots] in tokens, of which ``tile`` are a unit
    of cost; 0 if an expert that serves any is one
    """

    graph: ReplicaGraph
    layer: int
    demand: NDArray[np.int64]
    quotas: NDArray[np.int64]
    speeds: NDArray[np.int64] | None
    fixed: NDArray[np.int64] | None
    capacities: NDArray[np.int64] | None
    tile: int

    def evidence(self) -> dict[str, Any]:
        """Return the evidence of a certificate, but for its cut.

        Load that a GPU has anyway becomes an expert of its own.
        """
        graph, phy2log = self.graph, self.graph.phy2log[self.layer].tolist()
        quotas = np.sign(self.quotas) if self.tile == 0 else -(-self.quotas // self.tile)
        held = sorted({expert for expert in phy2log if expert >= 0})
        number = {expert: at for at, expert in enumerate(held)}
        slots: list[int | None] = [number.get(expert) for expert in phy2log]
        demand = [int(self.demand[expert]) for expert in held]
        gpus, shares = graph.slot2gpu.tolist(), quotas.tolist()
        for gpu, load in enumerate([] if self.fixed is None else self.fixed.tolist()):
            if load:
                slots.append(len(demand))
                demand.append(load)
                shares.append(load)
                gpus.append(gpu)
        speeds = graph.alive.astype(int).tolist() if self.speeds is None else self.speeds.tolist()
        layer = {"phy2log": slots, "demand": demand, "quotas": shares}
        return {"slot2gpu": gpus, "speeds": speeds, "layers": [layer]}


def claim_routings(certificates: Sequence[Certificate], name: str) -> dict[str, Any]:
    """Return one document for routings over the same slots (layers, batches), which claims the sum of peaks.

    Raises ConfigError if slots or speeds differ, replicas had capacities, or there was no load.
    """
    evidence: dict[str, Any] = {}
    for one in certificates:
        if one.routed is None or one.routed.capacities is not None:
            raise ConfigError(
                "a routing with capacities of replicas has no certificate that travels",
                hint="route without capacities, or check it here with Certificate.proves",
            )
        found = one.routed.evidence()
        cut = [gpu for gpu in one.gpus if found["speeds"][gpu]]
        found["layers"][0] |= {"cut": cut, "peak": rounded_down(one.peak)}
        evidence = evidence or {**found, "layers": []}
        if (found["slot2gpu"], found["speeds"]) != (evidence["slot2gpu"], evidence["speeds"]):
            raise ConfigError(
                "routings over other slots are no one certificate", hint="certify each by itself"
            )
        evidence["layers"] += found["layers"]
    achieved = sum((exact(rounded_up(one.peak)) for one in certificates), Fraction(0))
    bound = sum((exact(rounded_down(one.peak)) for one in certificates), Fraction(0))
    return claim("routing", name, achieved, bound, evidence)


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
