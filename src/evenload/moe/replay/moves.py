"""``replay_moves``: what a stream costs if experts move by rule, never, always, and at best in hindsight."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.balance.claim import claim, exact
from evenload.errors import ConfigError
from evenload.moe.placement.bound import fleet_certificate, placement_bound
from evenload.moe.placement.fleet import Fleet
from evenload.moe.search.move_rule import Map, MoveCosts, MoveRule, Window


@dataclass(frozen=True, slots=True, eq=False)
class MoveReplay:
    """A stream with and without moves; costs in tokens of one GPU, summed over layers.

    cost    of serving and moves, by "rule"; "never": with the first placement kept; "always": with each
            candidate taken; "hindsight": no schedule over the placements of these costs less, its moves in
            the fewest batches that their busiest receiver allows; "bound": of serving in any placements
    moved   [windows, layers] whether a layer moved before the window, by "rule" and "always"
    worst   the most by which one window, by rule, cost beyond 1 + tolerance times its cost without moves
    maps    [windows, layers, slots] by rule;  moves  [windows] what it cost to get there from the one before
    """

    rule: MoveRule
    windows: NDArray[np.int64]
    cost: dict[str, float]
    moved: dict[str, NDArray[np.bool_]]
    worst: float
    maps: NDArray[np.int64]
    moves: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers: costs, layers moved, and what the rule's guarantee is made of."""
        return {
            "tolerance": self.rule.tolerance, "fetch_tokens": self.rule.costs.fetch_tokens,
            "worst_window": self.worst, "cost": self.cost,
            "layers_moved": {name: int(moved.sum()) for name, moved in self.moved.items()},
        }  # fmt: skip

    def certificate(self, name: str = "stream") -> dict[str, Any]:
        """What serving and moving cost by rule, and what no placements could go below in these windows.

        A document for ``json.dumps``, which ``evenload.certificate`` checks.
        """
        fleet, is_routed = self.rule.costs.fleet, self.rule.costs.is_routed
        pages = [
            fleet_certificate(one, loads[None], fleet, is_routed=is_routed)
            for one, loads in zip(self.maps, self.windows, strict=True)
            if loads.any()
        ]
        moves = [float(cost) for cost in self.moves if cost]
        layers = [layer for page in pages for layer in page["evidence"]["layers"]]
        evidence = pages[0]["evidence"] | {"layers": layers, "moves": moves}
        served, bound = (sum(exact(page["claim"][key]) for page in pages) for key in ("achieved", "bound"))
        return claim("placement", name, served + sum(map(exact, moves)), bound, evidence)


def replay_moves(
    batches: NDArray, plan: Callable[[NDArray, Map | None], Map], rule: MoveRule, *, history: int = 8,
    every: int = 1,
) -> MoveReplay:  # fmt: skip
    """Plan on the first ``history`` of ``batches`` [batches, layers, experts], then serve the others in turn.

    plan  makes a placement from the last ``history`` batches and the placement in use, after each ``every``

    Raises ConfigError without a batch to serve, or without load in them.
    """
    if not 1 <= history < len(batches) or not batches[history:].any():
        raise ConfigError(
            f"{len(batches)} batches, {history} of them to plan on, leave no load to serve",
            hint="give a longer trace, or a shorter history",
        )
    home, served, costs = plan(batches[:history], None), batches[history:], rule.costs
    offered, state = [home], rule.init(home)

    def course(decide: Callable[[NDArray, Map], Map]) -> NDArray[np.int64]:
        """[windows, layers, slots] the placement that each is served in."""
        maps = [home]
        for i, loads in enumerate(served, 1):
            is_due = i % every == 0 and i < len(served)
            offered.append(plan(batches[i : i + history], maps[-1]) if is_due else maps[-1])
            maps.append(decide(loads, offered[-1]))
        return np.stack(maps[:-1])

    def by_rule(loads: NDArray, candidate: Map) -> Map:
        nonlocal state
        state = rule.step(state, Window(loads, candidate))[0]
        return state.in_use

    maps, moves = {"rule": course(by_rule), "always": course(lambda _, candidate: candidate)}, {}
    cost = {"never": state.never, "hindsight": _hindsight(offered, served, costs)}
    for name, one in maps.items():
        moves[name] = np.array([0.0, *(costs.moving(old, new).sum() for old, new in pairwise(one))])
        serving = [costs.serving(phy2log, loads[None]) for phy2log, loads in zip(one, served, strict=True)]
        cost[name] = float(np.sum(serving) + moves[name].sum())
    speeds, n_slots = costs.fleet.living_speeds(), costs.fleet.n_living_slots
    least = [placement_bound(one, n_slots, len(speeds), speeds) * one.sum(axis=1) for one in served]
    cost["bound"] = float(np.sum(least) * speeds.max() / speeds.sum())
    moved = {name: (np.diff(one, axis=0, prepend=one[:1]) != 0).any(axis=2) for name, one in maps.items()}
    return MoveReplay(rule, served, cost, moved, state.worst, maps["rule"], moves["rule"])


def _hindsight(offered: list[Map], served: NDArray, costs: MoveCosts) -> float:
    """The least cost of any schedule over the placements offered that begins with the first, by layers."""
    maps = [one for i, one in enumerate(offered) if not any((one == other).all() for other in offered[:i])]
    serving = np.stack([costs.serving(one, served) for one in maps], axis=1)  # [windows, maps, layers]
    prices = [_fewest_batches(some, costs.fleet) * costs.fetch_tokens for some in np.stack(maps, axis=1)]
    return sum(best_in_hindsight(serving[:, :, layer], price) for layer, price in enumerate(prices))


def best_in_hindsight(serving: NDArray, moving: NDArray) -> float:
    """The cost of the cheapest schedule, by dynamic programming; state 0 before the first window.

    serving  [windows, states] cost of a window in a state;  moving  [states, states] from one to another
    """
    least = np.where(np.arange(len(moving)) == 0, 0.0, np.inf)
    for cost in serving:
        least = (least[:, None] + moving).min(axis=0) + cost
    return float(least.min())


def _fewest_batches(maps: NDArray[np.int64], fleet: Fleet) -> NDArray[np.float64]:
    """[maps, maps] the most experts that one GPU lacks of the second map, with the first one in use."""
    has = np.zeros((fleet.n_gpus, len(maps), int(maps.max()) + 2))
    for i, slots in enumerate(maps):
        has[np.arange(len(slots)) // fleet.width, i, slots] = 1
    has = has[:, :, :-1]  # without -1, an empty slot
    return (has.sum(axis=2)[:, None, :] - has @ has.transpose(0, 2, 1)).max(axis=0)
