"""List the ways to hold a stage's model in the free memory of devices, and what each costs: pure arithmetic.

whole            all weights on one device
layer_split      its blocks spread over a group; as many items in flight as devices keep all of them busy
resident_stream  as many blocks as fit stay, the rest is streamed from pinned host memory in every pass
fp8, nf4         whole, in fewer bits
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload.pipeline.plan import Fit
from evenload.pipeline.problem import LOSSY, PlanDevice, PlanStage, Problem

ALIKE = 1.02  # speeds, or times for an item, that differ by less count as one
HOP_SHARE = 0.007  # of an item's time, between devices that share layers, if its bytes are not known
STREAM_BUFFERS = 2  # blocks being copied while another one computes


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A way for some devices to hold a stage's model.

    item_s  seconds from the start to the end of an item; where items wait, between two ends
    load_s  seconds until the model is ready
    """

    stage: str
    devices: tuple[str, ...]
    fit: Fit
    item_s: float
    load_s: float

    @property
    def items_per_s(self) -> float:
        return self.fit.n_parallel / self.item_s


def group_option(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> PlacementOption | None:
    """Split the blocks of ``stage`` over several devices; None if it may not be split or does not fit.

    Each device gets blocks by its speed, as far as its memory allows; what is no block lies on the first.
    """
    weights = stage.weights
    if "layer_split" not in stage.fits or weights is None or weights.n_blocks < len(devices):
        return None
    if any(stage.name in device.barred for device in devices):
        return None
    in_flight = problem.in_flight or len(devices)
    beside = problem.context_bytes + stage.activation_bytes + (in_flight - 1) * stage.waiting_bytes
    fixed = [beside + (weights.rest_bytes if not number else 0) for number in range(len(devices))]
    most = [
        weights.n_blocks if device.free_bytes is None else (device.free_bytes - taken) // weights.block_bytes
        for device, taken in zip(devices, fixed, strict=True)
    ]
    blocks = _share_blocks(weights.n_blocks, [device.speed for device in devices], most)
    if blocks is None:
        return None
    share_s = [stage.item_s * n / weights.n_blocks / d.speed for n, d in zip(blocks, devices, strict=True)]
    item_s = max(sum(share_s) + _hops_s(stage, devices, problem), in_flight * max(share_s))
    needed = tuple(taken + n * weights.block_bytes for taken, n in zip(fixed, blocks, strict=True))
    fit = Fit("layer_split", in_flight, tuple(blocks), None, needed)
    return PlacementOption(stage.name, tuple(device.id for device in devices), fit, item_s, stage.load_s)


def device_options(stage: PlanStage, device: PlanDevice, problem: Problem) -> list[PlacementOption]:
    """List all ways in which one device can hold ``stage``, in the order of the stage's ``fits``."""
    options = []
    for name in stage.fits if stage.name not in device.barred else ():
        if name == "layer_split":
            continue
        is_streamed = name == "resident_stream"
        option = _stream(stage, device, problem) if is_streamed else _whole(stage, device, problem, name)
        if option is not None:
            options.append(option)
    return options


def option_named(stage: str, devices: Sequence[str], fit: str, problem: Problem) -> PlacementOption | None:
    """Return the way ``fit`` of these devices to hold the stage; None if one is gone, or it is too large."""
    held = [one for name in devices for one in problem.devices if one.id == name]
    if len(held) != len(devices):
        return None
    what = next(one for one in problem.stages if one.name == stage)
    options = [group_option(what, held, problem)] if len(held) > 1 else device_options(what, held[0], problem)
    return next((one for one in options if one is not None and one.fit.name == fit), None)


def bytes_together(options: Sequence[PlacementOption], device: str, problem: Problem) -> int:
    """Return the bytes that ``options``, all of known size, take when ``device`` holds them at once.

    The framework's context is there once, and only one activation at a time, the largest.
    """
    if not options:
        return 0
    activation = {stage.name: stage.activation_bytes for stage in problem.stages}
    activations = [activation[option.stage] for option in options]
    shared = problem.context_bytes * (len(options) - 1) + sum(activations) - max(activations)
    return sum(option.fit.device2bytes[option.devices.index(device)] for option in options) - shared


def needed_bytes(stage: PlanStage, problem: Problem, fit: str = "whole") -> int | None:
    """Return the bytes that one device needs to hold ``stage`` whole; None if its weights are not known."""
    if stage.weights is None:
        return None
    ratio = LOSSY.get(fit, 1.0)
    return int(stage.weights.bytes * ratio) + stage.activation_bytes + problem.context_bytes


def _whole(stage: PlanStage, device: PlanDevice, problem: Problem, name: str) -> PlacementOption | None:
    needed = needed_bytes(stage, problem, name)
    if needed is not None and device.free_bytes is not None and needed > device.free_bytes:
        return None
    fit = Fit(name, stage.in_flight, device2bytes=(needed,) if needed is not None else ())
    load_s = min(stage.load_s, dict(device.returns).get(stage.name, stage.load_s))
    return PlacementOption(stage.name, (device.id,), fit, _item_s(stage) / device.speed, load_s)


def _stream(stage: PlanStage, device: PlanDevice, problem: Problem) -> PlacementOption | None:
    """Keep as many blocks as fit; the others are copied from host memory in every pass, while it computes."""
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
    pass_s = max(_item_s(stage) / stage.n_passes / device.speed, host_bytes / device.upload_bytes_s)
    kept = (n_resident + STREAM_BUFFERS) * weights.block_bytes + weights.rest_bytes
    needed = kept + stage.activation_bytes + problem.context_bytes
    fit = Fit("resident_stream", stage.in_flight, (), n_resident, (needed,), host_bytes)
    return PlacementOption(stage.name, (device.id,), fit, pass_s * stage.n_passes, stage.load_s)


def _item_s(stage: PlanStage) -> float:
    """Return the seconds between the ends of two items, on a device of speed 1."""
    return stage.item_s / stage.in_flight


def _n_too_small(stage: PlanStage, problem: Problem) -> int:
    """Count the devices that cannot hold the stage whole: each streams from a pinned copy of its own."""
    needed = needed_bytes(stage, problem) or 0
    return sum(
        d.free_bytes is not None and d.free_bytes < needed and stage.name not in d.barred
        for d in problem.devices
    )


def _hops_s(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> float:
    """Return the seconds that one item travels between the devices of a group, and back to the first."""
    if not stage.waiting_bytes:
        return HOP_SHARE * stage.item_s / devices[0].speed * len(devices)
    slowest = min(device.upload_bytes_s for device in devices)
    return stage.n_passes * len(devices) * stage.waiting_bytes / slowest


def _share_blocks(n_blocks: int, speeds: Sequence[float], most: Sequence[int]) -> list[int] | None:
    """Share blocks so that the busiest device is done soonest; None if ``most`` for each is not enough."""
    if min(most) < 1 or sum(most) < n_blocks:
        return None
    blocks = [1] * len(speeds)
    for _ in range(n_blocks - len(speeds)):
        open_ones = [number for number in range(len(speeds)) if blocks[number] < most[number]]
        soonest = min(open_ones, key=lambda number: (blocks[number] + 1) / speeds[number])
        blocks[soonest] += 1
    return blocks


# --- a stage over all devices -------------------------------------------------------------------------

Layout = tuple[PlacementOption, ...]
MOST_LAYOUTS = 3
MANY_DEVICES = 32
MOST_MORE = 8  # devices in a group of many, beyond those that it takes


def best_layouts(stage: PlanStage, problem: Problem, *, groups_only: bool = False) -> list[Layout]:
    """List the layouts worth trying, most items per second first; none if the stage fits nowhere.

    groups_only  leave out layouts without a group of devices
    """
    allowed = [device for device in problem.devices if stage.name not in device.barred]
    devices = sorted(allowed, key=lambda device: (_machine(device), -device.speed))
    found: list[Layout] = []
    if not groups_only:
        singles = tuple(option for device in devices if (option := best_single(stage, device, problem)))
        found.append(singles)
    all_whole = len(found) == 1 and [h.fit.name for h in found[0]] == ["whole"] * len(devices)
    if not all_whole:
        found += [_grouped(stage, devices, size, problem) for size in _group_sizes(stage, devices, problem)]
    kept: list[Layout] = []
    for layout in found:
        is_group = any(len(option.devices) > 1 for option in layout)
        if layout and layout not in kept and (is_group or not groups_only):
            kept.append(layout)
    ranked = sorted(kept, key=_slowness)
    alone = [layout for layout in ranked if all(len(option.devices) == 1 for option in layout)]
    return [*ranked[:MOST_LAYOUTS], *(layout for layout in alone if layout not in ranked[:MOST_LAYOUTS])]


def best_single(stage: PlanStage, device: PlanDevice, problem: Problem) -> PlacementOption | None:
    """Return the quickest lossless way for one device to hold the stage, else the first lossy one."""
    ways = device_options(stage, device, problem)
    lossless = [option for option in ways if option.fit.name not in LOSSY]
    return min(lossless, key=lambda option: option.item_s) if lossless else next(iter(ways), None)


def _group_sizes(stage: PlanStage, devices: Sequence[PlanDevice], problem: Problem) -> list[int]:
    """List the sizes of groups worth trying: of many devices, not much more than it takes."""
    sizes = range(2, len(devices) + 1)
    if stage.weights is None or "layer_split" not in stage.fits:
        return []
    if len(devices) <= MANY_DEVICES:
        return list(sizes)
    largest = sorted(devices, key=lambda device: -(device.free_bytes or 0))
    fits = (n for n in sizes if group_option(stage, largest[:n], problem) is not None)
    least = next(fits, None)
    return [] if least is None else [n for n in sizes if n <= least + MOST_MORE]


def _grouped(stage: PlanStage, devices: Sequence[PlanDevice], size: int, problem: Problem) -> Layout:
    """Form groups of ``size`` devices of like speed, each on one machine; other devices work alone."""
    layout: list[PlacementOption] = []
    at = 0
    while at < len(devices):
        group = [one for one in devices[at : at + size] if _machine(one) == _machine(devices[at])]
        option = group_option(stage, group, problem) if len(group) == size else None
        if option is not None:
            layout.append(option)
            at += size
            continue
        single = best_single(stage, devices[at], problem)
        if single is not None:
            layout.append(single)
        at += 1
    return tuple(layout)


def _machine(device: PlanDevice) -> str:
    """Return the name of the device's machine: one worker has all devices of a group."""
    return device.id.rpartition("/")[0]


def _slowness(layout: Layout) -> tuple[float, int]:
    return -sum(option.items_per_s for option in layout), max(len(option.devices) for option in layout)
