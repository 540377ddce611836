"""Explain that a model does not fit: what is needed, what is free, what can be done."""

from evenload.errors import ConfigError
from evenload.pipeline.job.memory_sizes import gib_text
from evenload.pipeline.planning.layouts import best_layouts
from evenload.pipeline.planning.placement_options import STREAM_BUFFERS, needed_bytes
from evenload.pipeline.problem import PlanStage, Problem


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
        n_devices = _group_needed(stage, problem, free)
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
    for name, ratio in stage.lossy_ratio:
        needed = int(weights.bytes * ratio) + beside
        if name not in stage.fits and free and needed <= free[0]:
            options.append(f"hold it in {name} ({gib_text(needed)}; fit: {name}, devices.allow_lossy: true)")
    return options or [f"a device with {gib_text(weights.bytes + beside)} free"]


def _group_needed(stage: PlanStage, problem: Problem, free: list[int]) -> int | None:
    """Return the fewest devices, largest first, whose memory holds all blocks; None if all do not."""
    weights = stage.weights
    assert weights is not None
    for n_devices in range(2, len(free) + 1):
        beside = problem.context_bytes + stage.activation_bytes + (n_devices - 1) * stage.waiting_bytes
        room = [free[0] - beside - weights.rest_bytes, *(size - beside for size in free[1:n_devices])]
        blocks = [int(size // weights.block_bytes) for size in room]
        if min(blocks) >= 1 and sum(blocks) >= weights.n_blocks:
            return n_devices
    return None
