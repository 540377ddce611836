"""What there is to compute on: discovery, scores, load, and how a worker is given its device."""

from typing import TYPE_CHECKING, Any

from .device import Device
from .environment import CurrentDevice, as_current, current, thread_share, worker_environment
from .pool import DeviceLoad, DevicePool
from .probe import ProbeReport, Reading
from .readings import Readings
from .score import ScoreWeights, score
from .selection import split_cpu

if TYPE_CHECKING:
    from .telemetry import Telemetry

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
    # Telemetry brings the events, which listing devices does without.
    if name == "Telemetry":
        from .telemetry import Telemetry

        return Telemetry
    raise AttributeError(f"module 'evenload.devices' has no attribute {name!r}")
