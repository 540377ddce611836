"""One layer of ``plan``: starts, search from the best of them, and windows that the search has not seen to
decide.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.search.layer_state import Problem, Scratch, State
from evenload.moe.search.relief_kernels import relieve
from evenload.moe.search.scenarios import as_demand, stress
from evenload.moe.search.search_kernels import search
from evenload.moe.search.start_kernels import fill
from evenload.moe.topology import spread_strides

__all__ = ["Effort", "Found", "Ground", "LayerSearch"]

PERFECT = 1.0 + 1e-6
LEAST_PAY, LEAST_PAY_SPLIT = 1e-4, 1e-5  # of imbalance, for each expert fetched; a split gains in small steps
LONE_NOISE, LONE_NOISE_SPLIT = 0.1, 0.03  # see ``stress``: routing evens out more than a split does
ENOUGH_WINDOWS = 4  # to hold a quarter of them out
MOST_RELIEVED = 8  # windows, the worst ones, where all changes are looked at


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to search: rounds, each over scenarios drawn afresh from the windows, made up where they are
    too few.

    ``n_tries`` is how many changes a round may price with the router; each start of the search gets a third
    of it.
    """

    n_windows: int = 32
    n_made_up: int = 54  # less two for each window
    n_rounds: int = 8
    n_tries: int = 180


@dataclass(frozen=True, slots=True)
class Found:
    """A layer's placement: the living slots, where the search began, and its cost in the windows held out
    (or None).
    """

    slots: NDArray[np.int64]
    origin: str
    held_out: float | None


@dataclass(frozen=True, slots=True)
class Ground:
    """The living part of a fleet, as the kernels take it. ``slot_index`` are its slots' places in
    ``phy2log``.
    """

    slot_index: NDArray[np.intp]
    slot2gpu: NDArray[np.int64]
    first_slot: NDArray[np.int64]
    speed: NDArray[np.float64]
    node: NDArray[np.int64]

    @classmethod
    def of(cls, fleet: Fleet) -> "Ground":
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
    """Searches one layer. Slots here are the living ones only."""

    def __init__(
        self,
        windows: NDArray,
        ground: Ground,
        *,
        home: NDArray[np.int64],
        is_strict: bool,
        is_routed: bool,
        seed: int,
    ):
        self.windows, self.ground = windows, ground
        self.home, self.is_strict, self.is_routed = home, is_strict, is_routed
        self.random = np.random.default_rng(seed)
        self.mean = as_demand(windows, 1.0).mean(axis=0)
        self.order = np.argsort(-self.mean, kind="stable")
        self.nowhere = np.zeros((len(ground.speed), len(self.mean)), np.bool_)

    def starts(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """EPLB's, first copies first, and a backbone along which load can flow all round the fleet."""
        ground, n_experts = self.ground, len(self.mean)
        room = np.diff(ground.first_slot)
        is_even = np.ptp(room) == 0 and np.ptp(ground.speed) == 0
        if is_even and (self.home < 0).all() and room[0] <= n_experts:  # more slots: EPLB makes twins
            yield "EPLB", rebalance_experts(self.mean[None], ground.n_slots, 1, 1, len(room)).phy2log[0]
        yield "copies by load", self._fill(room, [])
        n_spare = ground.n_slots - n_experts
        if n_spare > 0 and len(room) > 1:
            quota = room - np.diff(np.arange(len(room) + 1) * n_spare // len(room))
            n_columns = max(1, -(-n_spare // len(room)))
            yield "backbone", self._fill(quota, spread_strides(len(room), n_columns))

    def _fill(self, quota: NDArray, strides: list[int]) -> NDArray[np.int64]:
        ground, slots = self.ground, np.empty(self.ground.n_slots, np.int64)
        fill(
            self.mean, ground.speed, ground.first_slot, ground.node, self.home, self.is_strict,
            quota.astype(np.int64), np.asarray(strides, np.int64), slots,
        )  # fmt: skip
        return slots

    def scenarios(self, windows: NDArray, effort: Effort) -> NDArray[np.float64]:
        """Scenarios [n, experts] of a round: as many windows as may be, made-up ones where these are few."""
        real = as_demand(windows, 1.0)
        if len(real) > effort.n_windows:
            real = real[np.sort(self.random.choice(len(real), effort.n_windows, replace=False))]
        n_made_up = max(effort.n_made_up - 2 * len(real), 0)
        noise = LONE_NOISE if self.is_routed else LONE_NOISE_SPLIT
        made_up = stress(real, n_made_up, self.random, noise)
        return as_demand(np.concatenate([real, made_up]), self.ground.speed.sum())

    def plan(self, effort: Effort, others: dict[str, NDArray[np.int64]] | None = None) -> Found:
        """The placement to use; ``others`` are more places to start from.

        The last quarter of the windows (none of fewer than four) is kept from the search, and decides between
        what it found; then the last round goes on from there with all windows.
        """
        n_held = len(self.windows) // 4 if len(self.windows) >= ENOUGH_WINDOWS else 0
        known, held = np.split(self.windows, [len(self.windows) - n_held])
        thorough = replace(effort, n_windows=len(known), n_made_up=2 * effort.n_made_up)
        judges = [self.scenarios(known, thorough)]
        if n_held:
            judges.append(as_demand(held, self.ground.speed.sum()))

        def verdict(slots: NDArray[np.int64]) -> float:
            return float(np.mean([self.costs(slots, judge).mean() for judge in judges]))

        demand = self.scenarios(known, effort)
        begun = {name: self.search(slots, demand, effort.n_tries // 3)[0] for name, slots in self.starts()}
        begun |= others or {}
        origin = min(begun, key=lambda name: verdict(begun[name]))
        found = [begun[origin]]
        for _ in range(effort.n_rounds - 1):
            found.append(self.search(found[-1], demand, effort.n_tries)[0])
            demand = self.scenarios(known, effort)
        best = min(found, key=verdict)
        held_out = float(self.costs(best, judges[-1]).mean()) if n_held else None
        return Found(
            self.search(best, self.scenarios(self.windows, effort), effort.n_tries)[0],
            origin,
            held_out,
        )

    def repair(self, old: NDArray[np.int64], target: float, effort: Effort) -> Found:
        """From ``old`` slots, with as few experts fetched as will bring the mean cost to ``target``.

        A change must first pay much for each expert that a GPU has to fetch, then less and less until the
        target is met; what pays less than ``LEAST_PAY`` is not done, even if the target is missed. Under an
        equal split what relieves most for a fetch comes before that.
        """
        # Routing over copies that are there costs nothing, so it is asked to hold for more than the windows.
        n_made_up = effort.n_made_up if self.is_routed else 0
        all_windows = replace(effort, n_windows=len(self.windows), n_made_up=n_made_up)
        demand = self.scenarios(self.windows, all_windows)
        has = np.zeros_like(self.nowhere)
        has[self.ground.slot2gpu[old >= 0], old[old >= 0]] = True
        slots, cost = old, self.costs(old, demand)
        if not self.is_routed:
            worst = np.sort(np.argsort(-cost, kind="stable")[:MOST_RELIEVED])
            slots = self._relieve(old, demand[worst], has, target)
            cost = self.costs(slots, demand)
        price, least = max(cost.mean() - target, 0.0) / 2, LEAST_PAY if self.is_routed else LEAST_PAY_SPLIT
        while cost.mean() > target and price >= least:
            slots, cost = self.search(slots, demand, 2 * effort.n_tries, old_on=has, price=price, goal=target)
            price /= 2
        return Found(slots, "old", None)

    def complete(self, old: NDArray[np.int64]) -> NDArray[np.int64]:
        """``old`` made fit to start from: no twins, every expert somewhere, those bound to a node with a
        copy there.
        """
        slots, slot2gpu = old.copy(), self.ground.slot2gpu
        seen = set()
        for slot, expert in enumerate(slots):
            if (slot2gpu[slot], expert) in seen or self._is_barred(expert, slot2gpu[slot]):
                slots[slot] = -1
            seen.add((slot2gpu[slot], expert))
        missing = list(self.order)
        while missing:
            expert = missing.pop(0)
            usable = (
                self.ground.node[slot2gpu] == self.home[expert]
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
        return bool(self.is_strict and expert >= 0 and self.ground.node[gpu] != self.home[expert] >= 0)

    def _spare(self, slots: NDArray[np.int64], usable: NDArray[np.bool_]) -> int:
        """A slot to give up: an empty one, else the lightest copy that others can stand in for or that is
        away from home.
        """
        count = np.bincount(slots[slots >= 0], minlength=len(self.mean))
        share = np.where(slots >= 0, (self.mean / np.maximum(count, 1))[slots], -1.0)
        is_bound = self.home[slots] >= 0
        at_home = is_bound & (self.ground.node[self.ground.slot2gpu] == self.home[slots])
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
        """Better slots and their cost in each scenario of ``demand``; see ``search_kernels.search``."""
        problem, state, scratch = self._begin(slots, demand)
        has, n_scenarios = self.nowhere if old_on is None else old_on, len(demand)
        search(problem, state, scratch, has, price * n_scenarios, goal * n_scenarios, n_tries)
        return state.slots, state.cost

    def _relieve(
        self,
        slots: NDArray[np.int64],
        demand: NDArray[np.float64],
        old_on: NDArray[np.bool_],
        target: float,
    ) -> NDArray[np.int64]:
        """Slots after changes that take off most for each fetch; see ``relief_kernels.relieve``."""
        problem, state, scratch = self._begin(slots, demand)
        relieve(problem, state, scratch, old_on, target, len(slots))
        return state.slots

    def _begin(self, slots: NDArray[np.int64], demand: NDArray[np.float64]) -> tuple[Problem, State, Scratch]:
        """What the kernels take, with ``slots`` to start from."""
        ground, (n_scenarios, n_experts), n_gpus = self.ground, demand.shape, len(self.ground.speed)
        problem = Problem(
            demand, ground.speed, ground.slot2gpu, ground.first_slot, ground.node, self.home, self.is_strict,
            self.is_routed, self.order,
        )  # fmt: skip
        served = partial(_served, n_scenarios, len(slots), n_gpus)
        state = State(
            slots=slots.copy(), hosts=np.zeros((n_experts, n_gpus), np.int64),
            n_hosts=np.zeros(n_experts, np.int64), on=np.zeros((n_gpus, n_experts), np.bool_), **served(),
        )  # fmt: skip
        scratch = Scratch(
            **served(), least=np.zeros(n_scenarios), turn=np.arange(n_scenarios),
            parent=np.zeros(n_gpus, np.int64), giver=np.zeros(n_gpus, np.int64),
            taker=np.zeros(n_gpus, np.int64), queue=np.zeros(n_gpus, np.int64),
            random=self.random.integers(1, 2**63, 1).astype(np.uint64),
        )  # fmt: skip
        return problem, state, scratch

    def costs(self, slots: NDArray[np.int64], demand: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cost in each scenario, without a search."""
        return self.search(slots, demand, 0)[1]


def _served(n_scenarios: int, n_slots: int, n_gpus: int) -> dict[str, NDArray]:
    return {
        "flow": np.zeros((n_scenarios, n_slots)),
        "load": np.zeros((n_scenarios, n_gpus)),
        "cost": np.zeros(n_scenarios),
        "cut": np.zeros((n_scenarios, n_gpus), np.bool_),
        "cut_speed": np.ones(n_scenarios),
    }
