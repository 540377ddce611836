"""Weighted copies in vLLM: its choice of a copy follows the quotas of the last window.

vLLM keeps its maps in tensors that it changes in place when experts have moved. Beside each model's map stand
the weights of its copies; they are set when the map is, from the loads that the map was made for.
"""

import sys
from functools import wraps
from types import ModuleType
from typing import Any

from evenload._optional import require
from evenload.moe.adapters.after_import import after_import
from evenload.moe.adapters.vllm import SearchPolicy, use_policy
from evenload.moe.routing.weighted_choice import LayerWeights, choose_slots
from evenload.moe.routing.weighted_copies import WeightedCopies

EPLB = "vllm.distributed.eplb"
ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router"


class WeightedPolicy(SearchPolicy):
    """A policy that searches for a placement whose copies can even out any batch, with few fetches."""

    objective = "routed"


class _Weights:
    """The weights of every model in this process, found by the address of a layer's map: a model's is its
    first layer's.
    """

    def __init__(self) -> None:
        self._by_map: dict[int, tuple[LayerWeights, bool, WeightedCopies]] = {}

    def of_map(self, logical_to_physical_map: Any) -> tuple[LayerWeights, bool] | None:
        """The layer's weights, and whether each rank has all tokens of a batch."""
        found = self._by_map.get(logical_to_physical_map.data_ptr())
        return None if found is None else found[:2]

    def add(self, model: Any, n_gpus: int, is_whole: bool) -> WeightedCopies:
        """Make weights for ``model``, vLLM's ``EplbModelState``: equal ones, until its first window."""
        phy2log, log2phy = model.physical_to_logical_map, model.logical_to_physical_map
        copies = WeightedCopies(phy2log, log2phy.shape[1], n_gpus, device=log2phy.device)
        for layer in range(len(log2phy)):
            self._by_map[log2phy[layer].data_ptr()] = copies.layer(layer), is_whole, copies
        return copies

    def refresh(self, model: Any, n_gpus: int, layer: int | None = None) -> None:
        """Set the weights of ``model`` (or of one layer) for its map and the loads of its last window."""
        found = self._by_map.get(model.logical_to_physical_map.data_ptr())
        if found is None:
            return
        _, is_whole, copies = found
        if tuple(model.physical_to_logical_map.shape) != copies.shape:  # ranks have joined or left
            copies = self.add(model, n_gpus, is_whole)
        layers = None if layer is None else [layer]
        copies.refresh(model.last_expert_load, model.physical_to_logical_map, layers)


WEIGHTS = _Weights()


def install_when_imported() -> None:
    """Change vLLM's modules of balancing as soon as this process imports them."""
    after_import(f"{EPLB}.policy", lambda module: use_policy(module, WeightedPolicy))
    after_import(f"{EPLB}.eplb_state", hook_state)
    after_import(ROUTER, hook_router)


def hook_state(module: ModuleType) -> None:
    """Make weights when ``vllm.distributed.eplb.eplb_state`` adds a model, and set them when it sets maps."""
    state: Any = module.EplbState

    def n_gpus() -> int:
        return module.get_ep_group().device_group.size()

    def then(owner: Any, name: str, act: Any) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def both(*arguments: Any, **named: Any) -> Any:
            answer = original(*arguments, **named)
            act(*arguments, **named)
            return answer

        setattr(owner, name, both)

    def added(self: Any, *_: Any, **__: Any) -> None:
        # Data-parallel ranks have tokens of their own; others compute every token's experts together.
        is_whole = self.parallel_config.data_parallel_size == 1
        for model in self.model_states.values():
            if WEIGHTS.of_map(model.logical_to_physical_map) is None:
                WEIGHTS.add(model, n_gpus(), is_whole)

    def mapped(self: Any, model_config: Any, *_: Any, **__: Any) -> None:
        WEIGHTS.refresh(self.model_states[model_config.compute_hash()], n_gpus())

    def committed(model_state: Any, *_: Any, **__: Any) -> None:
        WEIGHTS.refresh(model_state, n_gpus())

    def committed_layer(model_state: Any, new_physical_to_logical_map: Any, layer: int) -> None:
        WEIGHTS.refresh(model_state, n_gpus(), layer)

    then(state, "add_model", added)
    then(state, "update_mapping", mapped)
    then(module, "_commit_eplb_maps", committed)
    then(module, "_commit_eplb_maps_for_layer", committed_layer)


def hook_router(module: ModuleType) -> None:
    """Replace ``eplb_map_to_physical_and_record`` of ``module``: same arguments, same record of loads."""
    original = module.eplb_map_to_physical_and_record

    @wraps(original)
    def map_and_record(
        topk_ids: Any,
        expert_load_view: Any,
        logical_to_physical_map: Any,
        logical_replica_count: Any,
        record_enabled: Any,
        num_unpadded_tokens: Any = None,
    ) -> Any:
        found = WEIGHTS.of_map(logical_to_physical_map)
        if found is None:
            return original(
                topk_ids=topk_ids, expert_load_view=expert_load_view,
                logical_to_physical_map=logical_to_physical_map, logical_replica_count=logical_replica_count,
                record_enabled=record_enabled, num_unpadded_tokens=num_unpadded_tokens,
            )  # fmt: skip
        return _map_and_record(topk_ids, expert_load_view, *found, record_enabled, num_unpadded_tokens)

    # Also where it was imported from there before, under whatever name.
    for one in (module, *list(sys.modules.values())):
        for name, value in list(getattr(one, "__dict__", {}).items()):
            if value is original:
                setattr(one, name, map_and_record)


def _map_and_record(
    topk_ids: Any, load: Any, weights: LayerWeights, is_whole: bool, is_recording: Any, n_tokens: Any
) -> Any:
    torch = require("torch", extra="moe")
    is_token = torch.ones(topk_ids.shape, dtype=torch.bool, device=topk_ids.device)
    if n_tokens is not None:
        is_token &= torch.arange(len(topk_ids), device=topk_ids.device)[:, None] < n_tokens
    slots = choose_slots(
        topk_ids.long(),
        weights,
        counts=None,
        mask=is_token,
        rank=None,
        n_ranks=1,
        sweeps=2 if is_whole else 0,
    )
    counted = is_token & (slots >= 0) & (is_recording != 0)
    load.scatter_add_(0, slots.clamp(min=0).reshape(-1), counted.reshape(-1).to(load.dtype))
    return slots.to(topk_ids.dtype)  # as vLLM: -1 is the largest number of a dtype without a sign
