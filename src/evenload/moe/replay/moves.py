"""``replay_moves``: what a stream costs if experts move by rule, never, always, and at best in hindsight.

batches ──► home │ serve a batch, plan, decide ──► a StreamTotal each ──► MoveReplay
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.errors import ConfigError
from evenload.moe.placement.bound import placement_bound
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.placement_certificate import fleet_certificate
from evenload.moe.search.move_costs import MoveCosts
from evenload.moe.search.move_rule import Map, MoveRule, Window
from evenload.moe.search.plan import place

__all__ = ["MoveReplay", "StreamTotal", "best_in_hindsight", "few_fetches", "replay_moves"]

Plan = Callable[[NDArray, Map | None], Map]  # from recent windows, and the placement in use


@dataclass(frozen=True, slots=True)
class StreamTotal:
    """The cost of a stream in tokens of one GPU, all layers: serving, and moving ``n_moved`` of them."""

    serving: float
    moving: float = 0.0
    n_moved: int = 0

    @property
    def cost(self) -> float:
        return self.serving + self.moving


@dataclass(frozen=True, slots=True, eq=False)
class MoveReplay:
    """A stream with and without moves.

    totals  by "rule"; "never": the first placement kept; "always": each candidate taken; and "hindsight": no
            schedule over the placements of the other three costs less (its moves have the fewest batches that
            their busiest receiver allows)
    bound   of serving by any placements, if moves were free
    worst   the most by which one window, by rule, cost beyond 1 + tolerance times its cost at home
    maps    [windows, layers, slots] by rule;  moves  what they cost, before each window after the first
    """

    costs: MoveCosts
    tolerance: float
    totals: dict[str, StreamTotal]
    bound: float
    worst: float
    windows: NDArray[np.int64]
    maps: NDArray[np.int64]
    moves: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers: costs, and how they compare with never moving, in hindsight and the bound."""
        cost = {name: total.cost for name, total in self.totals.items()}
        found = {
            name: {
                "serving": round(total.serving, 1), "moving": round(total.moving, 1),
                "layers_moved": total.n_moved,
                **{f"over_{other}": round(total.cost / cost[other], 5) for other in ("never", "hindsight")},
            } for name, total in self.totals.items()
        }  # fmt: skip
        return {
            "tolerance": self.tolerance, "fetch_tokens": self.costs.fetch_tokens,
            "bound": round(self.bound, 1), "worst_window": round(self.worst, 1), "totals": found,
        }  # fmt: skip

    def certificate(self, name: str = "stream") -> dict[str, Any]:
        """What serving and moving cost by rule, and what no placements could go below in these windows.

        A document for ``json.dumps``, which ``evenload.certificate`` checks.
        """
        return fleet_certificate(
            self.maps, self.windows, self.costs.fleet, is_routed=self.costs.is_routed, name=name,
            moves=self.moves,
        )  # fmt: skip


def few_fetches(fleet: Fleet, target: float, **options: Any) -> Plan:
    """A planner by search whose candidates change the placement in use only as far as the target asks."""

    def plan(recent: NDArray, in_use: Map | None) -> Map:
        if in_use is None:
            return place(recent, fleet, **options).phy2log
        return place(recent, fleet, old=in_use, target=target, warns=False, **options).phy2log

    return plan


def replay_moves(
    batches: NDArray[np.int64], plan: Plan, rule: MoveRule, *, history: int = 8, every: int = 1
) -> MoveReplay:
    """Plan on the first ``history`` of ``batches`` [batches, layers, experts], then serve the others in turn.

    plan   makes a placement from the last ``history`` batches, before every ``every`` batches
    rule   with ``MoveCosts``

    Raises ConfigError without a batch to serve, or without load in them.
    """
    if not 1 <= history < len(batches) or not batches[history:].any():
        raise ConfigError(
            f"{len(batches)} batches, {history} of them to plan on, leave no load to serve",
            hint="give a longer trace, or a shorter history",
        )
    home, served, costs = plan(batches[:history], None), batches[history:], rule.costs
    assert isinstance(costs, MoveCosts)

    def course(decides: Callable[[NDArray, Map], tuple[Map, float]]) -> tuple[list[Map], list[float]]:
        """The placement that each batch is served in, and what it cost to get there from the one before."""
        maps, moves = [home], []
        for i, loads in enumerate(served[:-1]):
            is_due = (i + 1) % every == 0
            candidate = plan(batches[i + 1 : i + 1 + history], maps[-1]) if is_due else maps[-1]
            offered.append(candidate)
            phy2log, cost = decides(loads, candidate)
            maps.append(phy2log)
            moves.append(cost)
        return maps, moves

    offered, state = [home], rule.init(home)

    def by_rule(loads: NDArray, candidate: Map) -> tuple[Map, float]:
        nonlocal state
        state, decision = rule.step(state, Window(loads, candidate))
        return decision.phy2log, decision.cost

    ruled = course(by_rule)
    last = rule.step(state, Window(served[-1], state.in_use))[
        0
    ]  # to count the last batch, which none follows
    at = [home]

    def always(_: NDArray, candidate: Map) -> tuple[Map, float]:
        before, at[0] = at[0], candidate
        return candidate, float(costs.moving(before, candidate).sum())

    totals = {
        "rule": _total(*ruled, served, costs),
        "never": StreamTotal(float(costs.serving(home, served).sum())),
        "always": _total(*course(always), served, costs),
        "hindsight": _hindsight(offered, served, costs),
    }
    speeds = costs.fleet.living_speeds()
    n_slots, reach = costs.fleet.n_living_slots, speeds.sum() / speeds.max()
    bounds = [placement_bound(one, n_slots, len(speeds), speeds) * one.sum(axis=1) / reach for one in served]
    return MoveReplay(
        costs, rule.tolerance, totals, float(np.sum(bounds)), max(last.worst, 0.0), served,
        np.stack(ruled[0]), tuple(ruled[1]),
    )  # fmt: skip


def _total(maps: list[Map], moves: list[float], served: NDArray, costs: MoveCosts) -> StreamTotal:
    serving = sum(
        float(costs.serving(one, loads[None]).sum()) for one, loads in zip(maps, served, strict=True)
    )
    n_moved = sum(int((new != old).any(axis=1).sum()) for old, new in pairwise(maps))
    return StreamTotal(serving, sum(moves), n_moved)


def _hindsight(maps: list[Map], served: NDArray, costs: MoveCosts) -> StreamTotal:
    """The least cost of any schedule over ``maps`` that begins with the first, layer by layer."""
    maps = [one for i, one in enumerate(maps) if not any(np.array_equal(one, other) for other in maps[:i])]
    serving = np.stack([costs.serving(one, served) for one in maps], axis=1)  # [windows, maps, layers]
    totals = []
    for layer in range(serving.shape[2]):
        moving = _fewest_batches(np.stack([one[layer] for one in maps]), costs) * costs.fetch_tokens
        course = best_in_hindsight(serving[:, :, layer], moving)
        totals.append((
            serving[np.arange(len(course)), course, layer].sum(),
            moving[(0, *course[:-1]), course].sum(), int((np.diff([0, *course]) != 0).sum()),
        ))  # fmt: skip
    cost, moves, n_moved = np.sum(totals, axis=0).tolist()
    return StreamTotal(cost, moves, int(n_moved))


def best_in_hindsight(serving: NDArray, moving: NDArray) -> list[int]:
    """The states of a schedule of least cost, by dynamic programming; state 0 before the first window.

    serving  [windows, states] cost of a window in a state;  moving  [states, states] from one to another
    """
    least, came = moving[0], []
    for i, cost in enumerate(serving):
        if i:
            through = least[:, None] + moving
            came.append(through.argmin(axis=0))
            least = through.min(axis=0)
        least = least + cost
    course = [int(least.argmin())]
    for before in reversed(came):
        course.append(int(before[course[-1]]))
    return course[::-1]


def _fewest_batches(maps: NDArray[np.int64], costs: MoveCosts) -> NDArray[np.int64]:
    """[maps, maps] the most experts that one GPU lacks of the second map, with the first one in use."""
    n_gpus, n_experts = costs.fleet.n_gpus, int(maps.max()) + 1
    has = np.zeros((n_gpus, len(maps), n_experts + 1), np.float32)
    gpus = np.arange(maps.shape[1]) // costs.fleet.width
    for i, slots in enumerate(maps):
        has[gpus, i, slots] = 1  # an empty slot, -1, counts for no expert
    has = has[:, :, :n_experts]
    lacks = has.sum(axis=2)[:, None, :] - has @ has.transpose(0, 2, 1)
    return np.rint(lacks.max(axis=0)).astype(np.int64)
