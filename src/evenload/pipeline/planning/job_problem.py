"""From a job file to what the planner is asked: sizes from configs, times as known, memory from devices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.memory_sizes import gib_text
from evenload.pipeline.model.model_size import ModelSize, find_model, measure_model
from evenload.pipeline.model.stored_weights import weight_bytes
from evenload.pipeline.planning.estimates.hardware import hardware_named
from evenload.pipeline.planning.estimates.run_history import StageHistory
from evenload.pipeline.planning.estimates.work_estimate import ItemWork, estimate_work
from evenload.pipeline.planning.modelled_fleet import FleetDevice
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

__all__ = ["JobProblem", "StageFacts", "build_job_problem", "stage_weight_bytes"]

CONTEXT_BYTES = int(0.6 * 2**30)  # of a CUDA context with its libraries, before any weight
DISK_BYTES_S = 2e9  # assumed, for a model that was never loaded here
EFFICIENCY = 0.55  # of the data sheet's rate: 548 of 989 TFLOP/s on an H200 (vllm-omni #3684)
BUS_SHARE = 0.57  # of the link's rate: 36 of 63 GB/s when blocks are streamed (sglang #31538)
_HALVES = {"image_edit_denoise": "encode", "image_edit_decode": "decode"}  # of the autoencoder
UNKNOWN_S = 1.0  # stands for times of which nothing is known; then no makespan is told


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What is known of a stage, and from where: measured | estimate (given) | computed | unknown."""

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
    """``has_times``: is a makespan worth telling? ``notes``: what was assumed."""

    problem: Problem
    stages: tuple[StageFacts, ...]
    notes: tuple[str, ...] = ()
    has_times: bool = True
    folders: Mapping[str, Path] = field(default_factory=dict)


def build_job_problem(
    spec: "JobSpec",
    n_items: int,
    folder: Path,
    devices: Sequence[FleetDevice],
    *,
    history: Mapping[str, StageHistory] | None = None,
    host_bytes: int | None = None,
    trace: bool = False,
) -> JobProblem:
    """The planner's question for this job. Raises FormatError or ConfigError on damaged models.

    trace  run the classes of known architectures on fake tensors, for exact activations; imports torch
    """
    reference = max((d.hardware.tflops * d.speed for d in devices if d.hardware), default=None)
    notes: list[str] = []
    seen = history or {}
    facts = [_facts(stage, folder, reference, seen.get(stage.name), trace, notes) for stage in spec.stages]
    has_times = all(fact.item_s is not None for fact, _ in facts)
    n_tasks = _tasks(spec)
    stages = tuple(
        _plan_stage(stage, fact, work, n)
        for stage, (fact, work), n in zip(spec.stages, facts, n_tasks, strict=True)
    )
    fastest = max(device.speed * _rate(device) for device in devices)
    planned = tuple(
        PlanDevice(
            device.id,
            device.speed * _rate(device) / fastest,
            _usable(device, spec),
            BUS_SHARE * (device.hardware.bus_bytes_s if device.hardware else 31.5e9),
        )
        for device in devices
    )
    if any(stage.when is not None for stage in spec.stages):
        notes.append("conditions (when) are counted as if every item passed")
    on_gpu = any(not device.id.startswith("cpu") for device in devices)
    problem = Problem(
        stages,
        planned,
        n_items,
        host_bytes=spec.devices.host if spec.devices.host is not None else host_bytes,
        context_bytes=CONTEXT_BYTES if on_gpu else 0,
        in_flight=None if spec.schedule.in_flight == "auto" else spec.schedule.in_flight,
    )
    return JobProblem(problem, tuple(fact for fact, _ in facts), tuple(dict.fromkeys(notes)), has_times)


def _rate(device: FleetDevice) -> float:
    return device.hardware.tflops if device.hardware else 1.0


def _usable(device: FleetDevice, spec: "JobSpec") -> int | None:
    limit = spec.devices.limits.get(device.id)
    if device.free_bytes is None:
        return limit
    usable = max(0, device.free_bytes - spec.devices.reserve)
    return usable if limit is None else min(usable, limit)


def _tasks(spec: "JobSpec") -> list[int]:
    """How often an item goes through each stage."""
    counts, now = [], 1
    for stage in spec.stages:
        now *= stage.samples
        counts.append(now)
        now = min(now, stage.best.n) if stage.best is not None else now
    return counts


def _facts(
    stage: "StageSpec",
    folder: Path,
    reference: float | None,
    seen: StageHistory | None,
    trace: bool,
    notes: list[str],
) -> tuple[StageFacts, ItemWork | None]:
    size, work, found = _model(stage, folder, notes)
    traced = _traced(stage, size, found) if trace and size is not None and found is not None else None
    stored = size.bytes if size is not None else weight_bytes(stage.params, folder)
    given = stage.estimate
    item_s, item_from = None, "unknown"
    if seen is not None and seen.item_s is not None:
        item_s, item_from = seen.item_s, "measured"
    elif given.item_s is not None:
        item_s, item_from = given.item_s * _scale(given.device, reference), "given"
    elif work is not None and reference is not None:
        item_s, item_from = work.flop / (EFFICIENCY * reference * 1e12), "computed"
        notes.append(
            f"{stage.name}: {item_s:.3g} s an item is computed: {work.flop / 1e12:.3g} TFLOP at "
            f"{EFFICIENCY:.0%} of {reference:.0f} TFLOP/s"
        )
    load_s, load_from = (stored or 0) / DISK_BYTES_S, "computed"
    if seen is not None and seen.load_s is not None:
        load_s, load_from = seen.load_s, "measured"
    elif given.load_s is not None:
        load_s, load_from = given.load_s, "given"
    elif stored:
        notes.append(f"{stage.name}: {load_s:.1f} s to load assumes {DISK_BYTES_S / 1e9:.0f} GB/s from disk")
    activation, activation_from = (work.activation_bytes, "computed") if work else (0, "unknown")
    if seen is not None and seen.activation_bytes is not None:
        activation, activation_from = seen.activation_bytes, "measured"
    elif given.activation is not None:
        activation, activation_from = given.activation, "given"
    elif traced is not None:
        activation, activation_from = traced, "traced"
    elif work is not None:
        notes.append(
            f"{stage.name}: {gib_text(activation)} of activations is an estimate (estimate.activation wins)"
        )
    fact = StageFacts(
        stage.name, size, item_s, item_from, load_s, load_from, activation, activation_from, stored
    )
    return fact, work


def _scale(measured_on: str | None, reference: float | None) -> float:
    """A time measured on one accelerator, on the fleet's fastest."""
    return 1.0 if measured_on is None or reference is None else hardware_named(measured_on).tflops / reference


def stage_weight_bytes(stage: "StageSpec", folder: Path) -> int | None:
    """Bytes of the weights that ``stage`` holds; None if nobody knows. Raises as ``measure_model`` does."""
    size, _, _ = _model(stage, folder, [])
    return size.bytes if size is not None else weight_bytes(stage.params, folder)


def _model(
    stage: "StageSpec", folder: Path, notes: list[str]
) -> tuple[ModelSize | None, ItemWork | None, Path | None]:
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
        there = json.loads((found / "model_index.json").read_text())
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
    """What the stage's class and call are given, and what the model's folder asks for."""
    asked = found / "evenload.json"
    settings = json.loads(asked.read_text(encoding="utf-8")) if asked.is_file() else {}
    return {"decodes": stage.kind != "image_edit_denoise", **settings, **stage.params, **stage.call}


def _traced(stage: "StageSpec", size: ModelSize, found: Path) -> int | None:
    """The most that any component of the stage takes at once; None if one of them cannot be traced."""
    from evenload.pipeline.planning.estimates.trace_activation import TRACED, trace_activation_bytes

    if any(component.class_name not in TRACED for component in size.components):
        return None
    vae, call, peaks = _config(found, "vae"), _arguments(stage, found), []
    for component in size.components:
        config = _config(found, component.name)
        peak = trace_activation_bytes(component.class_name, config, call, vae, component.dtype)
        if stage.kind in _HALVES and component.class_name.startswith("Autoencoder"):
            peak = {_HALVES[stage.kind]: peak[_HALVES[stage.kind]]}
        peaks += peak.values()
    return max(peaks)


def _config(found: Path, component: str) -> dict[str, Any]:
    folder = found if component == "model" else found / component
    return json.loads((folder / "config.json").read_text())


def _plan_stage(stage: "StageSpec", fact: StageFacts, work: ItemWork | None, n_tasks: int) -> PlanStage:
    weights = fact.size.weights if fact.size is not None else None
    if weights is None and fact.weight_bytes is not None:
        weights = Weights(fact.weight_bytes)
    planned = PlanStage(
        stage.name,
        fact.item_s if fact.item_s is not None else UNKNOWN_S,
        fact.load_s,
        weights,
        fact.activation_bytes * stage.batch,
        n_passes=work.n_passes if work is not None else 1,
        n_tasks=n_tasks,
        fits=stage.fit,
    )
    return planned if work is None else replace(planned, waiting_bytes=work.waiting_bytes)
