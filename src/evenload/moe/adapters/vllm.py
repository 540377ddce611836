"""Policies for vLLM's expert-parallel load balancer, with the methods of vLLM 0.33's ``AbstractEplbPolicy``.

With weighted copies, vLLM's choice of a copy follows the quotas of the last window, too.

vLLM asks a policy for ``phy2log``, moves the weights itself, and splits an expert's tokens equally over its
copies. So ``SearchPolicy`` plans for an equal split. To use one, before the engine starts:

    from evenload.moe.adapters import vllm
    vllm.install(vllm.SearchPolicy)
"""

import sys
from functools import wraps
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from evenload._optional import is_installed, require
from evenload.errors import MissingExtra
from evenload.moe.adapters.after_import import after_import
from evenload.moe.adapters.engine_plan import EnginePlanner
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import check_division
from evenload.moe.routing.weighted_copies import LayerWeights, WeightedCopies, choose_slots
from evenload.moe.search.move_rule import FETCH_TOKENS


class EplbPolicy:
    """The default policy of vLLM, compiled: the same ids, without twins where that is as even."""

    policy: ClassVar[str] = "eplb"
    objective: ClassVar[Any] = "equal"
    target: ClassVar[float | None] = None
    effort: ClassVar[Any] = "online"
    fetch_tokens: ClassVar[float | None] = None

    @classmethod
    def rebalance_experts(
        cls,
        weight: Any,
        num_replicas: int,
        num_groups: int,
        num_nodes: int,
        num_ranks: int,
        old_global_expert_indices: Any = None,
    ) -> Any:
        """``phy2log`` [layers, num_replicas], an int64 tensor on the CPU.

        weight                     tensor [layers, experts], loads of the logical experts
        old_global_expert_indices  tensor [layers, num_replicas], the map in use: experts that stay on their
                                   GPU keep their slots; a layer without load, or gain, keeps all of them.
                                   Another shape (the fleet was scaled) is left aside

        Each slot holds an expert, and each expert has a slot: vLLM scatters by the map, and a -1 in it would
        be an index (``EnginePlanner``). Raises ConfigError as ``rebalance_experts`` does.
        """
        torch = require("torch", extra="moe", why="a vLLM policy")
        loads = weight.detach().float().cpu().numpy()
        check_division(loads.shape[1], num_replicas, 1, num_nodes, num_ranks)
        fleet = Fleet.even(num_ranks, num_replicas, n_nodes=num_nodes)
        planner = EnginePlanner(
            cls.policy, cls.objective, "vllm.evenload", ("vllm.distributed.parallel_state", "get_eplb_group"),
            cls.target, cls.effort, cls.fetch_tokens,
        )  # fmt: skip
        old = _old(old_global_expert_indices, (len(loads), num_replicas), loads.shape[1])
        return torch.from_numpy(planner.plan(loads[None], fleet, num_groups, old))


class SearchPolicy(EplbPolicy):
    """A policy that searches for the most even equal split, with few fetches once a map is in use.

    Where vLLM's policy would keep groups on their nodes, one copy of each expert stays on its group's node.
    In vLLM every rank plans for itself: where processors round differently, all take rank 0's plan.

    target  imbalance that a map in use is brought to; None: plan anew each time
    effort  as in ``place``
    objective  as in ``place``: how vLLM divides an expert's tokens over its copies
    fetch_tokens  what a move costs, as in ``MoveCosts``: experts move where ``MoveRule`` says that it is
               worth it over all windows so far; None: wherever a map is more even
    """

    policy = "search"
    target = 1.03
    fetch_tokens = FETCH_TOKENS


def install(policy: type[EplbPolicy] = EplbPolicy) -> type:
    """Let vLLM use ``policy`` in place of its default one; returns the class that it now uses.

    vLLM takes its policy by name and knows the name "default" only, which is also the one that its
    asynchronous mode asks for: so that is the entry that is replaced. Raises MissingExtra without vLLM.
    """
    if not is_installed("vllm"):
        raise MissingExtra("'vllm' is not installed (its policy cannot be replaced)", hint="pip install vllm")
    return use_policy(require("vllm.distributed.eplb.policy", extra="gpu"), policy)


def use_policy(policies: Any, policy: type[EplbPolicy]) -> type:
    """Put ``policy`` in the place of the default one of vLLM's module; returns the class that it now uses."""
    replaced = type(policy.__name__, (policy, policies.AbstractEplbPolicy), {})
    policies.EPLB_POLICIES["default"] = replaced
    return replaced


def _old(indices: Any, shape: tuple[int, int], n_experts: int) -> Any:
    if indices is None or tuple(indices.shape) != shape:
        return None
    old = np.ascontiguousarray(indices.cpu().numpy().astype(np.int64))
    return old if old.min() >= -1 and old.max() < n_experts else None


EPLB = "vllm.distributed.eplb"
ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router"


class WeightedPolicy(SearchPolicy):
    """A policy that searches for a placement whose copies can even out any batch, with few fetches."""

    objective = "routed"


class _Weights:
    """The weights of every model in this process, found by the address of a layer's map: a model's is its
    first layer's.

    vLLM keeps its maps in tensors that it changes in place when experts have moved. The weights are set when
    the map is, from the loads that the map was made for.
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
