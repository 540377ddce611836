"""The certificate of a plan: each task and load as simulated, and prices that prove the bound.

    Plan, Problem ──► simulated again, task by task ──► chunks, loads ──► document

Costs are written a little lower than they are, by less than a nanosecond each: so the plan is possible at the
written costs, and the bound, of these, holds for the real ones.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from evenload.balance.claim import claim, exact
from evenload.certificate import by_prices
from evenload.errors import ConfigError
from evenload.pipeline.plan import Plan, TimelineSlice, Unit
from evenload.pipeline.planning.least_time import task_prices, task_rates
from evenload.pipeline.planning.placement_options import PlacementOption, option_named
from evenload.pipeline.planning.play_plan import simulate_policy
from evenload.pipeline.planning.simulate_plan import CandidateUnit, SimulatedPlan
from evenload.pipeline.problem import Problem

MOST_TASKS = 150_000
NS = 10**9


def plan_certificate(problem: Problem, plan: Plan, name: str = "plan") -> dict[str, Any]:
    """Return the certificate of a plan for this problem, for ``json.dumps``: see ``evenload.certificate``.

    It claims the simulated time of the plan, and a bound by work and loads, which may be lower than
    ``plan.bound_s``: that one knows how long an item's way through all stages is, and that tasks are whole.

    Raises ConfigError for a plan without times, or for the rest of a run.
    """
    why_not = _why_not(problem, plan)
    if why_not:
        raise ConfigError(f"this plan cannot be certified: {why_not}", hint="certify the run instead")
    found = _simulated(problem, plan)
    page = _Page(problem, plan)
    for one in found.slices:
        page.add(one)
    stages = page.stages()
    stop = max(row[2] for stage in stages for row in stage["chunks"])
    prices, bound = _proof(problem, stages, len(page.devices), stop)
    members = list(range(len(stages)))
    stretch = {"start": 0, "stop": stop, "stages": members, "bound": bound, "prices": prices, "longest": 0}
    evidence = {"devices": page.devices, "stages": stages, "stretches": [stretch]}
    return claim("plan", name, stop, bound, evidence)


def _why_not(problem: Problem, plan: Plan) -> str:
    if plan.makespan_s is None:
        return "how long its stages take is not known"
    if any(problem.done):
        return "it is for the rest of a run"
    n_tasks = sum(problem.n_left(number) for number in range(len(problem.stages)))
    if not 0 < n_tasks <= MOST_TASKS:
        return f"it has {n_tasks} tasks, and up to {MOST_TASKS} are written"
    return ""


def _simulated(problem: Problem, plan: Plan) -> SimulatedPlan:
    """Simulate the plan again, task by task."""
    phases = [
        tuple(CandidateUnit(_option(unit, problem), unit.limit) for unit in phase.units)
        for phase in plan.phases
    ]
    found = simulate_policy(problem, phases)
    if math.isinf(found.makespan_s):
        raise ConfigError("this plan cannot be certified: it leaves tasks undone", hint="plan again")
    return found


def _option(unit: Unit, problem: Problem) -> PlacementOption:
    option = option_named(unit.stage, unit.devices, unit.fit.name, problem)
    if option is not None and option.fit == unit.fit:
        return option
    raise ConfigError(
        f"this plan cannot be certified: {unit.stage} on {'+'.join(unit.devices)} is of another problem",
        hint="give the problem that was planned",
    )


class _Page:
    """The devices, chunks and loads of a plan's certificate; ``add`` every slice, of a worker."""

    def __init__(self, problem: Problem, plan: Plan):
        self._problem = problem
        self.devices: list[dict[str, Any]] = [
            {"name": one.id, "lanes": 1, "parts": []} for one in problem.devices
        ]
        self._number = {one.id: number for number, one in enumerate(problem.devices)}
        for unit in (unit for phase in plan.phases for unit in phase.units):
            group = "+".join(unit.devices)
            if group not in self._number:
                self._number[group] = len(self.devices)
                parts = [self._number[one] for one in unit.devices]
                self.devices.append({"name": group, "lanes": 1, "parts": parts})
            device = self.devices[self._number[group]]
            device["lanes"] = max(device["lanes"], unit.fit.n_parallel)
        self._chunks: dict[str, list[list[Any]]] = {stage.name: [] for stage in problem.stages}
        self._loads: dict[str, list[list[int]]] = {stage.name: [] for stage in problem.stages}

    def add(self, one: TimelineSlice) -> None:
        device, start, stop = self._number[one.device], round(one.start_s * NS), round(one.stop_s * NS)
        if one.kind == "load":
            self._loads[one.stage].append([device, start, stop])
        else:
            chunks = self._chunks[one.stage]
            chunks.append([device, start, stop, stop - start, [len(chunks), 1], 0, None, True])

    def stages(self) -> list[dict[str, Any]]:
        n_groups = len(self.devices) - len(self._problem.devices)
        found = []
        for stage, rates, needs in zip(
            self._problem.stages, task_rates(self._problem), self._problem.graph.needs, strict=True
        ):
            chunks = self._chunks[stage.name]
            loads = [0 if stage.name in one.holds else self._load(stage.load_s, stage.name, one.returns)
                     for one in self._problem.devices]  # fmt: skip
            found.append(
                {
                    "name": stage.name,
                    "items": len(chunks),
                    "speeds": [*self._possible(rates, chunks), *[None] * n_groups],
                    "load": [*loads, *[0] * n_groups],
                    "loads": self._loads[stage.name],
                    "needs": list(needs),
                    "chunks": chunks,
                }
            )
        return found

    @staticmethod
    def _load(load_s: float, stage: str, returns: Sequence[tuple[str, float]]) -> int:
        """Return the nanoseconds that a load takes at least; ends of slices are rounded."""
        return max(0, math.floor(min(load_s, dict(returns).get(stage, load_s)) * NS) - 1)

    def _possible(self, rates: Sequence[float], chunks: Sequence[Sequence[Any]]) -> list[float | None]:
        """Return tasks a second of each device, a trifle more, so that each chunk is as long as it costs."""
        slack = Fraction(1)
        for device, _, _, busy, *_ in chunks:
            one = self.devices[device]
            rate = sum(exact(rates[part]) for part in one["parts"] or [device])
            slack = max(slack, one["lanes"] * NS / (busy * rate)) if busy and rate else slack
        more = float(slack) * (1 + 1e-12)
        return [rate * more if rate else None for rate in rates]


def _proof(
    problem: Problem, stages: list[dict[str, Any]], n_devices: int, stop: int
) -> tuple[list[float], int]:
    """Return the prices that prove most, of all stages together or of one, and the bound that they prove."""
    rows = [
        {
            "rate": {d: (d, *[exact(one)] * 3) for d, one in enumerate(stage["speeds"]) if one is not None},
            "busy": [0] * n_devices,
            "fixed": stage["items"] * NS,
            "load": stage["load"],
        }
        for stage in stages
    ]
    alone = [[float(one is stage) for one in stages] for stage in stages]
    best: tuple[list[float], int] = ([], 0)
    for prices in (task_prices(problem), *alone):
        low, high = best[1], stop + 1
        numbers = [exact(price) for price in prices]
        while low + 1 < high:
            middle = (low + high) // 2
            work, rate = by_prices(rows, numbers, [1] * n_devices, middle)
            low, high = (middle, high) if 0 < work >= rate * middle else (low, middle)
        if low > best[1]:
            best = prices, low
    return best
