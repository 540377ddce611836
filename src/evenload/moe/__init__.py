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
    from evenload.moe.cloning.cloner import Cloner, clone_experts
    from evenload.moe.cloning.device import DeviceCloner
    from evenload.moe.cloning.fetch_costs import FetchCosts
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import Placement, rebalance_experts
    from evenload.moe.routing.agreement import agree_on
    from evenload.moe.routing.batch_plan import BatchPlan
    from evenload.moe.routing.dispatch import Dispatcher
    from evenload.moe.routing.planner import Planner
    from evenload.moe.routing.weighted_copies import WeightedCopies
    from evenload.moe.search.engine_schedules import MigrationFlow, layer_chunks, migration_batches
    from evenload.moe.search.payback import Payback, where_it_pays
    from evenload.moe.search.plan import Plan, place
    from evenload.moe.search.renumber import renumber
    from evenload.moe.search.transfers import Schedule, Transfer, schedule_transfers
    from evenload.moe.topology import create_redundant_mapping
    from evenload.moe.trace import Trace, read_trace

_HOMES = {
    "BatchPlan": "routing.batch_plan",
    "ClonePlan": "cloning.clone_plan",
    "Cloner": "cloning.cloner",
    "DeviceCloner": "cloning.device",
    "Dispatcher": "routing.dispatch",
    "FetchCosts": "cloning.fetch_costs",
    "Fleet": "placement.fleet",
    "MigrationFlow": "search.engine_schedules",
    "Payback": "search.payback",
    "Placement": "placement.rebalance",
    "Plan": "search.plan",
    "Planner": "routing.planner",
    "Schedule": "search.transfers",
    "Trace": "trace",
    "Transfer": "search.transfers",
    "WeightedCopies": "routing.weighted_copies",
    "agree_on": "routing.agreement",
    "clone_experts": "cloning.cloner",
    "create_redundant_mapping": "topology",
    "layer_chunks": "search.engine_schedules",
    "migration_batches": "search.engine_schedules",
    "place": "search.plan",
    "read_trace": "trace",
    "rebalance_experts": "placement.rebalance",
    "renumber": "search.renumber",
    "schedule_transfers": "search.transfers",
    "where_it_pays": "search.payback",
}

__all__ = [
    "BatchPlan",
    "ClonePlan",
    "Cloner",
    "DeviceCloner",
    "Dispatcher",
    "FetchCosts",
    "Fleet",
    "MigrationFlow",
    "Payback",
    "Placement",
    "Plan",
    "Planner",
    "Schedule",
    "Trace",
    "Transfer",
    "WeightedCopies",
    "agree_on",
    "clone_experts",
    "create_redundant_mapping",
    "layer_chunks",
    "migration_batches",
    "place",
    "read_trace",
    "rebalance_experts",
    "renumber",
    "schedule_transfers",
    "where_it_pays",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
