"""A coarser problem to search in: several items taken as one, devices of nearly the same speed as equal."""

import math
from dataclasses import replace

from evenload.pipeline.planning.candidates import Candidate
from evenload.pipeline.planning.layouts import MANY_DEVICES
from evenload.pipeline.planning.placement_options import ALIKE, PlacementOption, device_options, group_option
from evenload.pipeline.planning.simulate_plan import CandidatePhase, CandidateUnit
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem

__all__ = ["coarsen", "refine"]

FEWEST_TASKS, MOST_TASKS = 1500, 25_000  # of a coarse problem
ROUNDS = 40  # tasks of each stage for each device that are fine enough


def coarsen(problem: Problem) -> tuple[Problem, int]:
    """Return a problem that costs less to simulate, and how many items were taken as one."""
    n_tasks = problem.n_items * sum(stage.n_tasks for stage in problem.stages)
    n_fine = ROUNDS * len(problem.devices) * len(problem.stages)
    n_together = max(1, math.ceil(n_tasks / min(max(n_fine, FEWEST_TASKS), MOST_TASKS)))
    devices = problem.devices
    if len(devices) > MANY_DEVICES:
        devices = tuple(replace(device, speed=_rounded(device.speed)) for device in devices)
    if n_together == 1:
        return (problem if devices == problem.devices else replace(problem, devices=devices)), 1
    n_items = math.ceil(problem.n_items / n_together)
    scale = problem.n_items / n_items
    stages = tuple(replace(stage, item_s=stage.item_s * scale) for stage in problem.stages)
    done = tuple(n_done * n_items // problem.n_items for n_done in problem.done)
    sizes = None
    if problem.sizes is not None:
        ordered = sorted(problem.sizes, reverse=True)
        groups = [ordered[start::n_items] for start in range(n_items)]
        sizes = tuple(sum(group) / len(ordered) * n_items for group in groups)
    coarse = replace(problem, stages=stages, devices=devices, n_items=n_items, done=done, sizes=sizes)
    return coarse, n_together


def _rounded(speed: float) -> float:
    return ALIKE ** math.floor(math.log(speed, ALIKE) + 1e-9)


def refine(candidate: Candidate, problem: Problem, n_together: int) -> Candidate | None:
    """Return the candidate of a coarse problem as one of ``problem``; None if a model does not fit."""
    stages = {stage.name: stage for stage in problem.stages}
    devices = {device.id: device for device in problem.devices}
    found: dict[PlacementOption, PlacementOption | None] = {}
    phases: list[CandidatePhase] = []
    for phase in candidate.phases:
        units: list[CandidateUnit] = []
        for unit in phase:
            option = unit.option
            if option not in found:
                there = [devices[one] for one in option.devices]
                found[option] = _same_option(option, stages[option.stage], there, problem)
            exact = found[option]
            if exact is None:
                return None
            units.append(CandidateUnit(exact, None if unit.limit is None else unit.limit * n_together))
        phases.append(tuple(units))
    return replace(candidate, phases=tuple(phases), layouts=())


def _same_option(
    option: PlacementOption, stage: PlanStage, devices: list[PlanDevice], problem: Problem
) -> PlacementOption | None:
    if len(devices) > 1:
        return group_option(stage, devices, problem)
    ways = device_options(stage, devices[0], problem)
    return next((one for one in ways if one.fit.name == option.fit.name), None)
