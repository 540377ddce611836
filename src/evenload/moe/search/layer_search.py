"""The search for one layer's placement: from several starts, judged on windows that it has not seen."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.kernels import greedy_search, random_search
from evenload.moe.placement.kernels.start import fill_slots
from evenload.moe.placement.kernels.state import LayerProblem, LayerState, Scratch
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.topology import spread_strides

PERFECT = 1.0 + 1e-6
LONE_NOISE, LONE_NOISE_SPLIT = 0.1, 0.03  # see ``stress``: routing evens out more than a split does
WORST = 8  # one window of so many is among the worst
PRIOR = 3  # the mean counts as one window for so many
ENOUGH_WINDOWS = 4  # from which on a quarter of them is held out


def stress(
    windows: NDArray[np.float64], n: int, random: np.random.Generator, lone_noise: float
) -> NDArray[np.float64]:
    """``n`` made-up windows [n, experts] from ``windows`` [windows, experts] of loads.

    Each is a window drawn at random plus noise as large as the windows' own, with a variance in proportion to
    the load, as counts have it. The factor is estimated as the median over experts of variance over mean. A
    placement that is good for these is better for the next batches than one that fits the windows alone.
    From one window no variance can be estimated: it is multiplied by log-normal noise of ``lone_noise``.
    """
    n_windows, n_experts = windows.shape
    drawn = windows[random.integers(n_windows, size=n)]
    noise = random.normal(0.0, 1.0, (n, n_experts))
    if n_windows == 1:
        return drawn * np.exp(lone_noise * noise)
    mean, variance = windows.mean(axis=0), windows.var(axis=0, ddof=1)
    ratio = np.median(variance[mean > 0] / mean[mean > 0]) if mean.any() else 0.0
    return np.maximum(drawn + noise * np.sqrt(ratio * drawn), 0.0)


def as_demand(windows: NDArray, speed: float) -> NDArray[np.float64]:
    """Scale each of ``windows`` [windows, experts] to sum to ``speed``; windows without load are dropped.

    Returns one window of equal loads if there is no load at all.
    """
    totals = windows.sum(axis=1)
    kept = windows[totals > 0]
    if not len(kept):
        kept, totals = np.ones((1, windows.shape[1])), np.array([float(windows.shape[1])])
    return np.ascontiguousarray(kept * (speed / totals[totals > 0][:, None]), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to search: rounds, each over scenarios drawn anew from the windows, and some made up.

    n_windows  most windows that a round uses
    n_made_up  scenarios that it adds, less two for each window
    n_tries    changes whose costs it may compute; the search from each start gets a third of it
    """

    n_windows: int = 32
    n_made_up: int = 54
    n_rounds: int = 8
    n_tries: int = 180


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """The placement that a search found for a layer.

    slots     [living slots] the expert in each
    origin    the start that it came from
    held_out  its cost in the windows held out, None if there were none
    """

    slots: NDArray[np.int64]
    origin: str
    held_out: float | None


@dataclass(frozen=True, slots=True)
class LivingFleet:
    """The living GPUs of a fleet and their slots, as arrays for the kernels.

    slot_index  [living slots] the place of each in ``phy2log``; the rest is as in ``LayerProblem``
    """

    slot_index: NDArray[np.intp]
    slot2gpu: NDArray[np.int64]
    first_slot: NDArray[np.int64]
    speed: NDArray[np.float64]
    node: NDArray[np.int64]

    @classmethod
    def of(cls, fleet: Fleet) -> "LivingFleet":
        speeds = fleet.living_speeds()
        living = np.flatnonzero(speeds > 0)
        slot_index = np.flatnonzero(fleet.open_slots())
        slot2gpu = np.searchsorted(living, slot_index // fleet.width).astype(np.int64)
        first_slot = np.searchsorted(slot2gpu, np.arange(len(living) + 1)).astype(np.int64)
        return cls(
            slot_index,
            slot2gpu,
            first_slot,
            speeds[living] / speeds.max(),
            np.asarray(fleet.nodes, np.int64)[living],
        )

    @property
    def n_slots(self) -> int:
        return len(self.slot_index)


class LayerSearch:
    """A search for the placement of one layer. Its slots are those of living GPUs only.

    windows    [windows, experts] recent loads
    home       [experts] the node that must keep a copy, -1 for none
    is_strict  whether no copy may leave its home node
    is_routed  whether batches are routed exactly, not split equally over copies
    robust     0 to 1: how much the worst windows count beside the mean of all
    """

    def __init__(
        self,
        windows: NDArray,
        fleet: LivingFleet,
        *,
        home: NDArray[np.int64],
        is_strict: bool,
        is_routed: bool,
        seed: int,
        robust: float = 0.0,
    ):
        self.robust = robust
        self.windows, self.fleet = windows, fleet
        self.home, self.is_strict, self.is_routed = home, is_strict, is_routed
        self.random = np.random.default_rng(seed)
        self.mean = as_demand(windows, 1.0).mean(axis=0)
        self.order = np.argsort(-self.mean, kind="stable")
        self.nowhere = np.zeros((len(fleet.speed), len(self.mean)), np.bool_)

    def starts(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Names and slots of the starts.

        EPLB's placement where it applies; copies counted by load; and a backbone: copies such that routing
        can move load from any GPU to any other.
        """
        fleet, n_experts = self.fleet, len(self.mean)
        room = np.diff(fleet.first_slot)
        is_even = np.ptp(room) == 0 and np.ptp(fleet.speed) == 0
        if is_even and (self.home < 0).all() and room[0] <= n_experts:  # with more, EPLB makes twins
            slots = rebalance_experts(self.mean[None], fleet.n_slots, 1, 1, len(room)).phy2log[0]
            yield "EPLB", self.complete(slots)
        yield "copies by load", self._fill(room, [])
        n_spare = fleet.n_slots - n_experts
        if n_spare > 0 and len(room) > 1:
            quota = room - np.diff(np.arange(len(room) + 1) * n_spare // len(room))
            n_columns = max(1, -(-n_spare // len(room)))
            yield "backbone", self._fill(quota, spread_strides(len(room), n_columns))

    def _fill(self, quota: NDArray, strides: list[int]) -> NDArray[np.int64]:
        fleet, slots = self.fleet, np.empty(self.fleet.n_slots, np.int64)
        fill_slots(
            self.mean, fleet.speed, fleet.first_slot, fleet.node, self.home, self.is_strict,
            quota.astype(np.int64), np.asarray(strides, np.int64), slots,
        )  # fmt: skip
        return slots

    def scenarios(
        self, windows: NDArray, effort: Effort, slots: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """[n, experts] scenarios of a round: up to ``n_windows`` windows, and made-up ones.

        slots  a share ``robust`` of the windows are those that this placement serves worst
        """
        real = as_demand(windows, 1.0)
        n_windows = min(len(real), effort.n_windows)
        worst = np.empty(0, np.int64)
        if slots is not None and self.robust:
            cost = self.costs(slots, real * self.fleet.speed.sum())
            n_worst = int(np.ceil(self.robust * n_windows))
            worst = np.argsort(-cost, kind="stable")[: max(1, len(real) // WORST)]
            worst = np.resize(worst, n_worst)
        if len(real) > effort.n_windows or len(worst):
            others = self.random.choice(len(real), n_windows - len(worst), replace=False)
            real = real[np.sort(np.concatenate([worst, others]))]
        n_made_up = max(effort.n_made_up - 2 * len(real), 0)
        noise = LONE_NOISE if self.is_routed else LONE_NOISE_SPLIT
        made_up = stress(real, n_made_up, self.random, noise)
        return as_demand(np.concatenate([real, made_up]), self.fleet.speed.sum())

    def plan(self, effort: Effort, others: dict[str, NDArray[np.int64]] | None = None) -> LayerPlacement:
        """Search for a placement; ``others`` are more starts, by name.

        The last quarter of the windows is held out (none if there are fewer than four) and decides between
        the rounds' results. From the best of them, the last round searches with all windows.
        """
        n_held = len(self.windows) // 4 if len(self.windows) >= ENOUGH_WINDOWS else 0
        known, held = np.split(self.windows, [len(self.windows) - n_held])
        thorough = replace(effort, n_windows=len(known), n_made_up=2 * effort.n_made_up)
        judges = [self.scenarios(self._with_prior(known), thorough)]
        if n_held:
            judges.append(as_demand(self._with_prior(held), self.fleet.speed.sum()))

        def verdict(slots: NDArray[np.int64]) -> float:
            costs = [self.costs(slots, judge) for judge in judges]
            mean, worst = np.mean([cost.mean() for cost in costs]), max(cost.max() for cost in costs)
            return float((1 - self.robust) * mean + self.robust * worst)

        demand = self.scenarios(self._with_prior(known), effort)
        begun = {name: self.search(slots, demand, effort.n_tries // 3)[0] for name, slots in self.starts()}
        begun |= others or {}
        origin = min(begun, key=lambda name: verdict(begun[name]))
        found = [begun[origin]]
        for _ in range(effort.n_rounds - 1):
            found.append(self.search(found[-1], demand, effort.n_tries)[0])
            demand = self.scenarios(self._with_prior(known), effort, found[-1])
        best = min(found, key=verdict)
        held_out = self.costs(best, as_demand(held, self.fleet.speed.sum())).mean() if n_held else None
        demand = self.scenarios(self._with_prior(self.windows), effort, best)
        slots = self.search(best, demand, effort.n_tries)[0]
        return LayerPlacement(slots, origin, None if held_out is None else float(held_out))

    def _with_prior(self, windows: NDArray) -> NDArray:
        """``windows``, and for an equal split their mean beside them: chance in them will not come again."""
        if self.is_routed or len(windows) < 2 or self.robust:
            return windows
        scaled = as_demand(windows, 1.0)
        return np.concatenate([scaled, *[scaled.mean(axis=0, keepdims=True)] * (-(-len(scaled) // PRIOR))])

    def complete(self, old: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make ``old`` a valid start: no expert twice on a GPU, each somewhere, and at its home node."""
        slots, slot2gpu = old.copy(), self.fleet.slot2gpu
        seen = set()
        for slot, expert in enumerate(slots):
            if (slot2gpu[slot], expert) in seen or self._is_barred(expert, slot2gpu[slot]):
                slots[slot] = -1
            seen.add((slot2gpu[slot], expert))
        missing = list(self.order)
        while missing:
            expert = missing.pop(0)
            usable = (
                self.fleet.node[slot2gpu] == self.home[expert]
                if self.home[expert] >= 0
                else np.ones(len(slots), bool)
            )
            if not ((slots == expert) & usable).any():
                slot = self._spare(slots, usable)
                if slots[slot] >= 0:
                    missing.append(slots[slot])
                slots[slot] = expert
        return slots

    def _is_barred(self, expert: int, gpu: int) -> bool:
        return bool(self.is_strict and expert >= 0 and self.fleet.node[gpu] != self.home[expert] >= 0)

    def _spare(self, slots: NDArray[np.int64], usable: NDArray[np.bool_]) -> int:
        """A slot to give up: an empty one, else the lightest copy that its expert can do without."""
        count = np.bincount(slots[slots >= 0], minlength=len(self.mean))
        share = np.where(slots >= 0, (self.mean / np.maximum(count, 1))[slots], -1.0)
        is_bound = self.home[slots] >= 0
        at_home = is_bound & (self.fleet.node[self.fleet.slot2gpu] == self.home[slots])
        copies = np.bincount(slots[at_home & (slots >= 0)], minlength=len(self.mean))
        is_spare = (slots < 0) | np.where(is_bound, ~at_home | (copies[slots] > 1), count[slots] > 1)
        return int(np.flatnonzero(usable & is_spare)[np.argmin(share[usable & is_spare])])

    def search(
        self,
        slots: NDArray[np.int64],
        demand: NDArray[np.float64],
        n_tries: int,
        *,
        old_on: NDArray[np.bool_] | None = None,
        price: float = 0.0,
        goal: float = PERFECT,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Better slots and their cost in each scenario of ``demand``; see ``random_search.search``."""
        problem, state, scratch = self._begin(slots, demand)
        if n_tries:
            scratch.random[:] = self.random.integers(1, 2**63, 1)
        has, n_scenarios = self.nowhere if old_on is None else old_on, len(demand)
        random_search.search(problem, state, scratch, has, price * n_scenarios, goal * n_scenarios, n_tries)
        return state.slots, state.cost

    def relieve(
        self,
        slots: NDArray[np.int64],
        demand: NDArray[np.float64],
        old_on: NDArray[np.bool_],
        target: float,
    ) -> NDArray[np.int64]:
        """Slots after the changes that gain most for each fetch; see ``greedy_search.repair``."""
        problem, state, scratch = self._begin(slots, demand)
        greedy_search.repair(problem, state, scratch, old_on, target, len(slots))
        return state.slots

    def _begin(
        self, slots: NDArray[np.int64], demand: NDArray[np.float64]
    ) -> tuple[LayerProblem, LayerState, Scratch]:
        """The kernels' arguments, with ``slots`` to start from."""
        fleet, (n_scenarios, n_experts), n_gpus = self.fleet, demand.shape, len(self.fleet.speed)
        problem = LayerProblem(
            demand, fleet.speed, fleet.slot2gpu, fleet.first_slot, fleet.node, self.home, self.is_strict,
            self.is_routed, self.order,
        )  # fmt: skip
        costs = partial(_empty_costs, n_scenarios, len(slots), n_gpus)
        state = LayerState(
            slots=slots.copy(), hosts=np.zeros((n_experts, n_gpus), np.int64),
            n_hosts=np.zeros(n_experts, np.int64), on=np.zeros((n_gpus, n_experts), np.bool_), **costs(),
        )  # fmt: skip
        scratch = Scratch(
            **costs(), least=np.zeros(n_scenarios), turn=np.arange(n_scenarios),
            parent=np.zeros(n_gpus, np.int64), giver=np.zeros(n_gpus, np.int64),
            taker=np.zeros(n_gpus, np.int64), queue=np.zeros(n_gpus, np.int64),
            random=np.ones(1, np.uint64),
        )  # fmt: skip
        return problem, state, scratch

    def costs(self, slots: NDArray[np.int64], demand: NDArray[np.float64]) -> NDArray[np.float64]:
        """[scenarios] costs of ``slots``, without a search."""
        return self.search(slots, demand, 0)[1]


def _empty_costs(n_scenarios: int, n_slots: int, n_gpus: int) -> dict[str, NDArray]:
    return {
        "flow": np.zeros((n_scenarios, n_slots)),
        "load": np.zeros((n_scenarios, n_gpus)),
        "cost": np.zeros(n_scenarios),
        "cut": np.zeros((n_scenarios, n_gpus), np.bool_),
        "cut_speed": np.ones(n_scenarios),
    }


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
