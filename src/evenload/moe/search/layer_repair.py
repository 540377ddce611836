"""``repair``: bring a layer's placement to a target with few fetches; a tighter target needs no fewer."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evenload.moe.search.layer_search import PERFECT, Effort, LayerPlacement, LayerSearch

Way = tuple[NDArray[np.int64], float]  # slots, and their mean cost
LEAST_PAY, LEAST_PAY_SPLIT = 1e-4, 1e-5  # of imbalance, for each expert fetched; a split gains in small steps
STEP, STEP_SPLIT = 0.9, 0.97  # from goal to goal: how much of the imbalance is left
SPARSE = 16  # one goal of so many is tried for a start of the search that goes on
MOST_DETOUR = 1.25  # the search ends at so many times the fetches that are enough
MOST_WINDOWS = 8  # the worst ones, that the greedy search looks at


def repair(search: LayerSearch, old: NDArray[np.int64], target: float, effort: Effort) -> LayerPlacement:
    """Change ``old`` slots with as few fetches of experts as will bring the mean cost to ``target``.

    Of the placements on the way to an even load, which is the same for all targets, it takes the one with the
    fewest fetches that meets the target: so a tighter target does not need fewer. If none does, it takes the
    one of the least cost.
    """
    # Routing over copies that are there needs no fetch, so it has to hold for more than the windows.
    n_made_up = effort.n_made_up if search.is_routed else 0
    every = replace(effort, n_windows=len(search.windows), n_made_up=n_made_up)
    demand = search.scenarios(search.windows, every)
    has = np.zeros_like(search.nowhere)
    has[search.fleet.slot2gpu[old >= 0], old[old >= 0]] = True
    ways = _priced if search.is_routed else _greedy
    best: tuple[float, int, NDArray] = (np.inf, 0, old)  # cost beyond the target, fetches, slots
    for slots, cost in ways(search, old, target, demand, has, effort):
        held = slots >= 0
        n_fetched = int((~has[search.fleet.slot2gpu[held], slots[held]]).sum())
        best = min(best, (max(cost - target, 0.0), n_fetched, slots), key=lambda way: way[:2])
        if cost <= target and n_fetched > MOST_DETOUR * (best[1] + 1):
            break
    return LayerPlacement(best[2], "old", None)


def _greedy(
    search: LayerSearch, old: NDArray, target: float, demand: NDArray, has: NDArray, effort: Effort
) -> Iterator[Way]:
    """Yield the greedy search's placements for each goal, then those on the way on from the evenest."""
    cost = search.costs(old, demand)
    yield old, float(cost.mean())
    worst = demand[np.sort(np.argsort(-cost, kind="stable")[:MOST_WINDOWS])]

    def relieved(goal: float) -> Way:
        slots = search.relieve(old, worst, has, goal)
        return slots, float(search.costs(slots, demand).mean())

    goals = _goals(cost.mean(), STEP_SPLIT)
    for goal in goals:
        if goal <= target:
            way = relieved(goal)
            yield way
            if way[1] > goal:
                break
    evenest, _ = min(map(relieved, goals[::SPARSE]), key=lambda way: way[1])
    yield from _priced(search, evenest, target, demand, has, effort)


def _priced(
    search: LayerSearch, slots: NDArray, target: float, demand: NDArray, has: NDArray, effort: Effort
) -> Iterator[Way]:
    """Yield one placement after the other, each made of the one before by changes that pay for their fetches.

    Each expert fetched has a price. It falls where nothing pays any more, but not below ``LEAST_PAY``.
    """
    cost = float(search.costs(slots, demand).mean())
    yield slots, cost
    price, least = (cost - 1) / 2, LEAST_PAY if search.is_routed else LEAST_PAY_SPLIT
    for goal in _goals(cost, STEP):
        while cost > goal and price >= least:
            slots, costs = search.search(
                slots, demand, 2 * effort.n_tries, old_on=has, price=price, goal=goal
            )
            cost = float(costs.mean())
            yield slots, cost
            if cost > goal:
                price /= 2


def _goals(cost: float, step: float) -> list[float]:
    """Goals on the way from ``cost`` to an even load."""
    goals, excess = [], (cost - 1) * step
    while excess > LEAST_PAY:
        goals.append(1 + excess)
        excess *= step
    return [*goals, PERFECT]
