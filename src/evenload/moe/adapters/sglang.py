"""SGLang's placement, LP solver and choice of a copy, with the interface of SGLang 0.5, but exact.

from evenload.moe.adapters import sglang
sglang.install()              # placements by EPLB's policy, compiled, twice on a GPU only where more even
sglang.install("search")      # placements by search, for the way in which SGLang divides tokens
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenload._optional import is_installed, require
from evenload.balance.flow import ReplicaGraph, Router
from evenload.errors import ConfigError, MissingExtra
from evenload.moe.adapters.after_import import after_import
from evenload.moe.adapters.engine_plan import EnginePlanner
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import logical_maps
from evenload.moe.routing.weighted_copies import WeightedCopies, choose_slots
from evenload.moe.search.move_rule import FETCH_TOKENS

ALGORITHMS = "sglang.srt.eplb.eplb_algorithms"
LOCATION = "sglang.srt.eplb.expert_location"
MANAGER_PLANS = "sglang.srt.eplb.eplb_manager.EPLBManager._compute_expert_location_metadata"
TARGET = 1.03  # imbalance that a map in use is brought to
_all_plan = ContextVar("all_plan", default=False)
log = logging.getLogger("evenload.moe")

Policy = Literal["eplb", "search"]


def rebalance_experts(
    tokens_per_expert: Any,
    num_physical_experts: int,
    num_local_physical_experts: int,
    num_groups: int | None,
    num_nodes: int,
    algorithm: Any,
    *,
    policy: Policy = "eplb",
    active_ranks: Sequence[bool] | None = None,
    fetch_tokens: float | None = FETCH_TOKENS,
    objective: Literal["equal", "routed"] | None = None,
) -> tuple[Any, Any, Any]:
    """``physical_to_logical_map`` [layers, slots], ``logical_to_all_physical_map`` [layers, experts, X]
    padded with -1, and ``expert_count`` [layers, experts]: int64 tensors on the CPU.

    tokens_per_expert  [windows, layers, experts] (or [layers, experts])
    algorithm          SGLang's enum member or its name. A name that ends in ``hierarchical`` keeps groups on
                       their nodes; one that begins with ``elasticity_aware`` leaves dead ranks out
    policy             "eplb" plans for the sum of the windows; "search" for each of them
    objective          how an expert's tokens are divided over its copies, for "search": "routed" by a solver,
                       "equal" as SGLang does without one; None: as its setting ``ep_dispatch_algorithm`` says
    fetch_tokens       what a move costs, as in ``MoveCosts``: where SGLang's manager plans for a running
                       engine by "search", the map in use gives way by ``MoveRule``; None: wherever another
                       is more even
    active_ranks       [ranks], for ``elasticity_aware``; by default SGLang is asked. Slots of dead ranks hold
                       expert 0, as SGLang has it, and no map leads there

    Raises ConfigError if sizes do not fit, or a load is negative or not finite.
    """
    torch = require("torch", extra="moe", why="SGLang's placement")
    loads = np.asarray(torch.as_tensor(tokens_per_expert).detach().float().cpu().numpy())
    loads = loads[None] if loads.ndim == 2 else loads
    width = num_local_physical_experts
    if loads.ndim != 3 or width < 1 or num_physical_experts % width:
        raise ConfigError(
            f"loads of shape {loads.shape}, {num_physical_experts} slots, {width} a rank",
            hint="give [windows, layers, experts], and as many slots on every rank",
        )
    name = getattr(algorithm, "name", str(algorithm))
    n_gpus, is_elastic = num_physical_experts // width, name.startswith("elasticity_aware")
    alive = _alive(active_ranks, n_gpus) if is_elastic else np.ones(n_gpus, bool)
    n_kept = num_groups if name.endswith("hierarchical") and alive.all() else None
    # One rank that plans for all must not wait for others, nor one for ranks that may be dead.
    group = ("sglang.srt.distributed.parallel_state", "get_world_group")
    all_plan = _all_plan.get() and not is_elastic
    planner = EnginePlanner(
        policy, "equal" if policy == "eplb" else objective or _objective(), "sglang.evenload",
        group if all_plan else None, TARGET, fetch_tokens=fetch_tokens,
    )  # fmt: skip
    n_nodes, dead = 1 if n_kept is None else num_nodes, np.flatnonzero(~alive).tolist()
    fleet = Fleet.even(n_gpus, n_gpus * width, n_nodes=n_nodes, dead=dead)
    old = _in_use((len(loads[0]), num_physical_experts)) if all_plan and policy == "search" else None
    phy2log = planner.plan(loads, fleet, n_kept, old)
    maps = np.where(phy2log < 0, 0, phy2log), *logical_maps(phy2log, loads.shape[2])
    return torch.from_numpy(maps[0]), torch.from_numpy(maps[1]), torch.from_numpy(maps[2])


def _objective() -> Literal["equal", "routed"]:
    """How SGLang divides an expert's tokens over its copies in this process: by its solver, or equally."""
    try:
        is_solved = sys.modules[LOCATION].get_exec().moe.ep_dispatch_algorithm == "lp"
    except (KeyError, AttributeError):  # SGLang is not there, or not set up
        return "equal"
    return "routed" if is_solved else "equal"


def _in_use(shape: tuple[int, int]) -> NDArray[np.int64] | None:
    """The map that a running SGLang has in use, if it is of ``shape`` [layers, slots]."""
    try:
        location = sys.modules[LOCATION].get_global_expert_location_metadata()
        found = location.physical_to_logical_map_cpu.numpy().astype(np.int64)
    except (KeyError, AttributeError):  # nothing is in use yet
        return None
    return found if found.shape == shape else None


def _alive(active_ranks: Any, n_gpus: int) -> NDArray[np.bool_]:
    if active_ranks is None:
        elastic = require("sglang.srt.elastic_ep.elastic_ep", why="elasticity_aware")
        manager = elastic.ElasticEPStateManager
        state = manager.instance()
        active_ranks = manager.healthy_rank_state() if state is None else state.active_ranks
    ranks = active_ranks.tolist() if hasattr(active_ranks, "tolist") else list(active_ranks)
    if len(ranks) != n_gpus or not any(ranks):
        raise ConfigError(
            f"{len(ranks)} ranks, {sum(map(bool, ranks))} active, of {n_gpus}", hint="leave one alive"
        )
    return np.asarray(ranks, bool)


class LPLBSolver:
    """A solver in the shape of SGLang's class of this name, without an LP: exact shares, on any device, for
    any fleet.

    phy2log   tensor [slots], the expert in each; slots lie on GPUs in order, as many on each
    log2phy   tensor [experts, copies], padded with -1
    num_gpus  of the expert-parallel group
    ep_group  what ``all_reduce(tensor)`` is asked of; None if the counts are all there are
    logical_to_all_physical_map_num_valid  accepted for SGLang's sake

    ``solve`` gives SGLang's probabilities, of which sampling realises the optimum only on average;
    ``Planner`` dispatches exactly. For ids on a GPU the counts go to the host and back: use ``Planner``'s
    kernels where that is too slow. Raises ConfigError if the maps do not fit together.
    """

    def __init__(
        self,
        phy2log: Any,
        log2phy: Any,
        num_gpus: int,
        ep_group: Any = None,
        logical_to_all_physical_map_num_valid: Any = None,
    ):
        self._torch = require("torch", extra="moe", why="LPLBSolver")
        slots = phy2log.detach().cpu().numpy().astype(np.int64)
        copies = log2phy.detach().cpu().numpy().astype(np.int64)
        self.num_gpus, self.ep_group, self.num_phy = num_gpus, ep_group, len(slots)
        self.num_logical, self.max_copies = copies.shape
        held = copies >= 0
        if (slots[copies[held]] != np.nonzero(held)[0]).any():
            raise ConfigError(
                "log2phy names slots that phy2log gives to other experts", hint="give maps of one plan"
            )
        graph = ReplicaGraph.from_slots(slots, self.num_logical, num_gpus)
        self._router, self._copies, self._held = Router(graph), np.where(held, copies, 0), held
        self._even = held / held.sum(axis=1, keepdims=True)

    def solve(self, topk_ids: Any) -> Any:
        """[experts, copies] float32 probabilities of sending a token to each copy, on the ids' device.

        topk_ids  tensor [tokens, top-k] of expert ids, possibly empty; -1 is none. All ranks of ``ep_group``
                  must call this together. Raises ConfigError for an id out of range.
        """
        torch, ids = self._torch, topk_ids.reshape(-1).long()
        wrong = (ids < -1) | (ids >= self.num_logical)
        if not topk_ids.is_cuda and bool(wrong.any()):
            raise ConfigError(
                f"id {int(ids[wrong][0])} of {self.num_logical} experts", hint="use -1 for none"
            )
        counts = torch.zeros(self.num_logical + 1, dtype=torch.int64, device=ids.device)
        counts.scatter_add_(0, torch.where(wrong | (ids < 0), self.num_logical, ids), torch.ones_like(ids))
        total = counts[:-1].float()
        if self.ep_group is not None:
            total = self.ep_group.all_reduce(total)
        return torch.from_numpy(self.shares(total.round().long().cpu().numpy())).to(topk_ids.device)

    def shares(self, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """[experts, copies] float32 share of each copy, for ``counts`` [experts]; equal without load."""
        quotas = self._router.solve(counts[None]).quotas[0]
        by_copy = np.where(self._held, quotas[self._copies], 0)
        has_load = counts[:, None] > 0
        return np.divide(by_copy, counts[:, None], out=self._even.copy(), where=has_load).astype(np.float32)


def install(policy: Policy = "eplb", fetch_tokens: float | None = FETCH_TOKENS) -> None:
    """Let SGLang use ``rebalance_experts`` of this module in this process, as the plugin does in all of them.

    With "search", ranks of a running engine agree on one plan, and experts move where that is worth
    ``fetch_tokens``. Raises MissingExtra without SGLang.
    """
    if not is_installed("sglang"):
        raise MissingExtra(
            "'sglang' is not installed (its placement cannot be replaced)", hint="pip install sglang"
        )
    algorithms = require(ALGORITHMS)
    planned = partial(rebalance_experts, policy=policy, fetch_tokens=fetch_tokens)
    setattr(algorithms, "rebalance_experts", planned)  # noqa: B010 (a module)
    after_import(MANAGER_PLANS.rsplit(".", 2)[0], _hook_manager)


def _hook_manager(module: Any) -> None:
    """Let the manager of a running engine say who plans, as the hook of the plugin does."""
    name = MANAGER_PLANS.rsplit(".", 1)[1]
    manager = getattr(module, "EPLBManager", None)
    original = getattr(manager, name, None)
    if original is None:
        log.warning("this SGLang has no %s: its ranks will not compare their plans", MANAGER_PLANS)
        return

    @wraps(original)
    def compute(*arguments: Any, **named: Any) -> Any:
        return by_one_or_all(original, *arguments, **named)

    setattr(manager, name, compute)


def register(policy: Policy = "eplb", fetch_tokens: float | None = FETCH_TOKENS) -> None:
    """Register ``rebalance_experts`` with SGLang's hooks, for a plugin: SGLang applies it in this process."""
    registry, kind = hook_registry()
    registry.register(MANAGER_PLANS, by_one_or_all, kind.AROUND)
    planned = partial(rebalance_experts, policy=policy, fetch_tokens=fetch_tokens)
    registry.register(f"{ALGORITHMS}.rebalance_experts", planned, kind.REPLACE)


def by_one_or_all(original: Callable[..., Any], manager: Any, *arguments: Any, **named: Any) -> Any:
    """SGLang's plan for a running engine: each rank's own, which are agreed on, or rank 0's, which it
    sends."""
    before = _all_plan.set(not named.get("broadcast_over_world", False))
    try:
        return original(manager, *arguments, **named)
    finally:
        _all_plan.reset(before)


def hook_registry() -> tuple[Any, Any]:
    """SGLang's registry of hooks, and its kinds of hooks."""
    hooks = require("sglang.srt.plugins.hook_registry")
    return hooks.HookRegistry, hooks.HookType


EPLB = "sglang.srt.eplb"
REPLACED = ("static", "dynamic")  # ways to choose a copy; "lp" and "fake" stay what they are
_planned: list[tuple[Any, Any]] = []  # (phy2log, loads [layers, experts]) of the last plan


# SGLang changes its placement in place, some layers at a time. Beside it stand the weights of the copies:
# made with the first placement, and set for the same layers at the same time.


def register_weighted(fetch_tokens: float | None = FETCH_TOKENS) -> None:
    """Register the hooks with SGLang, which applies them to its modules. ``fetch_tokens`` as for plans."""
    registry, kind = hook_registry()
    dispatch = f"{EPLB}.expert_location_dispatch"
    registry.register(
        f"{ALGORITHMS}.rebalance_experts", partial(plan_by_weights, fetch_tokens=fetch_tokens), kind.REPLACE
    )
    registry.register(MANAGER_PLANS, by_one_or_all, kind.AROUND)
    registry.register(f"{EPLB}.expert_location.ExpertLocationMetadata.update", update_weights, kind.AROUND)
    registry.register(f"{dispatch}.ExpertLocationDispatchInfo.init_new", describe_weighted, kind.AROUND)
    registry.register(f"{dispatch}.topk_ids_logical_to_physical", choose_by_weights, kind.AROUND)


def plan_by_weights(tokens_per_expert: Any, *arguments: Any, **named: Any) -> Any:
    """A placement by search, as SGLang's function returns it; its loads are kept for the weights."""
    maps = rebalance_experts(tokens_per_expert, *arguments, policy="search", objective="routed", **named)
    loads = tokens_per_expert.detach().float().cpu()
    _planned[:] = [(maps[0].clone(), loads.sum(dim=0) if loads.ndim == 3 else loads)]
    return maps


def update_weights(
    original: Callable[..., Any], metadata: Any, other: Any, update_layer_ids: Iterable[int]
) -> Any:
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


def describe_weighted(original: Callable[..., Any], cls: Any, *arguments: Any, **named: Any) -> Any:
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


def choose_by_weights(
    original: Callable[..., Any], topk_ids: Any, info: Any, log2phy_prob: Any = None
) -> Any:
    """The physical expert of each id, by weights where ``describe_weighted`` gave some."""
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
