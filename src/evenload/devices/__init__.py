"""Devices: discovery, scores, load, and the environment that gives a worker its device."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names
from evenload.devices.score import ScoreWeights, score  # at once: the module has the name of the function

if TYPE_CHECKING:
    from evenload.devices.device import Device
    from evenload.devices.environment import (
        CurrentDevice,
        as_current,
        current,
        current_device,
        thread_share,
        worker_environment,
    )
    from evenload.devices.pool import DeviceLoad, DevicePool
    from evenload.devices.probe import ProbeReport, Reading
    from evenload.devices.readings import Readings
    from evenload.devices.selection import split_cpu
    from evenload.devices.telemetry import Telemetry

_HOMES = {
    "CurrentDevice": "environment",
    "Device": "device",
    "DeviceLoad": "pool",
    "DevicePool": "pool",
    "ProbeReport": "probe",
    "Reading": "probe",
    "Readings": "readings",
    "ScoreWeights": "score",
    "Telemetry": "telemetry",
    "as_current": "environment",
    "current": "environment",
    "current_device": "environment",
    "score": "score",
    "split_cpu": "selection",
    "thread_share": "environment",
    "worker_environment": "environment",
}

__all__ = [
    "CurrentDevice",
    "Device",
    "DeviceLoad",
    "DevicePool",
    "ProbeReport",
    "Reading",
    "Readings",
    "ScoreWeights",
    "Telemetry",
    "as_current",
    "current",
    "current_device",
    "score",
    "split_cpu",
    "thread_share",
    "worker_environment",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
