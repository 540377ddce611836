"""Simulated workers, and sets of those that are alike and go in step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenload.pipeline.planning.placement_options import PlacementOption
from evenload.pipeline.problem import Problem

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class CandidateUnit:
    """A stage held by some devices in one phase. ``limit``: leave after so many items (None: never)."""

    option: PlacementOption
    limit: int | None = None


CandidatePhase = tuple[CandidateUnit, ...]


@dataclass(slots=True)
class SimulatedWorker:
    """The stages that a phase holds on the same devices.

    at       stage -> position of its unit in the phase
    missing  devices that still work for an earlier phase
    """

    number: int
    phase: int
    devices: tuple[str, ...]
    kind: "WorkerKind"
    at: dict[int, int]
    missing: int
    taken: dict[int, int] = field(default_factory=dict)


class WorkerKind:
    """Workers with the same stages, times and limits, and what tells them from others: one object for each.

    stages    in the order in which they are preferred
    rank      seconds for an item, relative to those of the stage: smaller is faster
    """

    __slots__ = ("item_s", "limits", "load_s", "n_parallel", "number", "rank", "stages")

    def __init__(self, number: int, units: Mapping[int, CandidateUnit], problem: Problem):
        self.number = number
        self.stages = stages = tuple(sorted(units))
        self.item_s = {s: units[s].option.item_s for s in stages}
        self.load_s = {s: units[s].option.load_s for s in stages}
        self.limits = {s: limit for s in stages if (limit := units[s].limit) is not None}
        self.n_parallel = max(unit.option.fit.n_parallel for unit in units.values())
        self.rank = min(self.item_s[s] / problem.stages[s].item_s for s in stages)


class WorkerSet:
    """Workers of a kind that have loaded and closed the same stages, and whose items end at the same times.

    members  their numbers
    closed   stages that they have nothing more to do for
    loaded_s until when they load
    taken    stage -> items that each of them took, where there is a limit
    ends     when the items end that each works on; with some lanes free, a worker is alone in its set
    """

    __slots__ = ("closed", "ends", "kind", "loaded", "loaded_s", "members", "taken")

    def __init__(
        self,
        kind: WorkerKind,
        members: list[int],
        loaded: frozenset[int],
        closed: frozenset[int] = frozenset(),
        taken: dict[int, int] | None = None,
    ):
        self.kind, self.members, self.loaded, self.closed = kind, members, loaded, closed
        self.taken = dict.fromkeys(kind.limits, 0) if taken is None else taken
        self.ends: list[float] = []
        self.loaded_s = 0.0

    @property
    def key(self) -> tuple:
        """Equal for idle sets that are one."""
        taken = tuple(self.taken.values())
        return self.kind.number, self.loaded, self.closed, taken

    @property
    def order(self) -> tuple:
        """The fastest take first, of those the ones with a model, of those state by state."""
        state = sorted(self.loaded), sorted(self.closed), tuple(self.taken.values()), len(self.ends)
        return self.kind.rank, not self.loaded, self.kind.number, state, self.members[0]

    @property
    def n_lanes(self) -> int:
        """Items that each worker could begin now."""
        return self.kind.n_parallel - len(self.ends)

    def split(self, n: int) -> "WorkerSet":
        """Take the first ``n`` workers out, into a set of their own."""
        assert not self.ends
        apart = WorkerSet(self.kind, self.members[:n], self.loaded, self.closed, dict(self.taken))
        del self.members[:n]
        return apart

    def possible(self, stage: int, deadline: float, now: float) -> int:
        """Return the items of ``stage`` that one of these workers could finish by ``deadline``."""
        kind = self.kind
        item_s = kind.item_s[stage]
        load_s = 0.0 if stage in self.loaded else kind.load_s[stage]
        found = 0
        for start in (*self.ends, *(self.loaded_s,) * self.n_lanes):
            room = (deadline - max(start, now) - load_s) / item_s + SLACK
            found += max(0, math.floor(room))
        limit = kind.limits.get(stage)
        return found if limit is None else min(found, limit - self.taken[stage])


def list_workers(problem: Problem, phases: Sequence[CandidatePhase]) -> list[SimulatedWorker]:
    """List the workers of all phases."""
    index = {stage.name: number for number, stage in enumerate(problem.stages)}
    kinds: dict[tuple, WorkerKind] = {}
    workers: list[SimulatedWorker] = []
    for number, phase in enumerate(phases):
        here: dict[tuple[str, ...], dict[int, tuple[int, CandidateUnit]]] = {}
        for position, unit in enumerate(phase):
            here.setdefault(unit.option.devices, {})[index[unit.option.stage]] = position, unit
        for devices, placed in here.items():
            units = {stage: unit for stage, (_, unit) in placed.items()}
            key = tuple(
                (s, u.option.item_s, u.option.load_s, u.limit, u.option.fit.n_parallel)
                for s, u in sorted(units.items())
            )
            if key not in kinds:
                kinds[key] = WorkerKind(len(kinds), units, problem)
            at = {stage: position for stage, (position, _) in placed.items()}
            workers.append(
                SimulatedWorker(
                    len(workers), number, devices, kinds[key], at, len(devices), dict.fromkeys(at, 0)
                )
            )
    return workers
