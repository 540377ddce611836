"""Weighted copies in SGLang: its choice of a copy follows the quotas of the last window.

SGLang changes its placement in place, some layers at a time. Beside it stand the weights of the copies, which
are made with the first placement and set for the same layers at the same time.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from evenload._optional import require
from evenload.moe.adapters.sglang import (
    ALGORITHMS,
    MANAGER_PLANS,
    by_one_or_all,
    hook_registry,
    rebalance_experts,
)
from evenload.moe.routing.weighted_choice import choose_slots
from evenload.moe.routing.weighted_copies import WeightedCopies
from evenload.moe.search.move_costs import FETCH_TOKENS

EPLB = "sglang.srt.eplb"
REPLACED = ("static", "dynamic")  # ways to choose a copy; "lp" and "fake" stay what they are
_planned: list[tuple[Any, Any]] = []  # (phy2log, loads [layers, experts]) of the last plan


def register(fetch_tokens: float | None = FETCH_TOKENS) -> None:
    """Register the hooks with SGLang, which applies them to its modules. ``fetch_tokens`` as for plans."""
    registry, kind = hook_registry()
    dispatch = f"{EPLB}.expert_location_dispatch"
    registry.register(
        f"{ALGORITHMS}.rebalance_experts", partial(plan, fetch_tokens=fetch_tokens), kind.REPLACE
    )
    registry.register(MANAGER_PLANS, by_one_or_all, kind.AROUND)
    registry.register(f"{EPLB}.expert_location.ExpertLocationMetadata.update", update, kind.AROUND)
    registry.register(f"{dispatch}.ExpertLocationDispatchInfo.init_new", describe, kind.AROUND)
    registry.register(f"{dispatch}.topk_ids_logical_to_physical", choose, kind.AROUND)


def plan(tokens_per_expert: Any, *arguments: Any, **named: Any) -> Any:
    """A placement by search, as SGLang's function returns it; its loads are kept for the weights."""
    maps = rebalance_experts(tokens_per_expert, *arguments, policy="search", objective="routed", **named)
    loads = tokens_per_expert.detach().float().cpu()
    _planned[:] = [(maps[0].clone(), loads.sum(dim=0) if loads.ndim == 3 else loads)]
    return maps


def update(original: Callable[..., Any], metadata: Any, other: Any, update_layer_ids: Iterable[int]) -> Any:
    """SGLang's change of some layers' placement; then their weights, in place."""
    layers = list(update_layer_ids)
    answer = original(metadata, other, layers)
    copies = getattr(metadata, "evenload_copies", None)
    if copies is not None:
        phy2log = metadata.physical_to_logical_map_cpu
        loads = np.zeros((len(phy2log), copies.n_experts))
        for planned, found in _planned:
            if planned.shape == phy2log.shape:
                is_same = (planned == other.physical_to_logical_map_cpu).all(dim=1).numpy()
                loads[is_same] = found.numpy()[is_same]
        copies.refresh(loads, phy2log, layers=layers)
    return answer


def describe(original: Callable[..., Any], cls: Any, *arguments: Any, **named: Any) -> Any:
    """SGLang's description of a layer's copies, with the weights of the layer as ``evenload``."""
    found = original(cls, *arguments, **named)
    if found is None or found.ep_dispatch_algorithm not in REPLACED:
        return found
    layer = named["layer_id"] if "layer_id" in named else arguments[0]
    metadata = require(f"{EPLB}.expert_location", extra="moe").get_global_expert_location_metadata()
    if not hasattr(metadata, "evenload_copies"):
        metadata.evenload_copies = WeightedCopies(
            metadata.physical_to_logical_map_cpu,
            metadata.num_logical_experts,
            metadata.ep_size,
            device=metadata.physical_to_logical_map.device,
        )
    found.evenload = metadata.evenload_copies.layer(layer)
    found.evenload_rank = None if found.rank_invariant else _rank() % metadata.ep_size
    found.evenload_ranks = metadata.ep_size
    return found


def choose(original: Callable[..., Any], topk_ids: Any, info: Any, log2phy_prob: Any = None) -> Any:
    """The physical expert of each id, by weights where ``describe`` gave some."""
    weights = getattr(info, "evenload", None)
    if weights is None:
        return original(topk_ids, info, log2phy_prob)
    rank = info.evenload_rank
    return choose_slots(
        topk_ids, weights, counts=None, mask=None, rank=rank, n_ranks=info.evenload_ranks,
        sweeps=2 if rank is None else 0,
    )  # fmt: skip


def _rank() -> int:
    distributed = require("torch.distributed", extra="moe")
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
