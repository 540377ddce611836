"""Which of a run's devices each stage may run on, where its ``devices`` say so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenload.devices.device import Device, family_of
from evenload.devices.selection import choose
from evenload.errors import EvenloadError, UnknownName
from evenload.pipeline.job.section import one_line

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec

__all__ = ["barred_stages"]

_MOST_NAMED = 12


def barred_stages(spec: "JobSpec", devices: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return for each device the stages that may not run on it.

    devices  ids of all that take part in the run, the best first: a number takes from its start
    Raises SpecError, with the line, for a stage that names a device which takes no part.
    """
    pool = [_device(one) for one in devices]
    barred: dict[str, set[str]] = {one: set() for one in devices}
    faults = []
    for number, stage in enumerate(spec.stages):
        if stage.devices is None or stage.devices == "all":
            continue
        try:
            wanted = {device.id for device in choose(pool, stage.devices, pool)}
            absent = sorted(wanted - set(devices))
            if absent:
                raise UnknownName("device", absent[0], devices)
        except EvenloadError as error:
            faults.append((("stages", number, "devices"), _sentence(stage.devices, error, devices)))
            continue
        for one in set(devices) - wanted:
            barred[one].add(stage.name)
    if faults:
        raise spec.origins.error(faults)
    return {one: frozenset(stages) for one, stages in barred.items()}


def _device(device_id: str) -> Device:
    """Return a device of which only the name counts."""
    family = family_of(device_id)
    is_cpu = family == "cpu"
    found = Device(device_id, "cpu" if is_cpu else "discrete", family, device_id)
    return replace(found, threads=1) if is_cpu else found


def _sentence(given: str | int, error: EvenloadError, devices: Sequence[str]) -> str:
    more = ", ..." if len(devices) > _MOST_NAMED else ""
    there = ", ".join(devices[:_MOST_NAMED])
    if isinstance(error, UnknownName) or "on this machine" in error.message:
        said = f"{given!r} is not among the devices of this run ({there}{more})"
        return f"{said}; give others here, or more in devices.use or --devices"
    return f"{one_line(error)} (devices of this run: {there}{more})"
