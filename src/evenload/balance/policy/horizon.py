"""Estimates of when devices end their work, by which ``Measured`` decides."""

from collections.abc import Iterable
from math import inf

from evenload.balance.policy.base import Ask
from evenload.balance.policy.device_state import OVERDUE, DeviceState
from evenload.balance.policy.estimate import Cost

__all__ = ["common_end", "ends_first", "free_in", "helps", "overdue_at", "overdue_devices"]


def common_end(ask: Ask, devices: Iterable[DeviceState], work: float) -> float:
    """Seconds from now at which ``devices`` would all end if they shared ``work`` freely (water-filling).

    Each starts after the chunks that it runs and a launch. Overdue devices get nothing. A device without a
    result counts by its prior, in proportion to those that have one, and launches no sooner than the one that
    asks: if it could take work for nothing, there would be none left that is worth a launch here.
    """
    speeds = ask.speeds()
    starts: list[tuple[float, float]] = []
    for device in devices:
        cost = device.estimate.cost
        rate = speeds[device.name]
        if not rate:
            continue
        cost = cost or Cost(ask.device.launch_s, 1.0 / rate)
        start = cost.launch_s
        if device is not ask.device:
            if device.is_overdue(ask.now):
                continue
            start += free_in(device, ask.now, cost)
        starts.append((start, rate))
    speed = filled = 0.0
    end_s = inf
    for start, rate in sorted(starts):
        if start >= end_s:
            break
        speed += rate
        filled += start * rate
        if speed > 0:
            end_s = (work + filled) / speed
    return end_s


def overdue_devices(ask: Ask) -> set[str]:
    """Devices that run a chunk, or a copy of one, that is overdue: they may be lost to an item that hangs."""
    overdue: set[str] = set()
    for device in ask.devices:
        cost = device.estimate.cost
        for chunk in device.chunks.values():
            if cost is None or ask.now - chunk.began_s > OVERDUE * cost.seconds(chunk.work):
                # Shorter copies are left out: at most one of them holds the item that hangs.
                family = chunk.family or (chunk,)
                overdue.update(other.device for other in family if len(other) >= len(chunk))
    return overdue


def ends_first(ask: Ask, item: float) -> bool:
    """Whether no device would end an item of this size sooner, if each began it as soon as it is free."""

    def end_s(device: DeviceState) -> float:
        cost = device.estimate.cost
        return inf if cost is None else free_in(device, ask.now, cost) + cost.seconds(item)

    mine = end_s(ask.device)
    return all(
        mine <= end_s(device)
        for device in ask.devices
        if device is not ask.device
        and device.refused_version != ask.version
        and not device.is_overdue(ask.now)
    )


def free_in(device: DeviceState, now: float, cost: Cost) -> float:
    """Seconds until the device has ended the chunks that it runs, by ``cost``."""
    return sum(max(0.0, cost.seconds(chunk.work) - (now - chunk.began_s)) for chunk in device.chunks.values())


def helps(device: DeviceState, ask: Ask) -> bool:
    """Whether ``device`` can be counted on: neither overdue, nor idle because it refused this same work."""
    if device.chunks:
        return not device.is_overdue(ask.now)
    return device.is_up and device.refused_version != ask.version


def overdue_at(device: DeviceState) -> float:
    """When the first of the chunks that ``device`` runs will be overdue."""
    cost = device.estimate.cost
    if cost is None:
        return inf
    return min(chunk.began_s + OVERDUE * cost.seconds(chunk.work) for chunk in device.chunks.values())
