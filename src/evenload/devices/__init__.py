"""Devices: discovery, scores, load, and the environment that gives a worker its device."""

from typing import TYPE_CHECKING, Any

from evenload.devices.device import Device
from evenload.devices.environment import CurrentDevice, as_current, current, thread_share, worker_environment
from evenload.devices.pool import DeviceLoad, DevicePool
from evenload.devices.probe import ProbeReport, Reading
from evenload.devices.readings import Readings
from evenload.devices.score import ScoreWeights, score
from evenload.devices.selection import split_cpu
from evenload.errors import quoted

if TYPE_CHECKING:
    from evenload.devices.telemetry import Telemetry

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
    "score",
    "split_cpu",
    "thread_share",
    "worker_environment",
]


def __getattr__(name: str) -> Any:
    # Telemetry imports the events, which listing devices does not need.
    if name == "Telemetry":
        from evenload.devices.telemetry import Telemetry

        return Telemetry
    raise AttributeError(f"module 'evenload.devices' has no attribute {quoted(name)}")
