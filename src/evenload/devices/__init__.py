"""What there is to compute on: discovery, scores, load, and how a worker is given its device."""

from .device import Device
from .environment import CurrentDevice, as_current, current, thread_share, worker_environment
from .pool import DeviceLoad, DevicePool
from .probe import ProbeReport, Reading
from .score import ScoreWeights, score
from .selection import split_cpu
from .telemetry import Readings, Telemetry

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
