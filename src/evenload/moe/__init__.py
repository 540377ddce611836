"""Mixture-of-experts models: which GPU holds which experts, and which copy each token goes to.

    loads ──► placement, plan ──► phy2log ──► Planner (routing, dispatch) ──► physical ids

``rebalance_experts`` is EPLB's policy; ``place`` searches beyond it with the exact router as judge;
``Planner`` routes batch after batch over a placement. ``adapters`` fits them into serving and training
engines.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import Dispatcher
    from .fleet import Fleet
    from .placement import Placement, rebalance_experts
    from .plan import Plan, place
    from .planner import BatchPlan, Planner
    from .topology import create_redundant_mapping
    from .trace import Trace, read_trace
    from .transfers import Schedule, Transfer, schedule_transfers

_HOMES = {
    "BatchPlan": "planner",
    "Dispatcher": "dispatch",
    "Fleet": "fleet",
    "Placement": "placement",
    "Plan": "plan",
    "Planner": "planner",
    "Schedule": "transfers",
    "Trace": "trace",
    "Transfer": "transfers",
    "create_redundant_mapping": "topology",
    "place": "plan",
    "read_trace": "trace",
    "rebalance_experts": "placement",
    "schedule_transfers": "transfers",
}

__all__ = [
    "BatchPlan",
    "Dispatcher",
    "Fleet",
    "Placement",
    "Plan",
    "Planner",
    "Schedule",
    "Trace",
    "Transfer",
    "create_redundant_mapping",
    "place",
    "read_trace",
    "rebalance_experts",
    "schedule_transfers",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
