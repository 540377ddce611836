"""``MoveRule``: over a stream of load windows, move experts only where that is worth its cost.

Each layer has a challenger beside the
placement in use. What the challenger would have saved in the windows that followed is added up, never to less
than 0, and the layer moves when that reaches the cost of moving there and back. For two placements this is
the rule of work functions: Borodin, Linial and Saks, "An optimal on-line algorithm for metrical task system",
J. ACM 39, 1992. A pot guards it: a stream may cost ``tolerance`` more than if nothing had ever moved, and a
layer leaves its first placement only while the pot pays for its move and for the way back of all.

With ``spent`` for the cost of serving and moves, whatever the loads and the candidates are:

1. spent <= (1 + tolerance) never + x. ``never`` is the cost of the first placement kept, x the most by which
   one window cost more than 1 + tolerance times as much as it would have there. With a ``reserve`` of x or
   more: spent <= (1 + tolerance) never.
2. So spent <= (1 + tolerance) k best + x against the best schedule in hindsight over all placements, even if
   its moves are free, where no window costs k times as much in the first placement as in its best one.
3. Between two placements, d apart both ways, beyond what both cost and while the pot pays:
   spent <= (3 + y / d) best + d + y in each layer, with y the most that they differ in one window. No rule
   without foresight or chance has less than 3 for short windows.

Of 1: the pot less the ways back is at least ``reserve`` while any layer is away. A window takes at most x
from it; if less than ``reserve`` is left, all go back, which is paid already, and at home the pot only grows.
Of 3: what is added up is the difference of the two work functions plus d, and a layer moves where it is 2 d.
So each move adds at least 2 d to the sum of both; what is added up beyond 2 d is less than y.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import number
from evenload.errors import ConfigError
from evenload.moe.placement.bound import equal_split_loads
from evenload.moe.placement.fleet import Fleet
from evenload.moe.search.plan import PlacementPlan, imbalance_of
from evenload.moe.search.transfers import schedule_transfers

# 400e12 FLOP/s over 50e9 bytes/s. An expert of P parameters takes 2 P FLOP a token, and in bfloat16 a link
# carries 2 P bytes; in 8 bits half of them, at twice the FLOP/s. So the number does not depend on the expert.
FETCH_TOKENS = 8000.0


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """The costs that ``MoveRule`` goes by, in tokens that the fastest GPU serves in the same time.

    A window costs what its busiest GPU does, in each layer. Moving costs ``fetch_tokens`` for each batch of
    fetches in which no GPU sends or receives two experts. A layer's batches count as if serving stood still
    for them and no other layer's went beside them: so moves never cost more than that.

    is_routed     loads are routed exactly over copies; else split equally
    fetch_tokens  tokens that a GPU serves while it fetches one expert of one layer: its bytes over the link's
                  bytes a second, times tokens a second. By default those of an H100 that computes at 400
                  TFLOP/s and fetches at 50 GB/s; more where the weights of experts are read anew for few
                  tokens, or a change stops the engine for other reasons
    """

    fleet: Fleet
    is_routed: bool = True
    fetch_tokens: float = FETCH_TOKENS

    def __post_init__(self) -> None:
        number("fetch_tokens", self.fetch_tokens)

    def serving(self, phy2log: NDArray[np.int64], windows: NDArray) -> NDArray[np.float64]:
        """[windows, layers] tokens of the busiest GPU, over its speed."""
        speeds = self.fleet.living_speeds() / self.fleet.living_speeds().max()
        windows = np.asarray(windows, np.float64)
        if self.is_routed:
            mean = windows.sum(axis=2) / speeds.sum()
            return imbalance_of(phy2log, windows, self.fleet, is_routed=True) * mean
        alive = speeds > 0
        loads = [equal_split_loads(phy2log, window, len(speeds))[:, alive] for window in windows]
        return (np.reshape(loads, (*windows.shape[:2], -1)) / speeds[alive]).max(axis=2)

    def moving(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.float64]:
        """[layers] tokens that fetching takes, from ``old`` to ``new`` [layers, GPUs * width]."""
        found = np.zeros(len(old))
        for layer in np.flatnonzero((old != new).any(axis=1)):
            schedule = schedule_transfers(old[layer : layer + 1], new[layer : layer + 1], self.fleet)
            found[layer] = len(schedule.batches) * self.fetch_tokens
        return found

    def pays(self, plan: PlacementPlan, old: NDArray, tokens_to_come: float) -> NDArray[np.bool_]:
        """[layers] whether a plan made with ``old`` saves more than going there costs, in such tokens.

        A layer that lacks an expert on a living GPU has to. Raises ConfigError if the plan knows no ``old``.
        """
        if plan.stay is None or old.shape != plan.phy2log.shape:
            raise ConfigError(
                f"the plan knows nothing of the placement {old.shape} that it would replace",
                hint="make it by place(..., old=old), with the same old",
            )
        speeds, living = self.fleet.living_speeds(), np.where(self.fleet.open_slots(), old, -1)
        lacks = [len({*row} - {-1}) < plan.placement.logcnt.shape[1] for row in living.tolist()]
        mean = number("tokens_to_come", tokens_to_come) * speeds.max() / speeds.sum()
        return (mean * (plan.stay - plan.imbalance) > self.moving(old, plan.phy2log)) | lacks


Map = NDArray[np.int64]  # [layers, slots]
PerLayer = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window's loads [layers, experts], as served, and the placement that a planner proposes after it."""

    loads: NDArray
    candidate: Map


@dataclass(frozen=True, slots=True, eq=False)
class MoveState:
    """A stream so far.

    home, in_use  the first placement, and the present one;  back  [layers] cost of going from it to ``home``
    challenger    the placement that each layer may move to;  saved  [layers] what it would have saved
    spent, never  cost of serving and moves, and of serving at ``home`` alone
    worst         the largest cost of one window beyond 1 + tolerance times its cost at home
    """

    home: Map
    in_use: Map
    challenger: Map
    back: PerLayer
    saved: PerLayer
    spent: float = 0.0
    never: float = 0.0
    worst: float = 0.0


@dataclass(frozen=True, slots=True)
class MoveRule:
    """A rule for when layers move to the placements that a planner proposes.

    tolerance  how much more than without any move a stream may cost, as a share
    reserve    what the pot must hold besides, in the unit of ``costs``: the most that one window can cost
               more than at home
    """

    costs: MoveCosts
    tolerance: float = 0.02
    reserve: float = 0.0

    def __post_init__(self) -> None:
        number("tolerance", self.tolerance)
        number("reserve", self.reserve)

    def init(self, phy2log: Map) -> MoveState:
        """The stream that begins with ``phy2log`` [layers, slots] in use."""
        return MoveState(phy2log, phy2log, phy2log, np.zeros(len(phy2log)), np.zeros(len(phy2log)))

    def step(self, state: MoveState, window: Window) -> tuple[MoveState, NDArray[np.bool_]]:
        """Count a window served in ``state.in_use``; return the next state, and [layers] which moved."""
        maps = state.in_use, state.home, state.challenger, window.candidate
        cost, at_home, other, fresh = (self.costs.serving(one, window.loads[None])[0] for one in maps)
        spent, never = state.spent + float(cost.sum()), state.never + float(at_home.sum())
        excess = float(cost.sum() - (1 + self.tolerance) * at_home.sum())
        saved = np.maximum(state.saved + cost - other, 0.0)
        room = (1 + self.tolerance) * never - spent - float(state.back.sum()) - self.reserve
        there, back = state.back, np.zeros(len(cost))
        if room < 0 < excess:
            goes, target = (state.in_use != state.home).any(axis=1), state.home
        else:
            target, moving = state.challenger, self.costs.moving
            there, back = moving(state.in_use, target), moving(target, state.home)
            surplus = np.where(cost > other, saved - there - moving(target, state.in_use), -np.inf)
            goes = _affordable(surplus, there + back - state.back, room)
        is_better = (saved <= 0) | (fresh < other)
        paid = float(there[goes].sum())
        in_use = np.where(goes[:, None], target, state.in_use)
        other = np.where(is_better[:, None], window.candidate, state.challenger)
        after = MoveState(
            state.home, in_use, np.where(goes[:, None], state.in_use, other),
            np.where(goes, back, state.back),
            np.where(goes, 0.0, saved), spent + paid, never, max(state.worst, excess),
        )  # fmt: skip
        return after, goes


def _affordable(surplus: PerLayer, needs: PerLayer, room: float) -> NDArray[np.bool_]:
    """The layers of no surplus below 0 that the pot has room for, those of the largest first."""
    goes = np.zeros(len(surplus), bool)
    for layer in np.argsort(-surplus, kind="stable"):
        if surplus[layer] >= 0 and needs[layer] <= room:
            goes[layer], room = True, room - needs[layer]
    return goes
