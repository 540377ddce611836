"""The score of a device, 0..100: a first guess of its speed, from its data sheet alone.

    score = 100 x (40 % kind + 20 % backend + 20 % memory + 20 % compute units)

It orders devices and is used for dealing until the first item is measured. All factors are above zero, so a
weak device gets few items, not none.
"""

import math
from dataclasses import dataclass

from evenload.devices.device import Device
from evenload.errors import ConfigError

KIND = {"discrete": 1.0, "integrated": 0.5, "virtual": 0.3, "cpu": 0.2}
BACKEND = {
    "cuda": 1.0,
    "rocm": 1.0,
    "mps": 0.9,
    "metal": 0.9,
    "vulkan": 0.8,
    "d3d12": 0.8,
    "cpu": 0.5,
    "opengl": 0.3,
}
UNKNOWN = 0.25
FULL_MEMORY_GIB = 128
FULL_COMPUTE_UNITS = 128


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """The weights of the score's factors: numbers of at least 0, not all 0; they are scaled to a sum of 1.

    Raises ConfigError otherwise.
    """

    kind: float = 0.4
    backend: float = 0.2
    memory: float = 0.2
    compute_units: float = 0.2

    def __post_init__(self) -> None:
        for name in ("kind", "backend", "memory", "compute_units"):
            weight = getattr(self, name)
            if not (weight >= 0 and math.isfinite(weight)):
                raise ConfigError(
                    f"score weight {name}={weight} is not zero or more", hint="use 0.4, 0.2, 0.2, 0.2"
                )
        if not self.total:
            raise ConfigError("all score weights are zero", hint="give at least one factor a weight")

    @property
    def total(self) -> float:
        return self.kind + self.backend + self.memory + self.compute_units


def score(device: Device, weights: ScoreWeights | None = None) -> float:
    """Compute the score of ``device``, above 0 and at most 100, rounded to a tenth.

    Memory counts by its logarithm up to 128 GiB, compute units in proportion up to 128; an unknown number
    counts a quarter.
    """
    weights = weights or ScoreWeights()
    weighted = (
        weights.kind * KIND[device.kind]
        + weights.backend * BACKEND.get(device.backend, UNKNOWN)
        + weights.memory * _memory_factor(device.memory_bytes)
        + weights.compute_units * _units_factor(device.compute_units)
    )
    return max(0.1, round(100 * weighted / weights.total, 1))


def _memory_factor(memory_bytes: int | None) -> float:
    if not memory_bytes:
        return UNKNOWN
    return min(1.0, math.log2(1 + memory_bytes / 2**30) / math.log2(1 + FULL_MEMORY_GIB))


def _units_factor(compute_units: int | None) -> float:
    if not compute_units:
        return UNKNOWN
    return min(1.0, compute_units / FULL_COMPUTE_UNITS)
