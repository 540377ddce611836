"""Plans for engines: no less even than their own policy's, checked before they leave, alike on all ranks."""

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload.errors import EvenloadError
from evenload.moe.placement.bound import equal_split_imbalance
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.routing.exchange import agree_on, attempt
from evenload.moe.search.move_rule import MoveCosts, MoveRule, MoveState, Window
from evenload.moe.search.plan import imbalance_of, place
from evenload.moe.search.transfers import keep_slots

Map = NDArray[np.int64]  # [layers, slots]
MOST_STREAMS = 8  # of models, and of maps that their engines did not take
_STREAMS: dict[bytes, MoveState] = {}  # by the map in use, which is all that an engine tells of its model


@dataclass(frozen=True, slots=True)
class EnginePlanner:
    """A planner of maps for one engine, as its adapter asks for them.

    policy     "eplb": the engine's own, compiled; "search": beyond it
    objective  as in ``place``: how the engine divides an expert's tokens over its copies
    logger     name of the logger where the engine's operators look
    group      the engine's module and its function that returns the group of ranks which all plan by
               themselves; they take one plan. None: nobody is asked
    target     imbalance that a map in use is brought to; None: plan anew
    effort     as in ``place``
    fetch_tokens  what a move costs, as in ``MoveCosts``: a map in use gives way by ``MoveRule`` over all the
               windows since this process first saw it; None: wherever the new one is more even
    """

    policy: str
    objective: Any
    logger: str
    group: tuple[str, str] | None = None
    target: float | None = None
    effort: Any = "online"
    fetch_tokens: float | None = None

    def plan(self, windows: NDArray, fleet: Fleet, n_groups: int | None, old: Map | None = None) -> Map:
        """The expert in each slot [layers, slots], -1 on dead GPUs only.

        windows   [windows, layers, experts] loads
        n_groups  of experts that keep to their nodes; None: none do
        old       [layers, slots] the map in use. Experts that stay on a GPU keep their slots; a layer keeps
                  all of them if it has no load, or the new map is no more even

        The map is in no layer less even than that of the engine's own policy, but for what ``target`` allows
        with ``old``, and for layers that stay by the rule of ``fetch_tokens``. Raises
        ConfigError as ``rebalance_experts`` does.
        """

        begun: MoveState | None = None

        def settled() -> Map:
            nonlocal begun
            own = new = self._own(windows, fleet, n_groups)
            if self.policy == "search":
                new = self._searched(own, windows, fleet, n_groups, old)
            new = self._settled(new, own, windows, fleet, old)
            if old is None or self.fetch_tokens is None or fault_of(old, windows.shape[2], fleet):
                return new
            begun = self._by_rule(new, windows, fleet, old)
            return begun.in_use

        # The steps of the engine's own policy are the same on every processor.
        is_alike = self.policy == "eplb"
        phy2log = settled() if is_alike or self.group is None else _agreed(settled, *self.group)
        if begun is not None and np.array_equal(begun.in_use, phy2log):
            _STREAMS[phy2log.tobytes()] = begun
            while len(_STREAMS) > MOST_STREAMS:
                del _STREAMS[next(iter(_STREAMS))]
        return phy2log

    def _by_rule(self, new: Map, windows: NDArray, fleet: Fleet, old: Map) -> MoveState:
        """The stream of windows that ``old`` was in use for, after the last one and the rule's decision."""
        rule = MoveRule(MoveCosts(fleet, self.objective == "routed", self.fetch_tokens or 0.0))
        state = _STREAMS.pop(old.tobytes(), None)
        if state is None or state.in_use.shape != old.shape:
            state = rule.init(old)
        state, _ = rule.step(state, Window(windows.sum(axis=0), new))
        return replace(state, in_use=keep_slots(old, state.in_use, fleet.n_gpus))

    def _own(self, windows: NDArray, fleet: Fleet, n_groups: int | None) -> Map:
        living = [gpu for gpu in range(fleet.n_gpus) if gpu not in fleet.dead]
        sizes = (1, 1) if n_groups is None or fleet.dead else (n_groups or 1, fleet.n_nodes)
        n_slots = len(living) * fleet.width
        found = rebalance_experts(windows.sum(axis=0), n_slots, *sizes, len(living)).phy2log
        own = np.full((len(found), fleet.n_gpus, fleet.width), -1, np.int64)
        own[:, living] = found.reshape(len(found), -1, fleet.width)
        return own.reshape(len(found), -1)

    def _searched(
        self, own: Map, windows: NDArray, fleet: Fleet, n_groups: int | None, old: Map | None
    ) -> Map:
        is_grouped = bool(n_groups) and fleet.n_nodes > 1 and n_groups % fleet.n_nodes == 0
        target = None if old is None else self.target
        plan = place(
            windows, fleet, objective=self.objective, old=old, target=target, effort=self.effort, warns=False,
            node_limit="base" if is_grouped else "none", n_groups=n_groups if is_grouped else None,
        )  # fmt: skip
        if plan.shortfall:
            _tell_once(
                self.logger,
                f"evenload cannot bring the experts of all layers to {target} with {fleet.n_living_slots}"
                f" slots on {fleet.n_gpus} GPUs; num_redundant_experts gives more",
            )
        new = _without_empty_slots(plan.phy2log, windows.sum(axis=0), fleet)
        found, theirs = (self._imbalance(one, windows, fleet) for one in (new, own))
        is_worse = found > np.maximum(theirs, target or 0.0) + 1e-9
        return np.where(is_worse[:, None], own, new)

    def _settled(self, new: Map, own: Map, windows: NDArray, fleet: Fleet, old: Map | None) -> Map:
        """``new`` as the engine takes it, or ``own`` where it would break the engine's contract."""
        for planned in (new, own):
            settled = planned
            if old is not None:
                settled = keep_slots(old, planned, fleet.n_gpus)
                is_whole = np.array([fault_of(row[None], windows.shape[2], fleet) is None for row in old])
                gain = self._imbalance(old, windows, fleet) - self._imbalance(settled, windows, fleet)
                stays = is_whole & (gain <= 1e-9)
                settled, planned = (np.where(stays[:, None], old, one) for one in (settled, planned))
            fault = fault_of(settled, windows.shape[2], fleet, planned, old)
            if fault is None:
                return settled
            _tell_once(
                self.logger, f"evenload leaves its plan aside and takes that of the engine's policy: {fault}"
            )
        raise EvenloadError(f"no map for the engine: {fault}", hint="report this, with the loads")

    def _imbalance(self, phy2log: Map, windows: NDArray, fleet: Fleet) -> NDArray[np.float64]:
        """[layers] mean imbalance over the windows, as the engine divides tokens."""
        if self.objective == "equal":
            each = [equal_split_imbalance(phy2log, window, fleet.n_gpus) for window in windows]
        else:
            each = imbalance_of(phy2log, windows, fleet, is_routed=True)
        return np.mean(each, axis=0)


@functools.cache
def _tell_once(logger: str, text: str) -> None:
    logging.getLogger(logger).warning(text)


def fault_of(
    phy2log: Map, n_experts: int, fleet: Fleet, planned: Map | None = None, old: Map | None = None
) -> str | None:
    """What an engine would not bear in a map; None if nothing.

    planned  the map before its slots were reordered for ``old``: each GPU must hold the same experts still,
             and those that ``old`` has there too must be in their slots
    """
    is_open, n_gpus = fleet.open_slots(), fleet.n_gpus
    if phy2log.ndim != 2 or phy2log.shape[1] != len(is_open) or phy2log.dtype != np.int64:
        return f"a map of {phy2log.shape} and {phy2log.dtype} for {len(is_open)} slots"
    living = phy2log[:, is_open]
    if living.min() < 0 or living.max() >= n_experts or (phy2log[:, ~is_open] >= 0).any():
        return (
            f"experts {living.min()} to {living.max()} of {n_experts} in living slots, or one in a dead slot"
        )
    lacking = [layer for layer, row in enumerate(living) if len(np.unique(row)) < n_experts]
    if lacking:
        return f"an expert is nowhere in layer {lacking[0]}"
    if planned is not None and (_by_gpu(planned, n_gpus) != _by_gpu(phy2log, n_gpus)).any():
        return "a GPU with other experts than were planned"
    if planned is not None and old is not None:
        for before, after in zip(old.reshape(-1, fleet.width), phy2log.reshape(-1, fleet.width), strict=True):
            n_stay = sum(
                min(int((before == e).sum()), int((after == e).sum())) for e in set(after.tolist()) if e >= 0
            )
            if ((before == after) & (after >= 0)).sum() < n_stay:
                return "an expert that stays on its GPU is in another slot"
    return None


def _by_gpu(phy2log: Map, n_gpus: int) -> Map:
    return np.sort(phy2log.reshape(len(phy2log), n_gpus, -1), axis=2)


def _without_empty_slots(phy2log: Map, loads: NDArray, fleet: Fleet) -> Map:
    """The map with an expert in each living slot: the one that has most load for each of its copies.

    A GPU gets an expert twice only where it has all of them.
    """
    filled, experts = phy2log.copy(), np.arange(loads.shape[1])
    for layer, slot in np.argwhere((phy2log < 0) & fleet.open_slots()):
        row = filled[layer]
        lacks = np.setdiff1d(experts, row.reshape(fleet.n_gpus, -1)[slot // fleet.width])
        some = lacks if len(lacks) else experts
        copies = np.bincount(row[row >= 0], minlength=len(experts))[some]
        row[slot] = some[((loads[layer, some] + 1e-9) / np.maximum(copies, 1e-9)).argmax()]
    return filled


def _agreed(plan: Callable[[], Map], module: str, group_of: str) -> Map:
    """What ``plan`` returns, or rank 0's where any differs (``agree_on``), over an engine's CPU group.

    A collective of that group, called where all its ranks plan from the same loads. A rank whose plan raises
    meets the others all the same: then all of them raise. Without a group there is nobody to agree with.
    """
    try:
        group = getattr(sys.modules[module], group_of)().cpu_group
    except (KeyError, AttributeError, AssertionError):  # how the engines say that a group is not there
        return plan()
    dist = require("torch.distributed", extra="moe", why="agreeing on a plan")
    if not isinstance(group, getattr(dist, "ProcessGroup", ())):
        return plan()
    mine, error = attempt(plan)
    try:
        return agree_on(() if error is not None else mine, group)
    except EvenloadError:
        if error is None:
            raise
    raise error
