"""Ways to hold a model on devices of a given free memory, and what each costs: pure arithmetic.

whole            all weights on one device
layer_split      its blocks spread over a group; as many items in flight as devices keep all of them busy
resident_stream  as many blocks as fit stay, the rest is streamed from pinned host memory in every pass
fp8, nf4         whole, in fewer bits
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload.pipeline.plan import Fit
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

__all__ = ["PlacementOption", "device_options", "group_option", "needed_bytes"]

STREAM_BUFFERS = 2  # blocks on their way while one computes


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A stage held by some devices: ``item_s`` from start to end of an item, ``load_s`` until it is ready."""

    stage: str
    devices: tuple[str, ...]
    fit: Fit
    item_s: float
    load_s: float

    @property
    def items_per_s(self) -> float:
        return self.fit.in_flight / self.item_s


def group_option(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> PlacementOption | None:
    """Hold ``stage`` on these devices, as the first of its fits that their memory allows; or None."""
    if len(devices) > 1:
        return _split(stage, devices, problem) if "layer_split" in stage.fits else None
    return next((held for held in device_options(stage, devices[0], problem)), None)


def device_options(stage: PlanStage, device: PlanDevice, problem: Problem) -> list[PlacementOption]:
    """All ways in which one device can hold ``stage``, in the order of its ladder."""
    ways = []
    for name in stage.fits:
        if name == "layer_split":
            continue
        is_streamed = name == "resident_stream"
        held = _stream(stage, device, problem) if is_streamed else _whole(stage, device, problem, name)
        if held is not None:
            ways.append(held)
    return ways


def needed_bytes(stage: PlanStage, problem: Problem, fit: str = "whole") -> int | None:
    """What one device needs to hold ``stage`` whole; None if its weights are not known."""
    if stage.weights is None:
        return None
    ratio = dict(stage.lossy_ratio).get(fit, 1.0)
    return int(stage.weights.bytes * ratio) + stage.activation_bytes + problem.context_bytes


def _whole(stage: PlanStage, device: PlanDevice, problem: Problem, name: str) -> PlacementOption | None:
    needed = needed_bytes(stage, problem, name)
    if needed is not None and device.free_bytes is not None and needed > device.free_bytes:
        return None
    fit = Fit(name, device2bytes=(needed,) if needed is not None else ())
    load_s = min(stage.load_s, dict(device.returns).get(stage.name, stage.load_s))
    return PlacementOption(stage.name, (device.id,), fit, stage.item_s / device.speed, load_s)


def _stream(stage: PlanStage, device: PlanDevice, problem: Problem) -> PlacementOption | None:
    """Blocks beyond those that fit come over the bus in every pass, beside the compute."""
    weights, free = stage.weights, device.free_bytes
    if weights is None or free is None or not weights.n_blocks:
        return None
    room = free - problem.context_bytes - stage.activation_bytes - weights.rest_bytes
    n_resident = min(weights.n_blocks, room // weights.block_bytes - STREAM_BUFFERS)
    if n_resident < 0:
        return None
    host_bytes = (weights.n_blocks - n_resident) * weights.block_bytes
    if problem.host_bytes is not None and host_bytes * _n_too_small(stage, problem) > problem.host_bytes:
        return None
    pass_s = max(stage.item_s / stage.n_passes / device.speed, host_bytes / device.upload_bytes_s)
    kept = (n_resident + STREAM_BUFFERS) * weights.block_bytes + weights.rest_bytes
    needed = kept + stage.activation_bytes + problem.context_bytes
    fit = Fit("resident_stream", resident_blocks=n_resident, device2bytes=(needed,), host_bytes=host_bytes)
    return PlacementOption(stage.name, (device.id,), fit, pass_s * stage.n_passes, stage.load_s)


def _n_too_small(stage: PlanStage, problem: Problem) -> int:
    """Devices that cannot hold the stage whole: each that streams it has a pinned copy of its own."""
    needed = needed_bytes(stage, problem) or 0
    return sum(d.free_bytes is not None and d.free_bytes < needed for d in problem.devices)


def _split(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> PlacementOption | None:
    """Blocks by speed as far as memory allows; what cannot be spread lies on the first device."""
    weights = stage.weights
    if weights is None or weights.n_blocks < len(devices):
        return None
    in_flight = problem.in_flight or len(devices)
    beside = problem.context_bytes + stage.activation_bytes + (in_flight - 1) * stage.waiting_bytes
    fixed = [beside + (weights.rest_bytes if not number else 0) for number in range(len(devices))]
    most = [
        weights.n_blocks if device.free_bytes is None else (device.free_bytes - taken) // weights.block_bytes
        for device, taken in zip(devices, fixed, strict=True)
    ]
    blocks = _spread(weights, [device.speed for device in devices], most)
    if blocks is None:
        return None
    share_s = [stage.item_s * n / weights.n_blocks / d.speed for n, d in zip(blocks, devices, strict=True)]
    hops_s = _hops_s(stage, devices, problem)
    item_s = max(sum(share_s) + hops_s, in_flight * max(share_s))
    needed = tuple(taken + n * weights.block_bytes for taken, n in zip(fixed, blocks, strict=True))
    fit = Fit("layer_split", in_flight, tuple(blocks), None, needed)
    return PlacementOption(stage.name, tuple(device.id for device in devices), fit, item_s, stage.load_s)


def _hops_s(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> float:
    """Seconds that one item is on its way between the devices of a group, and back to the first."""
    if not stage.waiting_bytes:
        return problem.hop_share * stage.item_s / devices[0].speed * len(devices)
    slowest = min(device.upload_bytes_s for device in devices)
    return stage.n_passes * len(devices) * stage.waiting_bytes / slowest


def _spread(weights: Weights, speeds: Sequence[float], most: Sequence[int]) -> list[int] | None:
    """Blocks for each device so that the busiest is done soonest; None if ``most`` is not enough."""
    if min(most) < 1 or sum(most) < weights.n_blocks:
        return None
    blocks = [1] * len(speeds)
    for _ in range(weights.n_blocks - len(speeds)):
        open_ones = [number for number in range(len(speeds)) if blocks[number] < most[number]]
        soonest = min(open_ones, key=lambda number: (blocks[number] + 1) / speeds[number])
        blocks[soonest] += 1
    return blocks
