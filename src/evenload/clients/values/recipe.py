"""The rules by which a client trains: optimiser, loss, batches, steps. A frozen value."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenload._arguments import flag, number, sequence, suggests_arguments
from evenload.clients.values.optimizer import SGD
from evenload.errors import ConfigError, UnknownName, quoted


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


LOSSES = ("cross_entropy", "mse", "l1", "bce_with_logits")
METRICS = ("accuracy",)
MOST = (1 << 31) - 1  # rows of a step, epochs, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """A cross entropy with torch's options; ``nn.CrossEntropyLoss`` as a recipe's loss becomes one.

    weight           of each class, or None: a batch's mean is that of its rows' classes' weights, as torch's
    ignore_index     the label whose rows count for nothing
    label_smoothing  share of the target that all classes get equally
    reduction        "mean" or "sum" over the rows of a batch
    Raises ConfigError for numbers that torch would refuse.
    """

    weight: Any = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"

    def __post_init__(self) -> None:
        if self.weight is not None:
            try:
                object.__setattr__(self, "weight", tuple(map(float, self.weight)))
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"weight={quoted(self.weight)} of a loss", hint="give a number for each class"
                ) from error
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ConfigError(f"label_smoothing={quoted(self.label_smoothing)}", hint="use 0.0 to 1.0")
        if self.reduction not in ("mean", "sum"):
            raise UnknownName("reduction", self.reduction, ("mean", "sum"))


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """A rule by which a client stops early: after ``patience`` epochs without a lower mean training loss.

    min_delta  lower by more than this counts; rounding may decide where two epochs are that near
    Raises ConfigError for a patience below 1 or a min_delta below 0.
    """

    patience: int
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise ConfigError(f"patience={quoted(self.patience)}", hint="give a number of epochs, 1 or more")
        if not self.min_delta >= 0:
            raise ConfigError(f"min_delta={quoted(self.min_delta)}", hint="use 0 or more")

    def stops(self, losses: Sequence[float], per_epoch: int) -> bool:
        """Is it enough after these losses of steps, ``per_epoch`` of which are an epoch?"""
        if not len(losses) or len(losses) % per_epoch:
            return False
        best, waited = float("inf"), 0
        for mean in np.asarray(losses, np.float64).reshape(-1, per_epoch).mean(1).tolist():
            waited = 0 if mean < best - self.min_delta else waited + 1
            best = min(best, mean) if waited == 0 else best
        return waited >= self.patience


def _told_by_module(loss: Any) -> Any:
    """The value or name of what one of torch's modules computes; what is no such module, as it is."""
    kind = type(loss).__name__
    if type(loss).__module__ != "torch.nn.modules.loss" or loss.reduction == "none":
        return loss
    if kind == "CrossEntropyLoss":
        weight = None if loss.weight is None else loss.weight.tolist()
        given = {"ignore_index": loss.ignore_index, "label_smoothing": loss.label_smoothing}
        return CrossEntropy(weight=weight, reduction=loss.reduction, **given)
    names = {"MSELoss": "mse", "L1Loss": "l1", "BCEWithLogitsLoss": "bce_with_logits"}
    has_weights = any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight"))
    return loss if has_weights or loss.reduction != "mean" else names.get(kind, loss)


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The rules by which a client trains.

    optimizer   SGD, Adam, ...: a value of ``evenload.clients``; ParameterGroups has options by parameter
    loss        a name of LOSSES, CrossEntropy(...) or ``nn.CrossEntropyLoss(...)`` with options, or
                ``fn(outputs, targets)`` that returns one loss per row (axis 0)
    batch_size  rows per step; the last batch of an epoch may be shorter
    epochs      passes over the client's rows (1 if neither is given), or
    steps       a number of steps, over as many passes as that takes
    schedule    factor of the learning rate over the client's own steps: a value, or ``fn(step, steps)``
    shuffle     a new order in every epoch, from the client's own key
    drop_last   leave out a short last batch (kept all the same if it is the only one)
    clip        largest norm of the whole gradient of a client
    stop        EarlyStop(patience=3), say, for a client whose epochs' mean loss no longer gets lower
    prox        mu of a proximal term mu/2 |w - anchor|^2; the anchor is the start unless given
    metrics     names of METRICS, measured on the training batches before each step
    augment     ``fn(x, draws)`` gives one client's batch ``x`` [rows, ...] as it is to be seen; its random
                numbers come from ``draws``: ``draws.uniform(len(x), ...)``, ``draws.coin(0.5, len(x))``
    precision   "bfloat16": products in bfloat16, parameters and updates as they are (torch.autocast)
    objective   ``fn(model, batch)`` in the loss's place; the batch is as the dataset has it, a dict of
                tensors, say. It returns one loss per row, or one number: then only full batches are fused
    step        ``fn(model, optimizer, x, y)`` that does a whole step and returns the loss; never fused
    """

    optimizer: Any = field(default_factory=SGD)
    loss: str | CrossEntropy | Callable[[Any, Any], Any] = "cross_entropy"
    batch_size: int = 32
    epochs: int | None = None
    steps: int | None = None
    schedule: Any = field(default_factory=Constant)
    shuffle: bool = True
    drop_last: bool = False
    clip: float | None = None
    prox: float = 0.0
    metrics: tuple[str, ...] = ()
    augment: Callable[[Any, Any], Any] | None = None
    precision: str | None = None
    objective: Callable[[Any, Any], Any] | None = None
    step: Callable[[Any, Any, Any, Any], Any] | None = None
    stop: EarlyStop | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "steps"):  # of a grid by numpy, say
            if isinstance(value := getattr(self, name), np.integer):
                object.__setattr__(self, name, int(value))
        self._check_optimizer()
        object.__setattr__(self, "loss", _told_by_module(self.loss))
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise UnknownName("loss", self.loss, LOSSES)
        for name in sequence("metrics", self.metrics):
            if name not in METRICS:
                raise UnknownName("metric", name, METRICS)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"epochs={self.epochs} and steps={self.steps}", hint="give one of the two")
        self._check_numbers()
        if self.stop is not None and not isinstance(self.stop, EarlyStop):
            raise ConfigError(f"stop={quoted(self.stop)}", hint="use EarlyStop(patience=3)")
        for name in ("loss", "augment", "objective", "step"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | CrossEntropy) and not callable(value):
                raise ConfigError(f"{name}={quoted(value)} is not a function")
        if self.precision not in (None, "bfloat16"):
            raise ConfigError(
                f"precision={quoted(self.precision)} is not known",
                hint="use 'bfloat16', or None; float16 needs its losses scaled, which would differ by client",
            )
        if self.objective is not None and (self.metrics or self.step is not None):
            raise ConfigError(
                "an objective calls the model itself, so metrics and a step of your own cannot go with it"
            )
        others = self.prox or self.clip is not None or self.metrics or self.augment or self.precision
        if self.step is not None and others:
            raise ConfigError(
                "a custom step does everything itself: prox, clip, metrics, augment and precision have no "
                "effect on it"
            )

    def _check_numbers(self) -> None:
        number("prox", self.prox)
        if self.clip is not None and self.clip != math.inf:
            number("clip", self.clip, is_zero_allowed=False)
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        for name in ("batch_size", "epochs", "steps"):
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not is_whole or value < 1):
                raise ConfigError(f"{name}={quoted(value)} is not an int above 0")
            if value is not None and value > MOST:
                all_rows = "for steps over all rows of a client, give the rows of the largest"
                hint = all_rows if name == "batch_size" else None
                raise ConfigError(f"{name}={quoted(value)} is more than {MOST:,}", hint=hint)

    def _check_optimizer(self) -> None:
        """Check the optimiser and the schedule, of which a function becomes a value."""
        is_made = not isinstance(self.optimizer, type)
        if not (is_made and all(hasattr(self.optimizer, name) for name in ("build", "code", "lr"))):
            raise ConfigError(
                f"optimizer={quoted(self.optimizer)}",
                hint="one of SGD(...), Adam(...), RMSprop(...), OwnOptimizer(...), TorchOptimizer('ASGD'), "
                "...; ParameterGroups(...) has other options for some parameters; a second optimizer is made "
                "in Recipe(step=fn), as model.second",
            )
        if not hasattr(self.schedule, "factor"):
            if not callable(self.schedule):
                raise ConfigError(
                    f"schedule={quoted(self.schedule)}", hint="use Cosine(), or fn(step, steps)"
                )
            fn: Any = self.schedule
            object.__setattr__(self, "schedule", ScheduleFunction(fn))

    @property
    def code(self) -> tuple:
        """The parts that are code of a step, and not numbers that go into it."""
        return self.loss, self.objective, self.augment, self.precision, self.metrics, self.step

    @property
    def has_classes(self) -> bool:
        """Are targets labels of classes, as far as the loss says?"""
        is_cross_entropy = self.loss == "cross_entropy" or isinstance(self.loss, CrossEntropy)
        return is_cross_entropy and self.objective is None

    def n_steps(self, n_rows: int) -> int:
        """Steps of a client with ``n_rows`` examples; 0 if it has none."""
        if n_rows == 0:
            return 0
        return self.steps if self.steps is not None else (self.epochs or 1) * self.steps_per_epoch(n_rows)

    def n_epochs(self, n_rows: int) -> int:
        """Passes over ``n_rows`` examples, the last of which may be cut short."""
        return -(-self.n_steps(n_rows) // self.steps_per_epoch(n_rows))

    def steps_per_epoch(self, n_rows: int) -> int:
        return max(1, n_rows // self.batch_size if self.drop_last else -(-n_rows // self.batch_size))


# What may differ between clients that are trained together: numbers that enter a step as values.
PER_CLIENT = ("optimizer", "epochs", "steps", "schedule", "shuffle", "prox", "clip")


def check_together(recipes: Sequence[Recipe]) -> None:
    """Raise ConfigError unless ``recipes`` differ in numbers only: one fused step can then serve them all."""
    first = recipes[0]
    for client, recipe in enumerate(recipes):
        for name in Recipe.__dataclass_fields__:
            if name not in PER_CLIENT and getattr(recipe, name) != getattr(first, name):
                theirs, ours = getattr(recipe, name), getattr(first, name)
                raise ConfigError(
                    f"client {client} has {name}={quoted(theirs)}, client 0 {quoted(ours)}",
                    hint=f"only {', '.join(PER_CLIENT)} may differ between clients",
                )
        if recipe.optimizer.code() != first.optimizer.code():
            theirs, ours = (type(r.optimizer).__name__ for r in (recipe, first))
            both = "with another nesterov, amsgrad, groups or the like" if theirs == ours else ours
            raise ConfigError(
                f"client {client} uses {theirs}, client 0 {both}",
                hint="train them in two calls, or with `sweep`, which does that",
            )
        if (recipe.clip is None) != (first.clip is None):
            raise ConfigError(f"client {client} and client 0: one clips and the other does not")
