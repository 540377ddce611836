"""Plan a job: ask the planner, and add to its plan what is known of each stage and what was assumed.

    plan = plan_job(spec, build_job_problem(spec, n_items, folder, devices))

``devices`` are a modelled fleet, or those of this machine: ``pool_devices(pool)``.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.devices.rates.hardware import find_hardware
from evenload.errors import ConfigError
from evenload.pipeline.plan import CandidateResult, Plan
from evenload.pipeline.planning.job_problem import JobProblem
from evenload.pipeline.planning.modelled_fleet import FleetDevice
from evenload.pipeline.planning.planner import MODES, Watch, make_plan
from evenload.report.costs import cost_of

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.pipeline.job.spec import JobSpec


class PlannedJob(NamedTuple):
    """A plan and the problem that it solves, which is solved again while the job runs."""

    plan: Plan
    job_problem: JobProblem


def plan_job(
    spec: "JobSpec", job_problem: JobProblem, *, effort: float = 1.0, watch: Watch | None = None
) -> Plan:
    """Plan a job by its mode; mode ``auto`` compares all modes.

    ``effort`` scales how long improvements are searched for, 0 for none. If the seconds of a stage are
    unknown, the plan says what fits and gives no makespan. ``watch`` as in ``make_plan``.
    Raises ConfigError, with the shortfall in GiB, if the job does not fit on the devices.
    """
    if job_problem.has_times:
        plan = make_plan(job_problem.problem, spec.schedule.mode, effort=effort, watch=watch)
    else:
        plan = _plan_without_times(job_problem, spec.schedule.mode)
    notes = (*spec.notes, *job_problem.notes, *plan.notes)
    facts = _stage_facts(job_problem)
    if plan.makespan_s is not None:
        told = spec.cost_facts(device.id for device in job_problem.problem.devices)
        facts["cost"] = cost_of(told or None, plan.makespan_s)
    return replace(plan, notes=notes, facts=facts)


def _plan_without_times(job_problem: JobProblem, mode: str) -> Plan:
    """Plan by memory alone; mode ``auto`` takes stage after stage, which needs the least."""
    plan = _first_that_fits(job_problem, mode)
    unknown = ", ".join(stage.name for stage in job_problem.stages if stage.item_s is None)
    note = (
        f"how long {unknown} takes is not known (give estimate.item_s, or --measured RUN of an earlier "
        "run): all stages are taken to be alike"
    )
    why = f"{plan.candidates[0].label}: it fits; without times nothing can be compared"
    return replace(
        plan, makespan_s=None, bound_s=None, why=why, candidates=(), slices=(), notes=(*plan.notes, note)
    )


def _first_that_fits(job_problem: JobProblem, mode: str) -> Plan:
    for name in ("swap", "model_parallel") if mode == "auto" else ():
        with contextlib.suppress(ConfigError):
            return make_plan(job_problem.problem, name, effort=0, is_exact=False)
    return make_plan(job_problem.problem, mode, effort=0, is_exact=False)


def _stage_facts(job_problem: JobProblem) -> dict[str, Any]:
    """List what each stage needs and from where that is known, for the page and the JSON."""
    stages, names = [], [stage.name for stage in job_problem.stages]
    for stage, needs in zip(job_problem.stages, job_problem.problem.graph.needs, strict=True):
        components = stage.size.components if stage.size is not None else ()
        stages.append(
            {
                "name": stage.name,
                "needs": [names[need] for need in needs],
                "weight_bytes": stage.weight_bytes,
                "components": [
                    {"name": c.name, "class": c.class_name, "bytes": c.bytes, "dtype": c.dtype,
                     "from": c.source, "n_blocks": c.count.n_blocks}
                    for c in components
                ],
                "activation_bytes": stage.activation_bytes,
                "activation_from": stage.activation_from,
                "item_s": stage.item_s,
                "item_from": stage.item_from,
                "load_s": stage.load_s,
                "load_from": stage.load_from,
            }
        )  # fmt: skip
    return {
        "n_items": job_problem.problem.n_items,
        "devices": {
            d.id: {"speed": d.speed, "usable_bytes": d.free_bytes} for d in job_problem.problem.devices
        },
        "host_bytes": job_problem.problem.host_bytes,
        "stages": stages,
    }


def pool_devices(pool: "DevicePool", known_bytes: Mapping[str, int] | None = None) -> list[FleetDevice]:
    """List the devices of a pool for the planner: their free memory now and their speed.

    known_bytes  free memory of devices that only their own machine can tell of
    """
    known_bytes = known_bytes or {}
    devices = list(pool)
    n_cpu = sum(device.family == "cpu" for device in devices)
    best = max((pool.score(device.id) for device in devices), default=1.0) or 1.0
    found = []
    for device in devices:
        if device.id in known_bytes:
            free = known_bytes[device.id]
        elif device.family == "cpu":
            free = free_host_bytes()
            free = None if free is None else free // n_cpu
        else:
            reading = pool.load(device.id).reading
            total, used = reading.memory_total_bytes or device.memory_bytes, reading.memory_used_bytes
            free = total if total is None or used is None else total - used
        hardware = find_hardware(device.name) if device.family != "cpu" else None
        score = max(pool.score(device.id), 1e-6 * best)
        found.append(FleetDevice(device.id, device.name, free, hardware, 1.0 if hardware else score / best))
    return found if all(d.hardware for d in found) else [replace(d, hardware=None) for d in found]


def free_host_bytes() -> int | None:
    """Return the bytes of host memory that are free now."""
    import psutil

    return int(psutil.virtual_memory().available)


def best_of_each_mode(plan: Plan) -> list[CandidateResult]:
    """Return the best candidate of each mode, quickest first, modes that are not possible last."""
    best: dict[str, CandidateResult] = {}
    for one in plan.candidates:
        best.setdefault(one.mode, one)
    return sorted(
        (best[mode] for mode in MODES if mode in best),
        key=lambda c: (c.makespan_s is None, c.makespan_s or 0),
    )
