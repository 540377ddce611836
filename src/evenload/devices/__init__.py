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
    from evenload.devices.pool import DeviceLoad, DevicePool, Readings
    from evenload.devices.probe import ProbeReport, Reading
    from evenload.devices.selection import split_cpu
    from evenload.devices.telemetry import Telemetry

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "device": "Device",
        "environment": "as_current current current_device CurrentDevice thread_share worker_environment",
        "pool": "DeviceLoad DevicePool Readings",
        "probe": "ProbeReport Reading",
        "score": "score ScoreWeights",
        "selection": "split_cpu",
        "telemetry": "Telemetry",
    },
)
