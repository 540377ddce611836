"""``rebalance_experts``: EPLB's policy; and ``Placement``, which every search for a placement returns."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import whole
from evenload._optional import require
from evenload.errors import ConfigError
from evenload.moe.placement.bound import (
    checked_loads,
    equal_split_imbalance,
    placement_bound,
    placement_certificate,
)
from evenload.moe.placement.kernels.eplb import plan_layers, write_maps
from evenload.moe.placement.kernels.part_twins import part_layers


class Placement(tuple):
    """The three maps of a placement, with its imbalance. Unpacks as ``phy2log, log2phy, logcnt``.

    phy2log  [layers, slots] int64, the expert in each physical slot; -1 for a slot that is empty or not
             there. Slot p is on GPU ``p // (slots / n_gpus)``
    log2phy  [layers, experts, X] int64, the slots that hold each expert, padded with -1
    logcnt   [layers, experts] int64, copies of each expert
    weight   [layers, experts] the loads it was planned for

    Arrays, or torch tensors where the loads were given as one.
    """

    n_gpus: int
    weight: NDArray[Any]

    def __new__(
        cls, phy2log: Any, log2phy: Any, logcnt: Any, *, n_gpus: int, weight: NDArray[Any]
    ) -> "Placement":
        self = super().__new__(cls, (phy2log, log2phy, logcnt))
        self.n_gpus = n_gpus
        self.weight = weight
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(self), {"n_gpus": self.n_gpus, "weight": self.weight}

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    @property
    def phy2log(self) -> Any:
        return self[0]

    @property
    def log2phy(self) -> Any:
        return self[1]

    @property
    def logcnt(self) -> Any:
        return self[2]

    @property
    def imbalance(self) -> NDArray[np.float64]:
        """[layers] busiest GPU over the mean under an equal split over copies; 1 without load."""
        return equal_split_imbalance(np.asarray(self[0]), self.weight, self.n_gpus)

    @property
    def bound(self) -> NDArray[np.float64]:
        """[layers] lower bound of the imbalance of any placement into as many slots, under any split."""
        return placement_bound(self.weight, self[0].shape[1], self.n_gpus)

    def certificate(self, name: str = "placement") -> dict[str, Any]:
        """The load of the busiest GPU under an equal split, summed over layers, with the proof of its bound.

        A document for ``json.dumps``, which ``evenload.certificate`` checks. Raises ConfigError without load.
        """
        phy2log = np.asarray(self[0])
        slot2gpu = np.arange(phy2log.shape[1]) * self.n_gpus // phy2log.shape[1]
        return placement_certificate(
            phy2log, self.weight[None], slot2gpu, np.ones(self.n_gpus), name=name
        )  # fmt: skip


def rebalance_experts(
    weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> Placement:
    """Place copies of experts on GPUs so that the busiest GPU does least, by EPLB's policy.

    weight        [layers, experts] tokens each logical expert served; array, nested lists or torch tensor of
                  any real dtype
    num_replicas  physical slots, a multiple of ``num_gpus``
    num_groups    groups of experts that should stay on one node; if they do not divide over ``num_nodes``,
                  the global policy is used: no groups, no nodes
    num_nodes     nodes of ``num_gpus / num_nodes`` GPUs each

    Returns ``phy2log`` [layers, num_replicas], ``log2phy`` [layers, experts, X] padded with -1 and ``logcnt``
    [layers, experts], all int64 (torch tensors on the CPU if ``weight`` is a tensor). Ids are those of EPLB
    unless EPLB puts an expert twice on a GPU. These twins are removed by exchanges that keep the busiest
    GPU's load at or below EPLB's. Where none is found that does, EPLB's ids stay, twins and all, as they do
    if a GPU has more slots than its node has experts.

    Raises ConfigError if slots, GPUs, groups or nodes do not divide, there are fewer slots than experts, or a
    load is negative or not finite.
    Source: EPLB, DeepSeek-V3 report (arXiv:2412.19437), section 3.4.
    """
    # abs: the kernel would sort -0.0 as the largest load.
    loads = np.abs(checked_loads("weight", weight, "layer expert").astype(np.float32, copy=False))
    num_replicas, num_groups = whole("num_replicas", num_replicas), whole("num_groups", num_groups)
    num_nodes, num_gpus = whole("num_nodes", num_nodes), whole("num_gpus", num_gpus)
    if num_nodes >= 1 and num_groups % num_nodes:
        num_groups = num_nodes = 1
    check_division(loads.shape[1], num_replicas, num_groups, num_nodes, num_gpus)
    maps: tuple[Any, ...] = _plan(loads, num_replicas, num_groups, num_nodes, num_gpus)
    if hasattr(weight, "detach"):
        torch = require("torch", extra="moe")
        maps = tuple(torch.from_numpy(one) for one in maps)
    return Placement(*maps, n_gpus=num_gpus, weight=loads)


def _plan(loads: NDArray[np.float32], n_slots: int, n_groups: int, n_nodes: int, n_gpus: int):
    """``phy2log``, ``log2phy`` and ``logcnt`` of EPLB's policy, without twins."""
    require("llvmlite.binding", extra="moe", why="planning a placement")
    n_layers, n_experts = loads.shape
    local2log = np.empty((n_layers, n_nodes, n_experts // n_nodes), np.int64)
    holds = np.empty((n_layers, n_nodes, n_gpus // n_nodes, n_slots // n_gpus), np.int64)
    ranks, count = np.empty_like(holds), np.empty_like(local2log)
    limit, is_twinned = np.empty(n_layers, np.float32), np.empty((n_layers, n_nodes), np.bool_)
    plan_layers(loads, n_groups, local2log, holds, ranks, count, limit, is_twinned)
    if is_twinned.any():
        part_layers(loads, local2log, holds, ranks, count, limit, is_twinned)
    phy2log = np.empty((n_layers, n_slots), np.int64)
    log2phy = np.empty((n_layers, n_experts, int(count.max())), np.int64)
    logcnt = np.empty((n_layers, n_experts), np.int64)
    write_maps(local2log, holds, ranks, count, phy2log, log2phy, logcnt)
    return phy2log, log2phy, logcnt


def check_division(n_experts: int, n_slots: int, n_groups: int, n_nodes: int, n_gpus: int) -> None:
    """Raise ConfigError unless everything divides as the policy needs it to."""
    for name, number in (("GPUs", n_gpus), ("nodes", n_nodes), ("groups", n_groups)):
        if number < 1:
            raise ConfigError(f"{number} {name}", hint=f"give at least 1 of the {name}")
    if n_slots % n_gpus:
        raise ConfigError(
            f"{n_slots} slots do not divide over {n_gpus} GPUs",
            hint=f"use {-(-n_slots // n_gpus) * n_gpus} slots",
        )
    if n_slots < n_experts:
        raise ConfigError(
            f"{n_slots} slots are too few for {n_experts} experts",
            hint=f"use {-(-n_experts // n_gpus) * n_gpus} slots or more",
        )
    if n_gpus % n_nodes:
        raise ConfigError(
            f"{n_gpus} GPUs do not divide over {n_nodes} nodes",
            hint="give a number of nodes that divides the GPUs",
        )
    if n_experts % n_groups:
        raise ConfigError(
            f"{n_experts} experts do not divide over {n_groups} groups",
            hint="give a number of groups that divides the experts",
        )


def logical_maps(phy2log: NDArray[np.int64], n_experts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``log2phy`` [layers, experts, X] padded with -1 and ``logcnt`` [layers, experts] of any ``phy2log``.

    phy2log  [layers, slots] integers; -1 is an empty slot and appears in no map. Copies stand in slot order.
    """
    n_layers = len(phy2log)
    layer, slot = np.nonzero(phy2log >= 0)
    expert = phy2log[layer, slot]
    logcnt = np.bincount(layer * n_experts + expert, minlength=n_layers * n_experts).astype(np.int64)
    order = np.lexsort((slot, expert, layer))
    starts = np.cumsum(logcnt) - logcnt
    key = (layer * n_experts + expert)[order]
    log2phy = np.full((n_layers * n_experts, int(logcnt.max(initial=1))), -1, np.int64)
    log2phy[key, np.arange(len(key)) - starts[key]] = slot[order]
    return log2phy.reshape(n_layers, n_experts, -1), logcnt.reshape(n_layers, n_experts)
