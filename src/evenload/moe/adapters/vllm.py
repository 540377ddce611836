"""Policies for vLLM's expert-parallel load balancer, with the methods of vLLM 0.33's ``AbstractEplbPolicy``.

vLLM asks a policy for ``phy2log``, moves the weights itself, and splits an expert's tokens equally over its
copies. So ``SearchPolicy`` plans for an equal split. To use one, before the engine starts:

    from evenload.moe.adapters import vllm
    vllm.install(vllm.SearchPolicy)
"""

import functools
import logging
import warnings
from typing import Any, ClassVar

import numpy as np

from evenload._optional import is_installed, require
from evenload.errors import ConfigError, MissingExtra
from evenload.moe.adapters.engine_map import check_map, without_empty_slots
from evenload.moe.adapters.same_plan import agreed
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.search.plan import place
from evenload.moe.search.transfers import keep_slots

__all__ = ["EplbPolicy", "SearchPolicy", "install", "use_policy"]


class EplbPolicy:
    """The default policy of vLLM, compiled: the same ids, without twins where that is as even."""

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
                                   GPU keep their slots, and a layer without load keeps all of them. Another
                                   shape (the fleet was scaled) is left aside

        Each slot holds an expert, and each expert has a slot: vLLM scatters by the map, and a -1 in it would
        be an index. Raises ConfigError as ``rebalance_experts`` does.
        """
        torch = require("torch", extra="torch", why="a vLLM policy")
        if num_replicas % num_ranks:
            raise ConfigError(
                f"{num_replicas} slots do not divide over {num_ranks} GPUs",
                hint=f"use {-(-num_replicas // num_ranks) * num_ranks} slots",
            )
        loads = weight.detach().float().cpu().numpy()
        old = _old(old_global_expert_indices, (len(loads), num_replicas))
        new = cls._plan(loads, num_replicas, num_groups, num_nodes, num_ranks, old)
        new = without_empty_slots(new, loads, num_ranks)
        if old is not None:
            new = keep_slots(old, new, num_ranks)
            new = np.where(_is_idle(loads, old)[:, None], old, new)
        check_map(new, (len(loads), num_replicas), loads.shape[1])
        return torch.from_numpy(new)

    @classmethod
    def _plan(cls, loads: Any, n_slots: int, n_groups: int, n_nodes: int, n_gpus: int, old: Any) -> Any:
        return rebalance_experts(loads, n_slots, n_groups, n_nodes, n_gpus).phy2log


class SearchPolicy(EplbPolicy):
    """A policy that searches for the most even equal split, with few fetches once a map is in use.

    Where vLLM's policy would keep groups on their nodes, one copy of each expert stays on its group's node.
    In vLLM every rank plans for itself: where processors round differently, all take rank 0's plan.

    target  imbalance that a map in use is brought to; None: plan anew each time
    effort  as in ``place``
    objective  as in ``place``: how vLLM divides an expert's tokens over its copies
    """

    target: ClassVar[float | None] = 1.03
    effort: ClassVar[Any] = "online"
    objective: ClassVar[Any] = "equal"

    @classmethod
    def _plan(cls, loads: Any, n_slots: int, n_groups: int, n_nodes: int, n_gpus: int, old: Any) -> Any:
        def plan() -> Any:
            is_grouped = n_nodes > 1 and n_groups % n_nodes == 0
            return place(
                loads,
                Fleet.even(n_gpus, n_slots, n_nodes=n_nodes),
                objective=cls.objective,
                old=old,
                target=None if old is None else cls.target,
                effort=cls.effort,
                node_limit="base" if is_grouped else "none",
                n_groups=n_groups if is_grouped else None,
            ).phy2log

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = agreed(plan, "vllm.distributed.parallel_state", "get_eplb_group")
        if said:
            _tell_once(
                f"evenload cannot bring the experts of all layers to {cls.target} with {n_slots} slots "
                f"on {n_gpus} GPUs; num_redundant_experts gives more"
            )
        return found


def install(policy: type[EplbPolicy] = EplbPolicy) -> type:
    """Let vLLM use ``policy`` in place of its default one; returns the class that it now uses.

    vLLM takes its policy by name and knows the name "default" only, which is also the one that its
    asynchronous mode asks for: so that is the entry that is replaced. Raises MissingExtra without vLLM.
    """
    if not is_installed("vllm"):
        raise MissingExtra("'vllm' is not installed (its policy cannot be replaced)", hint="pip install vllm")
    return use_policy(require("vllm.distributed.eplb.policy", extra="vllm"), policy)


def use_policy(policies: Any, policy: type[EplbPolicy]) -> type:
    """Put ``policy`` in the place of the default one of vLLM's module; returns the class that it now uses."""
    replaced = type(policy.__name__, (policy, policies.AbstractEplbPolicy), {})
    policies.EPLB_POLICIES["default"] = replaced
    return replaced


def _is_idle(loads: Any, old: Any) -> Any:
    """[layers] whether a layer has no load, so that nothing is to be gained, and a whole map in use."""
    is_whole = [set(range(loads.shape[1])) == set(row) for row in old.tolist()]
    return ~loads.any(axis=1) & np.array(is_whole, bool)


@functools.cache
def _tell_once(text: str) -> None:
    """Log a warning where vLLM's operators look, once in each process."""
    logging.getLogger("vllm.evenload").warning(text)


def _old(indices: Any, shape: tuple[int, int]) -> Any:
    if indices is None or tuple(indices.shape) != shape:
        return None
    return np.ascontiguousarray(indices.cpu().numpy().astype(np.int64))
