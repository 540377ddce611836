"""A job's plan: the question is put together, answered by the planner, and told with all that was assumed.

plan = plan_job(spec, n_items, folder, devices)        devices: a modelled fleet, or ``devices_of(pool)``
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.errors import ConfigError
from evenload.pipeline.plan import CandidateResult, Plan
from evenload.pipeline.planning.estimates.hardware import find_hardware
from evenload.pipeline.planning.estimates.run_history import Measured
from evenload.pipeline.planning.job_problem import JobProblem, problem_of
from evenload.pipeline.planning.modelled_fleet import FleetDevice
from evenload.pipeline.planning.planner import MODES, make_plan

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.pipeline.job.spec import JobSpec

__all__ = ["Planned", "devices_of", "free_host_bytes", "plan_asked", "plan_job"]


class Planned(NamedTuple):
    """A plan with the question that it answers: to be asked again while it runs."""

    plan: Plan
    asked: JobProblem


def plan_job(
    spec: "JobSpec",
    n_items: int,
    folder: Path,
    devices: Sequence[FleetDevice],
    *,
    measured: Mapping[str, Measured] | None = None,
    host_bytes: int | None = None,
    trace: bool = False,
    effort: float = 1.0,
) -> Plan:
    """The plan of the job's mode; where it is auto, every other mode is compared with it.

    measured    what is known of stages by name, from a probe or an earlier run
    host_bytes  free memory of the host, for blocks that are streamed
    trace       activations of known architectures from a run on fake tensors, which imports torch
    Raises ConfigError with figures in GiB where it does not fit, FormatError on a damaged model folder.
    """
    asked = problem_of(spec, n_items, folder, devices, measured=measured, host_bytes=host_bytes, trace=trace)
    return plan_asked(spec, asked, effort=effort)


def plan_asked(spec: "JobSpec", asked: JobProblem, *, effort: float = 1.0) -> Plan:
    """The same for a question that is put together already. Raises as ``plan_job``."""
    if asked.has_times:
        plan = make_plan(asked.problem, spec.schedule.mode, effort=effort)
    else:
        plan = _untimed(asked, spec.schedule.mode)
    notes = (*spec.notes, *asked.notes, *plan.notes)
    if not asked.has_times:
        unknown = ", ".join(stage.name for stage in asked.stages if stage.item_s is None)
        notes = (
            *notes,
            f"how long {unknown} takes is not known (give estimate.item_s, or --measured RUN of an earlier "
            "run): all stages are taken to be alike",
        )
        plan = replace(plan, makespan_s=None, bound_s=None, why=_why_untimed(plan), candidates=(), slices=())
    return replace(plan, notes=notes, facts=_told(asked))


def _untimed(asked: JobProblem, mode: str) -> Plan:
    """Without times, auto is what needs the least memory: stage after stage."""
    for name in ("swap", "model_parallel") if mode == "auto" else ():
        with contextlib.suppress(ConfigError):
            return make_plan(asked.problem, name, effort=0)
    return make_plan(asked.problem, mode, effort=0)


def _why_untimed(plan: Plan) -> str:
    return f"{plan.candidates[0].label}: it fits; without times nothing can be compared"


def _told(asked: JobProblem) -> dict[str, Any]:
    """For the page and the JSON: what each stage needs, and from where that is known."""
    stages = []
    for stage in asked.stages:
        components = stage.size.components if stage.size is not None else ()
        stages.append(
            {
                "name": stage.name,
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
        "n_items": asked.problem.n_items,
        "devices": {d.id: {"speed": d.speed, "usable_bytes": d.free_bytes} for d in asked.problem.devices},
        "stages": stages,
    }


def devices_of(pool: "DevicePool") -> list[FleetDevice]:
    """The devices of a pool as the planner sees them: what is free now, and how fast they are."""
    devices = list(pool)
    n_cpu = sum(device.family == "cpu" for device in devices)
    best = max((pool.score(device.id) for device in devices), default=1.0) or 1.0
    found = []
    for device in devices:
        if device.family == "cpu":
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
    """Host memory that is free now."""
    import psutil

    return int(psutil.virtual_memory().available)


def compared(plan: Plan) -> list[CandidateResult]:
    """The best candidate of each mode, quickest first, those that are not possible last."""
    best: dict[str, CandidateResult] = {}
    for one in plan.candidates:
        best.setdefault(one.mode, one)
    return sorted(
        (best[mode] for mode in MODES if mode in best),
        key=lambda c: (c.makespan_s is None, c.makespan_s or 0),
    )
