"""Exact routing of divisible demand: integer quotas per replica with the least possible maximum load.

Experts have demand (tokens) and replicas on GPUs; an expert's demand may be divided in any way over its
replicas. ``route(phy2log, demands, n_gpus)`` routes once; a ``Router`` routes batch after batch without
allocating memory. Each routing has a certificate: GPUs and the load that they carry under any routing.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.balance.flow.certificate import Certificate
    from evenload.balance.flow.graph import ReplicaGraph
    from evenload.balance.flow.router import Router, route
    from evenload.balance.flow.routing import Routing

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {"certificate": "Certificate", "graph": "ReplicaGraph", "router": "route Router", "routing": "Routing"},
)
