"""Explain that a model does not fit: what is needed, what is free, what can be done."""

from dataclasses import replace

from evenload._memory_sizes import gib_text
from evenload.errors import ConfigError
from evenload.pipeline.planning.layouts import best_layouts
from evenload.pipeline.planning.placement_options import STREAM_BUFFERS, group_option, needed_bytes
from evenload.pipeline.problem import LOSSY, PlanStage, Problem


def shortfall_error(problem: Problem) -> ConfigError | None:
    """Return an error that names each stage which no device or group of devices can hold; None if all fit."""
    stuck = [stage for stage in problem.stages if not best_layouts(stage, problem)]
    if not stuck:
        return None
    said = [_sentence(stage, problem) for stage in stuck]
    hint = "; ".join(f"{stage.name}: {', or '.join(remedies_for(stage, problem))}" for stage in stuck)
    return ConfigError("; ".join(said), hint=hint)


def _sentence(stage: PlanStage, problem: Problem) -> str:
    needed = needed_bytes(stage, problem)
    allowed = [device for device in problem.devices if stage.name not in device.barred]
    if not allowed:
        return f"{stage.name}: none of the devices that it may run on is there"
    largest = max(allowed, key=lambda device: device.free_bytes or 0)
    if needed is None or largest.free_bytes is None:
        return f"{stage.name} has no way to be held: fit is {', '.join(stage.fits)}"
    return (
        f"{stage.name} needs {gib_text(needed)}, the largest device has {gib_text(largest.free_bytes)} free"
        f" ({largest.id}, less the reserve)"
    )


def remedies_for(stage: PlanStage, problem: Problem) -> list[str]:
    """List what would make the stage fit, with figures, likeliest first."""
    weights = stage.weights
    if weights is None:
        return ["give its model"]
    allowed = [device for device in problem.devices if stage.name not in device.barred]
    free = sorted((device.free_bytes or 0 for device in allowed), reverse=True)
    beside = problem.context_bytes + stage.activation_bytes
    options = []
    if len(allowed) < len(problem.devices):
        options.append("let it run on more devices (its `devices`)")
    if weights.n_blocks > 1:
        n_devices = _group_needed(stage, problem)
        if "layer_split" not in stage.fits and n_devices is not None:
            options.append(f"split its layers over {n_devices} devices (fit: layer_split)")
        least = beside + weights.rest_bytes + STREAM_BUFFERS * weights.block_bytes
        if "resident_stream" not in stage.fits and free and least <= free[0]:
            options.append(
                f"stream its blocks from host memory (fit: resident_stream, from {gib_text(least)})"
            )
        if n_devices is None:
            per_device = beside + weights.bytes / max(1, len(free))
            options.append(f"{gib_text(per_device)} free on each of {len(free)} devices")
    for name, ratio in LOSSY.items():
        needed = int(weights.bytes * ratio) + beside
        if name not in stage.fits and free and needed <= free[0]:
            options.append(f"hold it in {name} ({gib_text(needed)}; fit: {name}, devices.allow_lossy: true)")
    return options or [f"a device with {gib_text(weights.bytes + beside)} free"]


def _group_needed(stage: PlanStage, problem: Problem) -> int | None:
    """Return the fewest devices, largest first, that can share the stage's blocks; None if all cannot."""
    may_split = replace(stage, fits=("layer_split",))
    largest = sorted(problem.devices, key=lambda device: -(device.free_bytes or 0))
    allowed = [device for device in largest if stage.name not in device.barred]
    sizes = range(2, len(allowed) + 1)
    return next((n for n in sizes if group_option(may_split, allowed[:n], problem) is not None), None)
