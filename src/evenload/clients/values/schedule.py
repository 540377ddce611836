"""Learning-rate schedules over a client's own steps: values that turn (step, steps) into a factor."""

import math
from dataclasses import dataclass
from typing import Protocol

from evenload.errors import ConfigError

__all__ = ["Constant", "Cosine", "Exponential", "LearningRateSchedule", "StepDecay"]


class LearningRateSchedule(Protocol):
    """A rule for the learning rate over a client's steps."""

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate in step ``step`` (from 0) of ``steps``."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The optimiser's own learning rate in every step."""

    def factor(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Cosine:
    """A half cosine from 1 down to ``floor``, after ``warmup`` steps of linear growth."""

    floor: float = 0.0
    warmup: int = 0

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class Exponential:
    """A decay by the factor ``gamma`` in every step."""

    gamma: float = 0.99

    def factor(self, step: int, steps: int) -> float:
        return self.gamma**step


@dataclass(frozen=True, slots=True)
class StepDecay:
    """A decay by ``gamma`` after each ``every`` steps. Raises ConfigError if ``every`` is not positive."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"StepDecay(every={self.every}) never takes a step", hint="use 1 or more")

    def factor(self, step: int, steps: int) -> float:
        return self.gamma ** (step // self.every)
