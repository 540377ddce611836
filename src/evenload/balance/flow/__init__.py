"""Exact routing of divisible demand: integer shares per replica with the least possible maximum load.

Experts have demand (tokens), replicas sit on GPUs, an expert's demand may be cut anywhere between its
replicas. ``route(phy2log, demands, n_gpus)`` answers once; a ``Router`` answers batch after batch without
allocating. Each answer carries a certificate: GPUs and the load that no routing can keep away from them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .certificate import Certificate
    from .graph import ReplicaGraph
    from .router import Router, route
    from .routing import Routing

_HOMES = {
    "Certificate": "certificate",
    "ReplicaGraph": "graph",
    "Router": "router",
    "Routing": "routing",
    "route": "router",
}

__all__ = ["Certificate", "ReplicaGraph", "Router", "Routing", "route"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
