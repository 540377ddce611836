"""Policies for vLLM's expert-parallel load balancer, with the methods of vLLM 0.33's ``AbstractEplbPolicy``.

vLLM asks a policy for ``phy2log``, moves the weights itself, and splits an expert's tokens equally over its
copies. So ``SearchPolicy`` plans for an equal split. To use one, before the engine starts:

    from evenload.moe.adapters import vllm
    vllm.install(vllm.SearchPolicy)
"""

from typing import Any, ClassVar

import numpy as np

from evenload._optional import is_installed, require
from evenload.errors import MissingExtra
from evenload.moe.adapters.engine_plan import EnginePlanner
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import check_division
from evenload.moe.search.move_costs import FETCH_TOKENS


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
