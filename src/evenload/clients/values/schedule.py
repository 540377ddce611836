"""Learning-rate schedules over a client's own steps: values that turn (step, steps) into a factor."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError, quoted


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


@dataclass(frozen=True, slots=True)
class ScheduleFunction:
    """A schedule by a function ``fn(step, steps) -> factor``."""

    fn: Callable[[int, int], float]
    has_functions = True

    def factor(self, step: int, steps: int) -> float:
        return float(self.fn(step, steps))


@dataclass(frozen=True, slots=True)
class TorchSchedule:
    """A schedule by one of ``torch.optim.lr_scheduler``, stepped after every step of the client.

        TorchSchedule(lambda optimizer, steps: OneCycleLR(optimizer, max_lr=1.0, total_steps=steps))

    make  ``make(optimizer, steps)`` makes the scheduler of an optimiser whose learning rate is 1; what it
          makes of that is the factor. So rates that it is given (``max_lr``, ``eta_min``) are factors of
          the optimiser's own. One that waits for a metric, or changes momentum, is refused.
    """

    make: Callable[[Any, int], Any]
    has_functions = True

    def factor(self, step: int, steps: int) -> float:
        return _factors(self.make, max(1, steps))[step]


@functools.lru_cache(maxsize=128)
def _factors(make: Callable[[Any, int], Any], steps: int) -> tuple[float, ...]:
    import warnings

    import torch

    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=1.0, momentum=0.5)
    scheduler, found = make(optimizer, steps), []
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError("ReduceLROnPlateau waits for a metric", hint="a schedule is known before training")
    if not (hasattr(scheduler, "step") and hasattr(scheduler, "get_last_lr")):
        raise ConfigError(
            f"TorchSchedule's function returned {quoted(scheduler)}",
            hint="return a scheduler of torch.optim.lr_scheduler for the optimizer given",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimiser itself is never stepped
        for _ in range(steps):
            found.append(float(optimizer.param_groups[0]["lr"]))
            scheduler.step()
            if optimizer.param_groups[0]["momentum"] != 0.5:
                raise ConfigError("the scheduler changes momentum", hint="use cycle_momentum=False")
    return tuple(found)
