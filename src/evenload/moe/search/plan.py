"""``place``: search for a placement on any fleet, from scratch or from the one in use."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, choice, instance_of, number, whole
from evenload._optional import require
from evenload.errors import ConfigError
from evenload.moe.placement.bound import checked_loads, fleet_certificate, is_first_on_gpu, placement_bound
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import Placement, logical_maps
from evenload.moe.search.layer_search import (
    Effort,
    LayerPlacement,
    LayerSearch,
    LivingFleet,
    as_demand,
    repair,
)
from evenload.moe.search.transfers import Schedule, schedule_transfers

Objective = Literal["routed", "equal"]
NodeLimit = Literal["none", "base", "all"]
EFFORTS = {"online": Effort(), "offline": Effort(n_windows=64, n_made_up=100, n_rounds=12, n_tries=1500)}


@dataclass(frozen=True, slots=True, eq=False)
class PlacementPlan:
    """A placement for a fleet, with its imbalance and a bound that no placement can go below.

    imbalance  [layers] busiest GPU over the mean, in load per unit of speed; mean over the windows given
    held_out   [layers] imbalance in the windows held out when the search chose; None if there were too few
    bound      [layers] the relaxed minimum over all placements and routings; mean over the windows
    origin     [layers] the start of the search: "EPLB", "copies by load", "backbone" or "old"
    target     the imbalance that was asked for, None if none was
    stay       [layers] imbalance of the placement in use, None if none was given
    """

    placement: Placement
    fleet: Fleet
    objective: str
    imbalance: NDArray[np.float64]
    held_out: NDArray[np.float64] | None
    bound: NDArray[np.float64]
    origin: tuple[str, ...]
    target: float | None = None
    stay: NDArray[np.float64] | None = None

    @property
    def target_met(self) -> bool:
        """Whether the imbalance of each layer is at most ``target``; True without one."""
        return self.target is None or bool((self.imbalance <= self.target + 1e-9).all())

    @property
    def shortfall(self) -> str | None:
        """What is to be said of a target that is not met; None if it is, or there is none."""
        if self.target is None or self.target_met:
            return None
        worst = int(self.imbalance.argmax())
        n_missed = np.count_nonzero(self.imbalance > self.target + 1e-9)
        return (
            f"target {self.target:g} is not met in {n_missed} of {len(self.imbalance)} layers: "
            f"{self.imbalance[worst]:.4f} in layer {worst}, whose bound is {self.bound[worst]:.4f}; "
            "give more slots, or plan anew without target="
        )

    @property
    def phy2log(self) -> NDArray[np.int64]:
        """[layers, GPUs * width] the expert in each slot, -1 for a slot that is empty or not there."""
        return self.placement.phy2log

    def judge(self, load_windows: ArrayLike) -> NDArray[np.float64]:
        """[windows, layers] imbalance in other windows than the plan was made for, such as later ones.

        Raises ConfigError if their layers or experts are not the plan's.
        """
        windows, expected = _windows(load_windows), self.placement.logcnt.shape
        if windows.shape[1:] != expected:
            raise ConfigError(
                f"windows of {windows.shape[1:]} for a plan of {expected}",
                hint="give [windows, layers, experts]",
            )
        return imbalance_of(self.phy2log, windows, self.fleet, is_routed=self.objective == "routed")

    def certificate(self, load_windows: ArrayLike, name: str = "placement") -> dict[str, Any]:
        """The load of the busiest GPU in these windows, summed over layers, with the proof of its bound.

        A document for ``json.dumps``, which ``evenload.certificate`` checks. Loads are routed exactly, or
        split equally over copies, as the plan's objective says.
        Raises ConfigError without load, and for a routing of loads that are not whole numbers.
        """
        is_routed = self.objective == "routed"
        return fleet_certificate(
            self.phy2log, _windows(load_windows), self.fleet, is_routed=is_routed, name=name
        )

    def transfers(self, old: ArrayLike, **options: Any) -> Schedule:
        """The transfers that lead here from ``old``; options as in ``schedule_transfers``."""
        return schedule_transfers(old, self.phy2log, self.fleet, **options)


def place(
    load_windows: ArrayLike,
    fleet: Fleet,
    *,
    objective: Objective = "routed",
    old: ArrayLike | None = None,
    target: float | None = None,
    node_limit: NodeLimit = "none",
    n_groups: int | None = None,
    robust: float = 0.0,
    effort: str | Any = "online",
    seed: int = 0,
    threads: int = 1,
    warns: bool = True,
) -> PlacementPlan:
    """Place copies of experts so that batches like the recent ones can be served evenly.

    load_windows  [windows, layers, experts] (or [layers, experts]) loads of recent windows, oldest first;
                  best are windows a quarter as long as the batches to come
    objective     "routed": each batch is routed exactly over the copies (``balance.flow``, ``Planner``);
                  "equal": each expert's load is split equally over them
    old           [layers, GPUs * width] the placement in use. Without ``target`` it is one more start of the
                  search
    target        needs ``old``: fetch as few experts as will bring the mean imbalance of each layer to this.
                  A tighter target needs no fewer. Warns (UserWarning) where it is not met
    node_limit    "base": each group of experts keeps a copy of each expert on its own node, others go
                  anywhere; "all": copies stay on their group's node
    n_groups      groups of consecutive experts for ``node_limit``, a multiple of the nodes; by default one a
                  node
    robust        0 to 1, not with ``target``: how much the worst of all windows count beside their mean. With
                  windows of all the past, or of each domain, the plan then holds for what is rare, too
    effort        "online" (tens of milliseconds a layer for 16 GPUs), "offline", or an ``Effort``
    threads       layers searched at the same time
    warns         False: a target that is not met is told by ``plan.shortfall`` alone

    Raises ConfigError if loads are negative or not finite, there are fewer living slots than experts, or
    shapes or options do not fit; UnknownName for another objective, effort or limit. The same arguments give
    the same plan.
    """
    require("llvmlite.binding", extra="moe", why="searching for a placement")
    windows = _windows(load_windows)
    threads, seed = whole("threads", threads, least=1, most=1024), whole("seed", seed, most=2**62)
    instance_of("fleet", fleet, Fleet, "a Fleet, such as Fleet.even(8, 72)")
    choice("objective", objective, ("routed", "equal"))
    choice("node limit", node_limit, ("none", "base", "all"))
    effort = effort if isinstance(effort, Effort) else EFFORTS[choice("effort", effort, tuple(EFFORTS))]
    n_layers, n_experts = windows.shape[1:]
    if fleet.n_living_slots < n_experts:
        raise ConfigError(
            f"{fleet.n_living_slots} living slots are too few for {n_experts} experts",
            hint=f"give the living GPUs {n_experts} slots or more",
        )
    _check_target(target, robust, is_old_given=old is not None)
    before = None if old is None else _old(old, n_layers, n_experts, fleet)
    living, homes = LivingFleet.of(fleet), _homes(windows, fleet, node_limit, n_groups)

    def searched(layer: int) -> _Searched:
        search = LayerSearch(
            windows[:, layer], living, home=homes[layer], is_strict=node_limit == "all",
            is_routed=objective == "routed", seed=seed + layer, robust=robust,
        )  # fmt: skip
        old = None if before is None else search.complete(before[layer, living.slot_index])
        return _search(search, old, target, effort)

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            layers = list(pool.map(searched, range(n_layers)))
    else:
        layers = [searched(layer) for layer in range(n_layers)]
    plan = _as_plan(windows, fleet, objective, layers, target)
    if warns and plan.shortfall:
        warnings.warn(plan.shortfall, stacklevel=2)
    return plan


_Searched = tuple[LayerPlacement, float, float | None]  # with its imbalance, and that of the one in use


def _search(search: LayerSearch, old: NDArray | None, target: float | None, effort: Effort) -> _Searched:
    """Search one layer, from the slots in use if there are any."""
    if old is None or target is None:
        found = search.plan(effort, {} if old is None else {"old": old})
    elif search.windows.any():
        found = repair(search, old, target, effort)
    else:  # no load is even however it is placed
        found = LayerPlacement(old, "old", None)
    demand = as_demand(search.windows, search.fleet.speed.sum())
    stay = None if old is None else float(search.costs(old, demand).mean())
    return found, float(search.costs(found.slots, demand).mean()), stay


def _as_plan(
    windows: NDArray, fleet: Fleet, objective: str, layers: list[_Searched], target: float | None
) -> PlacementPlan:
    found, imbalance, stay = zip(*layers, strict=True)
    phy2log = np.full((len(layers), fleet.n_gpus * fleet.width), -1, np.int64)
    phy2log[:, fleet.open_slots()] = [layer.slots for layer in found]
    log2phy, logcnt = logical_maps(phy2log, windows.shape[2])
    speeds = fleet.living_speeds()
    bound = [placement_bound(window, fleet.n_living_slots, fleet.n_gpus, speeds) for window in windows]
    held = [layer.held_out for layer in found]
    return PlacementPlan(
        placement=Placement(phy2log, log2phy, logcnt, n_gpus=fleet.n_gpus, weight=windows.sum(axis=0)),
        fleet=fleet,
        objective=objective,
        imbalance=np.array(imbalance),
        held_out=None if None in held else np.array(held),
        bound=np.mean(bound, axis=0),
        origin=tuple(layer.origin for layer in found),
        target=target,
        stay=None if stay[0] is None else np.array(stay),
    )


def imbalance_of(
    phy2log: NDArray[np.int64], windows: NDArray, fleet: Fleet, *, is_routed: bool
) -> NDArray[np.float64]:
    """[windows, layers] imbalance of a placement [layers, GPUs * width], in fractions of tokens.

    A second copy of an expert on a GPU is left out. Layers without load have 1.
    """
    living, found = LivingFleet.of(fleet), np.ones(windows.shape[:2])
    free = np.full(windows.shape[2], -1)
    held = phy2log[:, living.slot_index]
    held = np.where(is_first_on_gpu(held, living.slot2gpu), held, -1)
    for layer, slots in enumerate(held):
        has_load = windows[:, layer].sum(axis=1) > 0
        loads = windows[has_load, layer]
        if len(loads):
            search = LayerSearch(loads, living, home=free, is_strict=False, is_routed=is_routed, seed=0)
            found[has_load, layer] = search.costs(slots, as_demand(loads, living.speed.sum()))
    return found


def _windows(load_windows: ArrayLike) -> NDArray[np.float64]:
    windows = array_of("load_windows", load_windows).astype(np.float64)
    windows = windows[None] if windows.ndim == 2 else windows
    return checked_loads("load_windows", windows, "window layer expert")


def _check_target(target: float | None, robust: float, *, is_old_given: bool) -> None:
    if number("robust", robust) > 1:
        raise ConfigError(f"robust is {robust}", hint="give 0 (the mean of the windows) to 1 (the worst)")
    if target is None:
        return
    number("target", target)
    if not is_old_given:
        raise ConfigError(
            f"target {target} without old=", hint="give the placement in use as old=, or leave target= out"
        )
    if robust:
        raise ConfigError(
            f"target {target} and robust {robust}: a target is for the mean of the windows",
            hint="leave one of them out",
        )


def _old(old: ArrayLike, n_layers: int, n_experts: int, fleet: Fleet) -> NDArray[np.int64]:
    before = array_of("old", old)
    if before.shape != (n_layers, fleet.n_gpus * fleet.width) or before.dtype.kind not in "iu":
        raise ConfigError(
            f"old has shape {before.shape} and dtype {before.dtype}",
            hint=f"give integers [{n_layers}, {fleet.n_gpus * fleet.width}], {fleet.width} slots a GPU",
        )
    if before.min() < -1 or before.max() >= n_experts:
        raise ConfigError(
            f"old holds ids from {before.min()} to {before.max()}", hint=f"use -1 to {n_experts - 1}"
        )
    return before.astype(np.int64)


def _homes(windows: NDArray, fleet: Fleet, node_limit: str, n_groups: int | None) -> NDArray[np.int64]:
    """[layers, experts] the node that each expert's group is bound to, -1 for none."""
    n_layers, n_experts = windows.shape[1:]
    if node_limit == "none" or fleet.n_nodes == 1:
        return np.full((n_layers, n_experts), -1, np.int64)
    n_groups = fleet.n_nodes if n_groups is None else whole("n_groups", n_groups)
    if n_groups < 1 or n_experts % n_groups:
        raise ConfigError(
            f"{n_experts} experts do not divide over {n_groups} groups",
            hint="give a number that divides them",
        )
    group_load = windows.sum(axis=0).reshape(n_layers, n_groups, -1)
    size = n_experts // n_groups
    homes = np.stack([_pack_groups(load.sum(axis=1), size, fleet) for load in group_load])
    return np.repeat(homes, size, axis=1)


def _pack_groups(load: NDArray, group_size: int, fleet: Fleet) -> NDArray[np.int64]:
    """[groups] node of each: heaviest group first, to the node with room that it leaves least busy."""
    speeds, nodes = fleet.living_speeds(), np.asarray(fleet.nodes)
    living = np.where(speeds > 0, fleet.slots, 0)
    names: Sequence[int] = sorted(set(fleet.nodes))
    speed = {node: float(speeds[nodes == node].sum()) for node in names}
    room = {node: int(living[nodes == node].sum()) // group_size for node in names}
    taken = dict.fromkeys(names, 0.0)
    home = np.zeros(len(load), np.int64)
    for group in np.argsort(-load, kind="stable"):
        choices = [node for node in names if room[node] > 0]
        if not choices:
            raise ConfigError(
                f"{len(load)} groups of {group_size} experts do not fit into the nodes' living slots",
                hint="use node_limit='none', or more slots",
            )
        node = min(choices, key=lambda n: (taken[n] + load[group]) / speed[n])
        home[group], room[node] = node, room[node] - 1
        taken[node] += float(load[group])
    return home
