"""Exact routing of divisible demand: integer shares per replica with the least possible maximum load.

Experts have demand (tokens), replicas sit on GPUs, an expert's demand may be cut anywhere between its
replicas. ``route(phy2log, demands, n_gpus)`` answers once; a ``Router`` answers batch after batch without
allocating. Each answer carries a certificate: GPUs and the load that no routing can keep away from them.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.balance.flow.certificate import Certificate
    from evenload.balance.flow.graph import ReplicaGraph
    from evenload.balance.flow.router import Router, route
    from evenload.balance.flow.routing import Routing

_HOMES = {
    "Certificate": "certificate",
    "ReplicaGraph": "graph",
    "Router": "router",
    "Routing": "routing",
    "route": "router",
}

__all__ = ["Certificate", "ReplicaGraph", "Router", "Routing", "route"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
