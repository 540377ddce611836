"""Plan a job: ask the planner, and add to its plan what is known of each stage and what was assumed.

    plan = plan_job(spec, build_job_problem(spec, n_items, folder, devices))

``devices`` are a modelled fleet, or those of this machine: ``pool_devices(pool)``.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload._memory_sizes import gib_text
from evenload._plain_text import number_text, seconds_text
from evenload.devices.device import family_of
from evenload.devices.rates.hardware import find_hardware, hardware_named
from evenload.errors import ConfigError
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.stage_devices import barred_stages
from evenload.pipeline.model.model_size import ModelSize, find_model, measure_model, read_config
from evenload.pipeline.model.safetensors_header import weight_bytes
from evenload.pipeline.plan import CandidateResult, Plan
from evenload.pipeline.planning.estimates.run_history import StageHistory
from evenload.pipeline.planning.estimates.work_estimate import ItemWork, estimate_work
from evenload.pipeline.planning.modelled_fleet import FleetDevice
from evenload.pipeline.planning.planner import MODES, Watch, make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights
from evenload.report.costs import cost_of

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.pipeline.job.spec import JobSpec, StageSpec

CONTEXT_BYTES = int(0.6 * 2**30)  # of a CUDA context with its libraries, before any weight
DISK_BYTES_S = 2e9  # assumed, for a model that was never loaded here
EFFICIENCY = 0.55  # of the data sheet's rate: 548 of 989 TFLOP/s on an H200 (vllm-omni #3684)
BUS_SHARE = 0.57  # of the link's rate: 36 of 63 GB/s when blocks are streamed (sglang #31538)
_VAE_HALVES = {"image_edit_denoise": "encode", "image_edit_decode": "decode"}  # of the autoencoder
UNKNOWN_S = 1.0  # in place of an unknown time; then the plan has no makespan


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The known facts of a stage, and their source: measured | given | traced | computed | unknown."""

    name: str
    size: ModelSize | None
    item_s: float | None
    item_from: str
    load_s: float
    load_from: str
    activation_bytes: int
    activation_from: str
    weight_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A problem for the planner, with where its figures come from.

    notes      what was assumed, one sentence each
    has_times  the seconds of every stage are known, so that a makespan means something
    """

    problem: Problem
    stages: tuple[StageFacts, ...]
    notes: tuple[str, ...] = ()
    has_times: bool = True


def build_job_problem(
    spec: "JobSpec",
    n_items: int,
    folder: Path,
    devices: Sequence[FleetDevice],
    *,
    history: Mapping[str, StageHistory] | None = None,
    host_bytes: int | None = None,
    trace: bool = False,
    done: Sequence[int] = (),
    policy: str | None = None,
) -> JobProblem:
    """Put together what the planner needs to know of a job.

    history     what is known of stages by name, from a probe or an earlier run
    host_bytes  free memory of the host, for blocks that are streamed
    trace       run known architectures on fake tensors, for exact activations; imports torch
    done        tasks of each stage that are done already; () for none
    policy      wins over that of the job
    Raises FormatError or ConfigError on damaged models, SpecError if a stage's ``devices`` are not there.
    """
    tflops = max((d.hardware.tflops * d.speed for d in devices if d.hardware), default=None)
    known = history or {}
    sources = [_StageSource(one, folder, known.get(one.name), tflops, trace) for one in spec.stages]
    facts = tuple(source.facts() for source in sources)
    stages = tuple(map(_plan_stage, sources, facts, tasks_an_item(spec)))
    notes = [note for source in sources for note in source.notes]
    notes += [*_condition_notes(spec), *_bfloat16_notes(facts, devices), *_weight_notes(spec, facts, devices)]
    on_gpu = any(family_of(device.id) != "cpu" for device in devices)
    problem = Problem(
        stages,
        _plan_devices(spec, devices),
        n_items,
        host_bytes=spec.devices.host if spec.devices.host is not None else host_bytes,
        context_bytes=CONTEXT_BYTES if on_gpu else 0,
        needs=spec.graph.needs,
        in_flight=None if spec.schedule.in_flight == "auto" else spec.schedule.in_flight,
        done=tuple(done),
        policy=policy or spec.schedule.policy,
    )
    has_times = all(fact.item_s is not None or not problem.n_left(at) for at, fact in enumerate(facts))
    return JobProblem(problem, facts, tuple(dict.fromkeys(notes)), has_times)


def _condition_notes(spec: "JobSpec") -> list[str]:
    is_any = any(stage.when is not None for stage in spec.stages)
    notes = ["conditions (when) are counted as if every item passed"] if is_any else []
    return notes + [
        f"{stage.name}: each item is taken to become one of {stage.expand}; estimate.parts says how many"
        for stage in spec.stages
        if stage.expand is not None and stage.estimate.parts is None
    ]


def _bfloat16_notes(facts: Sequence[StageFacts], devices: Sequence[FleetDevice]) -> list[str]:
    """Say which stages would compute in bfloat16 on accelerators that do not have it."""
    without = [one for one in devices if one.hardware is not None and not one.hardware.has_bfloat16]
    names = ", ".join(dict.fromkeys(one.name for one in without))
    return [
        f"{fact.name}: {names} has no bfloat16, which its weights are in; there it is emulated and slow "
        "(model: {dtype: float16} is other numbers, float32 twice the bytes)"
        for fact in facts
        if without and fact.size is not None and any(c.dtype == "bfloat16" for c in fact.size.components)
    ]


def _weight_notes(spec: "JobSpec", facts: Sequence[StageFacts], devices: Sequence[FleetDevice]) -> list[str]:
    """Say which stages may hold a model that nobody has counted, on devices other than CPUs."""
    unknown = [
        stage.name
        for stage, fact in zip(spec.stages, facts, strict=True)
        if stage.kind in (None, "torch_module") and fact.weight_bytes is None and not fact.activation_bytes
    ]
    if not unknown or all(family_of(device.id) == "cpu" for device in devices):
        return []
    text = "is not known: the plan takes it to fit everywhere; give model: {path: ...} or estimate.activation"
    return [f"what {', '.join(unknown)} holds on a device {text}"]


def _plan_devices(spec: "JobSpec", devices: Sequence[FleetDevice]) -> tuple[PlanDevice, ...]:
    """Return the devices with speeds relative to the fastest and the memory that the job may use."""
    rates = {
        device.id: device.speed * (device.hardware.tflops if device.hardware else 1.0) for device in devices
    }
    fastest = max(rates.values())
    barred = barred_stages(spec, sorted(rates, key=lambda one: -rates[one]))
    return tuple(
        PlanDevice(
            device.id,
            rates[device.id] / fastest,
            _usable_bytes(device, spec),
            BUS_SHARE * (device.hardware.bus_bytes_s if device.hardware else 31.5e9),
            barred=barred[device.id],
        )
        for device in devices
    )


def _usable_bytes(device: FleetDevice, spec: "JobSpec") -> int | None:
    limit = spec.devices.limits.get(device.id)
    if device.free_bytes is None:
        return limit
    usable = max(0, device.free_bytes - spec.devices.reserve)
    return usable if limit is None else min(usable, limit)


def tasks_an_item(spec: "JobSpec") -> list[int]:
    """Return how often an item goes through each stage."""
    counts, n_now = [], 1
    for stage, scope in zip(spec.stages, spec.graph.scopes, strict=True):
        n_now *= stage.samples
        counts.append(n_now * math.prod(spec.stages[made].estimate.parts or 1 for made in scope))
        n_now = min(n_now, stage.best.n) if stage.best is not None else n_now
    return counts


class _StageSource:
    """What there is to know one stage from: its model, the job's estimates, an earlier run.

    tflops  of the fleet's fastest device; None if not known
    notes   what had to be assumed, one sentence each
    """

    def __init__(
        self,
        stage: "StageSpec",
        folder: Path,
        history: StageHistory | None,
        tflops: float | None,
        trace: bool,
    ):
        self.stage, self.history, self.tflops = stage, history or StageHistory(), tflops
        self.notes: list[str] = []
        self.size, self.work, model = _find_model(stage, folder, self.notes)
        self.weight_bytes = self.size.bytes if self.size is not None else weight_bytes(stage.params, folder)
        self.traced_bytes: int | None = None
        if trace and self.size is not None and model is not None:
            self.traced_bytes = _trace(stage, self.size, model)

    def facts(self) -> StageFacts:
        item_s, item_from = self._item_s()
        load_s, load_from = self._load_s()
        activation_bytes, activation_from = self._activation_bytes()
        return StageFacts(
            self.stage.name, self.size, item_s, item_from, load_s, load_from, activation_bytes,
            activation_from, self.weight_bytes,
        )  # fmt: skip

    def _note(self, text: str) -> None:
        self.notes.append(f"{self.stage.name}: {text}")

    def _item_s(self) -> tuple[float | None, str]:
        given = self.stage.estimate
        if self.history.item_s is not None:
            return self.history.item_s, "measured"
        if given.item_s is not None:
            return given.item_s * _scale(given.device, self.tflops), "given"
        flop = given.flop or (self.work.flop if self.work is not None else None)
        if flop is None or self.tflops is None:
            return None, "unknown"
        item_s = flop / (EFFICIENCY * self.tflops * 1e12)
        self._note(
            f"{seconds_text(item_s)} an item is computed: {number_text(flop / 1e12)} TFLOP at "
            f"{EFFICIENCY:.0%} of {self.tflops:.0f} TFLOP/s"
        )
        return item_s, "computed"

    def _load_s(self) -> tuple[float, str]:
        if self.history.load_s is not None:
            return self.history.load_s, "measured"
        if self.stage.estimate.load_s is not None:
            return self.stage.estimate.load_s, "given"
        load_s = (self.weight_bytes or 0) / DISK_BYTES_S
        if self.weight_bytes:
            self._note(f"{load_s:.1f} s to load assumes {DISK_BYTES_S / 1e9:.0f} GB/s from disk")
        return load_s, "computed"

    def _activation_bytes(self) -> tuple[int, str]:
        if self.stage.estimate.activation is not None:
            return self.stage.estimate.activation, "given"
        if self.traced_bytes is not None:
            return self.traced_bytes, "traced"
        if self.work is None:
            return 0, "unknown"
        text = gib_text(self.work.activation_bytes)
        self._note(f"{text} of activations is an estimate (estimate.activation wins)")
        return self.work.activation_bytes, "computed"


def _scale(measured_on: str | None, tflops: float | None) -> float:
    """Return what turns a time measured on one accelerator into that on the fleet's fastest."""
    return 1.0 if measured_on is None or tflops is None else hardware_named(measured_on).tflops / tflops


def stage_weight_bytes(stage: "StageSpec", folder: Path) -> int | None:
    """Return the bytes of the weights that ``stage`` holds, or None. Raises as ``measure_model``."""
    size, _, _ = _find_model(stage, folder, [])
    return size.bytes if size is not None else weight_bytes(stage.params, folder)


def _find_model(
    stage: "StageSpec", folder: Path, notes: list[str]
) -> tuple[ModelSize | None, ItemWork | None, Path | None]:
    """Return the size of the stage's model, an item's work and the model's folder; None where not known."""
    if stage.model is None:
        return None, None, None
    found = find_model(stage.model.path, folder)
    if found is None and stage.model.config is not None:
        found = find_model(stage.model.config, folder)
        notes.append(f"{stage.name}: {stage.model.path} is not here, its config is")
    if found is None:
        notes.append(f"{stage.name}: {stage.model.path} is not here, so its size is not known")
        return None, None, None
    only = stage.model.components or (
        BUILTIN_STAGES[stage.kind].components if stage.kind in BUILTIN_STAGES else ()
    )
    if (found / "model_index.json").is_file() and stage.model.components is None:
        there = read_config(found / "model_index.json")
        only = tuple(name for name in only if name in there)
    size = measure_model(found, stage.model.dtype, only)
    notes += [f"{stage.name}: {note}" for note in size.notes]
    return size, _work(stage, size, found), found


def _work(stage: "StageSpec", size: ModelSize, found: Path) -> ItemWork | None:
    largest = size.largest
    config = _config(found, largest.name)
    names = [component.name for component in size.components]
    vae = _config(found, "vae") if "vae" in names or (found / "vae").is_dir() else None
    return estimate_work(largest.class_name, config, _arguments(stage, found), vae)


def _arguments(stage: "StageSpec", found: Path) -> dict[str, Any]:
    """Merge the settings of the model's folder with the arguments of the stage's class and of its calls."""
    asked = found / "evenload.json"
    settings = read_config(asked) if asked.is_file() else {}
    return {"decodes": stage.kind != "image_edit_denoise", **settings, **stage.params, **stage.call}


def _trace(stage: "StageSpec", size: ModelSize, found: Path) -> int | None:
    """Return the most bytes that a component takes at once; None if one of them cannot be traced."""
    from evenload.pipeline.planning.estimates.work_estimate import TRACED, trace_activation_bytes

    if any(component.class_name not in TRACED for component in size.components):
        return None
    vae, call, peaks = _config(found, "vae"), _arguments(stage, found), []
    for component in size.components:
        config = _config(found, component.name)
        peak = trace_activation_bytes(component.class_name, config, call, vae, component.dtype)
        if stage.kind in _VAE_HALVES and component.class_name.startswith("Autoencoder"):
            peak = {_VAE_HALVES[stage.kind]: peak[_VAE_HALVES[stage.kind]]}
        peaks += peak.values()
    return max(peaks)


def _config(found: Path, component: str) -> dict[str, Any]:
    folder = found if component == "model" else found / component
    return read_config(folder / "config.json")


def _plan_stage(source: _StageSource, fact: StageFacts, n_tasks: int) -> PlanStage:
    weights = fact.size.weights if fact.size is not None else None
    if weights is None and fact.weight_bytes is not None:
        weights = Weights(fact.weight_bytes)
    work = source.work
    return PlanStage(
        fact.name,
        fact.item_s if fact.item_s is not None else UNKNOWN_S,
        fact.load_s,
        weights,
        fact.activation_bytes * source.stage.n_together,
        waiting_bytes=work.waiting_bytes if work is not None else 0,
        n_passes=work.n_passes if work is not None else 1,
        n_tasks=n_tasks,
        fits=source.stage.fit,
        in_flight=source.stage.n_in_flight,
    )


class PlannedJob(NamedTuple):
    """A plan and the problem that it solves, which is solved again while the job runs."""

    plan: Plan
    job_problem: JobProblem


def plan_job(spec: "JobSpec", job_problem: JobProblem, *, watch: Watch | None = None) -> Plan:
    """Plan a job by its mode; mode ``auto`` compares all modes.

    If the seconds of a stage are unknown, the plan says what fits and gives no makespan. ``watch`` as in
    ``make_plan``.
    Raises ConfigError, with the shortfall in GiB, if the job does not fit on the devices.
    """
    if job_problem.has_times:
        plan = make_plan(job_problem.problem, spec.schedule.mode, watch=watch)
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
            return make_plan(job_problem.problem, name, is_exact=False)
    return make_plan(job_problem.problem, mode, is_exact=False)


def _stage_facts(job_problem: JobProblem) -> dict[str, Any]:
    """List what each stage needs and from where that is known, for the page and the JSON."""
    stages, names = [], [stage.name for stage in job_problem.stages]
    for stage, needs in zip(job_problem.stages, job_problem.problem.graph.needs, strict=True):
        components = stage.size.components if stage.size is not None else ()
        known = {one.name: getattr(stage, one.name) for one in fields(stage) if one.name != "size"}
        listed = [
            {"name": c.name, "class": c.class_name, "bytes": c.bytes, "dtype": c.dtype,
             "from": c.source, "n_blocks": c.count.n_blocks}
            for c in components
        ]  # fmt: skip
        stages.append({**known, "needs": [names[need] for need in needs], "components": listed})
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
