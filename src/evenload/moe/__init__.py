"""Mixture-of-experts models: placements of experts on GPUs, and routing of tokens to copies.

    loads ──► placement, plan ──► phy2log ──► Planner (routing, dispatch) ──► physical ids

``rebalance_experts`` is EPLB's policy; ``place`` searches beyond it with the exact router as judge;
``Planner`` routes batch after batch over a placement; ``clone_experts`` makes copies anew for each
batch. ``adapters`` fits them into serving and training
engines.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.moe.cloning.clone_plan import ClonePlan
    from evenload.moe.cloning.cloner import Cloner, DeviceCloner, clone_experts
    from evenload.moe.cloning.fetch_bound import FetchCosts
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import Placement, rebalance_experts
    from evenload.moe.routing.dispatch import Dispatcher
    from evenload.moe.routing.exchange import agree_on
    from evenload.moe.routing.planner import BatchPlan, Planner
    from evenload.moe.routing.weighted_copies import WeightedCopies
    from evenload.moe.search.move_rule import MoveCosts, MoveRule, MoveState, Window
    from evenload.moe.search.plan import PlacementPlan, place
    from evenload.moe.search.transfers import (
        MigrationFlow,
        Schedule,
        Transfer,
        layer_chunks,
        migration_batches,
        renumber,
        schedule_transfers,
    )
    from evenload.moe.topology import create_redundant_mapping
    from evenload.moe.trace import Trace, read_trace

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cloning.clone_plan": "ClonePlan",
        "cloning.cloner": "clone_experts Cloner DeviceCloner",
        "cloning.fetch_bound": "FetchCosts",
        "placement.fleet": "Fleet",
        "placement.rebalance": "Placement rebalance_experts",
        "routing.dispatch": "Dispatcher",
        "routing.exchange": "agree_on",
        "routing.planner": "BatchPlan Planner",
        "routing.weighted_copies": "WeightedCopies",
        "search.move_rule": "MoveCosts MoveRule MoveState Window",
        "search.plan": "place PlacementPlan",
        "search.transfers": (
            "layer_chunks migration_batches MigrationFlow renumber Schedule schedule_transfers Transfer"
        ),
        "topology": "create_redundant_mapping",
        "trace": "read_trace Trace",
    },
)
