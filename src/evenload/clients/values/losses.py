"""Losses and metrics as one number per row, so that padding rows can weigh nothing."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from evenload.clients.values.recipe import Recipe
from evenload.errors import ConfigError, quoted

__all__ = [
    "IGNORED",
    "METRICS_PER_ROW",
    "PerRow",
    "loss_of",
    "mean_loss_of",
    "metrics_of",
    "n_counted",
    "refuse_labels",
]

IGNORED = -100  # the label that torch's cross entropy leaves out
PerRow = Callable[[Tensor, Tensor], Tensor]


def _rows(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _rows(F.cross_entropy(outputs, targets, reduction="none"))


def _mse(outputs: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
    _refuse_broadcast("mse", outputs, targets)
    return _rows(F.mse_loss(outputs, targets, reduction=reduction))


def _l1(outputs: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
    _refuse_broadcast("l1", outputs, targets)
    return _rows(F.l1_loss(outputs, targets, reduction=reduction))


def _refuse_broadcast(name: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise ConfigError for shapes that torch would broadcast: each row against every other one."""
    if outputs.shape != targets.shape:
        raise ConfigError(
            f"loss {quoted(name)} of outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}",
            hint="give targets of the outputs' shape (y.unsqueeze(1), say), or outputs of the targets'",
        )


def _bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return _rows(F.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each row whose class (the largest along axis 1, or the sign of a logit) is right, else 0."""
    found = outputs.argmax(1) if outputs.dim() == targets.dim() + 1 else (outputs > 0)
    return _rows((found == targets).to(outputs.dtype))


_LOSSES: dict[str, PerRow] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "l1": _l1,
    "bce_with_logits": _bce,
}
_MEANS: dict[str, PerRow] = {
    "cross_entropy": F.cross_entropy,
    "mse": functools.partial(_mse, reduction="mean"),
    "l1": functools.partial(_l1, reduction="mean"),
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
METRICS_PER_ROW: dict[str, PerRow] = {"accuracy": _accuracy}


def loss_of(recipe: Recipe) -> PerRow:
    if isinstance(recipe.loss, str):
        return _LOSSES[recipe.loss]
    user = recipe.loss

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        rows = user(outputs, targets)
        if rows.dim() != 1 or len(rows) != len(targets):
            raise ConfigError(
                f"the loss function returned shape {tuple(rows.shape)} for {len(targets)} rows",
                hint="return one loss per row: reduction='none', then a mean over all axes but the first",
            )
        return rows

    return checked


def mean_loss_of(recipe: Recipe) -> PerRow:
    """The mean over rows as one number; torch's own reduction where the loss is one of torch's."""
    if isinstance(recipe.loss, str):
        return _MEANS[recipe.loss]
    per_row = loss_of(recipe)
    return lambda outputs, targets: per_row(outputs, targets).mean()


def metrics_of(recipe: Recipe) -> dict[str, PerRow]:
    return {name: METRICS_PER_ROW[name] for name in recipe.metrics}


def n_counted(targets: Tensor) -> float:
    """The number of rows, each by the share of its labels that are not IGNORED."""
    return float(_rows((targets != IGNORED).double()).sum())


def refuse_labels(targets: Tensor, n_classes: int) -> str | None:
    """Why these class labels cannot be used, or None. Soft targets (floating) are not labels.

    IGNORED is one that torch leaves out, and is no class.
    """
    if targets.is_floating_point() or not len(targets):
        return None
    low, high = (int(v) for v in torch.aminmax(targets))
    if low == IGNORED:
        used = targets[targets != IGNORED]
        low, high = (int(v) for v in torch.aminmax(used)) if len(used) else (0, 0)
    if low >= 0 and high < n_classes:
        return None
    return f"label {low if low < 0 else high} is out of range: the model's classes are 0 to {n_classes - 1}"
