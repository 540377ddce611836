"""``replay``: serve the batches of a trace in turn, under several strategies of placing and routing.

windows ──► history (plan) │ batches (serve) ──► a StrategyReplay each ──► Replay
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow import Router
from evenload.balance.flow.graph import ReplicaGraph
from evenload.errors import ConfigError, UnknownName
from evenload.moe.placement.bound import equal_split_tokens, placement_bound, whole_bound
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.search.plan import place
from evenload.moe.search.transfers import BYTES_PER_S, schedule_transfers

LoadsOf = Callable[[NDArray[np.int64]], NDArray[np.float64]]

STRATEGIES = {
    "EPLB": "EPLB's placement, tokens split equally over copies",
    "EPLB + routing": "EPLB's placement, each batch routed exactly",
    "search + routing": "placement by search, each batch routed exactly",
    "few fetches + routing": "the same, changed only as far as the target asks",
}


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """A change of placement before batch ``batch``.

    n_batches    of transfers, one after the other
    bytes        weights fetched
    seconds      estimate of the transfers' time
    moved_share  transfers over slots
    planned_s    seconds that planning took
    """

    batch: int
    n_transfers: int
    n_batches: int
    bytes: int
    seconds: float
    moved_share: float
    planned_s: float


@dataclass(slots=True)
class StrategyReplay:
    """The loads that one strategy gave over the batches. Imbalance is the busiest GPU over the mean, per
    speed.
    """

    name: str
    imbalance: NDArray[np.float64]  # [batches, layers]
    loads: NDArray[np.float64]  # [layers, gpus] mean over batches, 1 is the layer's mean for the GPU's speed
    moves: list[PlacementChange] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float(self.imbalance.mean())

    @property
    def p99(self) -> float:
        return float(np.percentile(self.imbalance, 99))


@dataclass(frozen=True, slots=True)
class RoutingReplay:
    """All strategies over the same batches, and a ``bound`` [batches, layers] that none can go below.

    All of them in whole tokens: loads that are split equally, that are routed, and of the bound.
    """

    trace: str
    fleet: Fleet
    batch: int
    history: int
    every: int
    n_experts: int
    expert_bytes: int
    courses: tuple[StrategyReplay, ...]
    bound: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers under ``schema`` 1: what the command prints with --json, and what the page shows."""
        return {
            "schema": 1,
            "trace": self.trace,
            "batch": self.batch,
            "history": self.history,
            "every": self.every,
            "n_layers": self.bound.shape[1],
            "n_experts": self.n_experts,
            "n_gpus": self.fleet.n_gpus,
            "n_slots": self.fleet.n_living_slots,
            "n_nodes": self.fleet.n_nodes,
            "expert_bytes": self.expert_bytes,
            "bytes_per_s": BYTES_PER_S,
            "bound": [round(float(x), 5) for x in self.bound.mean(axis=1)],
            "courses": [
                {
                    "name": course.name,
                    "what": STRATEGIES[course.name],
                    "mean": round(course.mean, 5),
                    "p99": round(course.p99, 5),
                    "worst": round(float(course.imbalance.max()), 5),
                    "over_bound": round(course.mean / float(self.bound.mean()), 5),
                    "imbalance": [round(float(x), 5) for x in course.imbalance.mean(axis=1)],
                    "worst_layer": [round(float(x), 5) for x in course.imbalance.max(axis=1)],
                    "loads": np.round(course.loads, 4).tolist(),
                    "moves": [
                        {name: getattr(move, name) for name in move.__slots__} for move in course.moves
                    ],
                }
                for course in self.courses
            ],
        }


def replay(
    batches: NDArray[np.int64],
    fleet: Fleet,
    *,
    history: int = 8,
    every: int = 0,
    fine: NDArray[np.int64] | None = None,
    strategies: Sequence[str] = tuple(STRATEGIES),
    target: float = 1.02,
    effort: Any = "online",
    expert_bytes: int = 0,
    name: str = "",
    batch: int = 0,
    seed: int = 0,
) -> RoutingReplay:
    """Plan on the first ``history`` of ``batches`` [batches, layers, experts], then serve the others in turn.

    every    plan anew before every so many batches, on the last ``history`` ones; 0: never
    fine     the same tokens in smaller windows, a whole number to a batch, for the search to plan on
    target   mean imbalance that "few fetches" brings the placement to

    EPLB's placement needs equal GPUs, all alive, over which the slots divide, and ignores nodes.

    Raises ConfigError if no batch is left to serve, or the fleet does not suit; UnknownName for a strategy.
    """
    if unknown := [strategy for strategy in strategies if strategy not in STRATEGIES]:
        raise UnknownName("strategy", unknown[0], STRATEGIES)
    _check_length(len(batches), history)
    limits = (fleet.n_living_slots, fleet.n_gpus, fleet.living_speeds())
    bound = np.stack(
        [whole_bound(placement_bound(one, *limits), one, limits[2]) for one in batches[history:]]
    )
    windows = batches if fine is None else fine
    courses = tuple(
        _StrategyPlacements(one, fleet, target, effort, expert_bytes, seed).serve(
            batches, windows, history, every
        )
        for one in strategies
    )
    return RoutingReplay(name, fleet, batch, history, every, batches.shape[2], expert_bytes, courses, bound)


class _StrategyPlacements:
    """The placements of one strategy, made one after the other."""

    def __init__(self, strategy: str, fleet: Fleet, target: float, effort: Any, expert_bytes: int, seed: int):
        self.strategy, self.fleet, self.target, self.effort = strategy, fleet, target, effort
        self.expert_bytes, self.seed = expert_bytes, seed
        self.phy2log: NDArray[np.int64] | None = None

    def serve(
        self, batches: NDArray[np.int64], fine: NDArray[np.int64], history: int, every: int
    ) -> StrategyReplay:
        """Serve the batches after the first ``history``; ``fine`` and ``every`` as in ``replay``."""
        fleet, speeds, ratio = self.fleet, self.fleet.living_speeds(), len(fine) // len(batches)
        n_served, n_layers = len(batches) - history, batches.shape[1]
        course = StrategyReplay(
            self.strategy, np.ones((n_served, n_layers)), np.zeros((n_layers, fleet.n_gpus))
        )
        loads_of: LoadsOf = np.asarray  # replaced before the first batch
        for i in range(n_served):
            if i == 0 or (every and i % every == 0):
                move = self._plan(fine[i * ratio : (i + history) * ratio], batches[i : i + history], i)
                if move:
                    course.moves.append(move)
                assert self.phy2log is not None
                is_routed = self.strategy != "EPLB"
                loads_of = _loads_under(self.phy2log, batches.shape[2], fleet, routed=is_routed)
            relative = _relative_loads(loads_of(batches[history + i]), speeds)
            course.imbalance[i] = relative.max(axis=1)
            course.loads += relative / n_served
        return course

    def _plan(
        self, windows: NDArray[np.int64], batches: NDArray[np.int64], at: int
    ) -> PlacementChange | None:
        """Plan on ``windows`` for the batch ``at``. Returns the change, None for the first placement.

        "few fetches" plans on whole ``batches`` instead, as its target is of whole batches.
        """
        started = time.perf_counter()
        old, fleet = self.phy2log, self.fleet
        if self.strategy.startswith("EPLB"):
            if not fleet.is_even:
                raise ConfigError(
                    "EPLB's policy needs alike GPUs, all alive", hint="leave its strategies out"
                )
            total = windows.sum(axis=0)
            new = rebalance_experts(total, fleet.n_living_slots, 1, 1, fleet.n_gpus).phy2log
        elif self.strategy.startswith("few") and old is not None:
            options = {"effort": self.effort, "seed": self.seed, "warns": False}
            new = place(batches, fleet, old=old, target=self.target, **options).phy2log
        else:
            new = place(windows, fleet, effort=self.effort, seed=self.seed).phy2log
        planned_s = time.perf_counter() - started
        self.phy2log = new
        if old is None:
            return None
        schedule = schedule_transfers(old, new, fleet, expert_bytes=self.expert_bytes)
        self.phy2log = schedule.phy2log
        n_transfers, n_batches = len(schedule.transfers), len(schedule.batches)
        return PlacementChange(
            at, n_transfers, n_batches, schedule.bytes, schedule.seconds, schedule.moved_share, planned_s
        )


def _loads_under(phy2log: NDArray[np.int64], n_experts: int, fleet: Fleet, *, routed: bool) -> LoadsOf:
    """A function from a batch [layers, experts] to loads [layers, gpus], routed exactly or split equally."""
    if not routed:
        return lambda counts: equal_split_tokens(phy2log, counts, fleet.n_gpus).astype(np.float64)
    graph = ReplicaGraph.from_slots(
        phy2log,
        n_experts,
        fleet.n_gpus,
        slot2gpu=np.arange(phy2log.shape[1]) // fleet.width,
        dead=np.flatnonzero(fleet.living_speeds() == 0).tolist(),
    )
    router = Router(graph, speeds=None if len(set(fleet.speeds)) == 1 else fleet.speeds)
    return lambda counts: router.solve(counts).loads.astype(np.float64)


def imbalances(
    phy2log: NDArray[np.int64], windows: NDArray[np.int64], fleet: Fleet, *, routed: bool = True
) -> NDArray[np.float64]:
    """[windows, layers] imbalance of whole counts [windows, layers, experts] under a placement."""
    loads_of = _loads_under(phy2log, windows.shape[2], fleet, routed=routed)
    speeds = fleet.living_speeds()
    return np.stack([_relative_loads(loads_of(counts), speeds).max(axis=1) for counts in windows])


def _relative_loads(loads: NDArray[np.float64], speeds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Loads over those of an even fleet: 1 if there is no load at all, 0 on dead GPUs."""
    mean = loads.sum(axis=1, keepdims=True) / speeds.sum()
    alive = speeds > 0
    level = np.where(alive, 1.0, 0.0) * np.ones_like(loads)
    per_speed = np.divide(loads, speeds, out=np.zeros_like(loads), where=np.broadcast_to(alive, loads.shape))
    return np.divide(per_speed, mean, out=level, where=np.broadcast_to(mean > 0, loads.shape))


def _check_length(n_batches: int, history: int) -> None:
    if n_batches < 2:
        raise ConfigError(
            f"a trace of {n_batches} batch, and a replay plans on one and serves another",
            hint="give a longer trace, or plan on all of it with `evenload moe place`",
        )
    if not 1 <= history < n_batches:
        raise ConfigError(
            f"{n_batches} batches, {history} of them to plan on",
            hint=f"use a history of 1 to {n_batches - 1}, or smaller batches",
        )
