"""List how one stage can be spread over all devices: each device alone, or groups that share its layers."""

from collections.abc import Sequence

from evenload.pipeline.planning.placement_options import PlacementOption, device_options, group_option
from evenload.pipeline.problem import LOSSY, PlanDevice, PlanStage, Problem

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
