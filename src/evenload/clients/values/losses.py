"""Losses and metrics as one number per row, so that padding rows can weigh nothing."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from evenload.clients.values.recipe import CrossEntropy, Recipe
from evenload.errors import ConfigError, quoted

IGNORED = -100  # the label that torch's cross entropy leaves out
PerRow = Callable[[Tensor, Tensor], Tensor]


def _rows(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _of_torch(loss: str | CrossEntropy, reduction: str) -> PerRow:
    """Torch's own loss of that name, or its cross entropy with the options of ``loss``."""
    if isinstance(loss, str):
        fn = _LOSSES[loss]

        def named(outputs: Tensor, targets: Tensor) -> Tensor:
            if loss in ("mse", "l1"):
                _refuse_broadcast(loss, outputs, targets)
            return fn(outputs, targets, reduction=reduction)

        return named
    weight = None if loss.weight is None else torch.tensor(loss.weight, dtype=torch.float64)
    options = {"ignore_index": loss.ignore_index, "label_smoothing": loss.label_smoothing}

    def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        own = None if weight is None else weight.to(outputs)
        return F.cross_entropy(outputs, targets, own, reduction=reduction, **options)

    return cross_entropy


def shares_of(loss: CrossEntropy) -> Callable[[Tensor], Tensor] | None:
    """A function: targets -> how much each row counts in a batch's mean [rows]; None if all count alike."""
    if loss.reduction == "sum" or loss.weight is None:  # clients with ignored labels are trained alone
        return None
    weight = torch.tensor(loss.weight, dtype=torch.float64)

    def shares(targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return torch.ones(len(targets), dtype=targets.dtype, device=targets.device)
        is_real = targets != loss.ignore_index
        return _rows(weight.to(targets.device)[torch.where(is_real, targets, 0)] * is_real)

    return shares


def _refuse_broadcast(name: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise ConfigError for shapes that torch would broadcast: each row against every other one."""
    if outputs.shape != targets.shape:
        raise ConfigError(
            f"loss {quoted(name)} of outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}",
            hint="give targets of the outputs' shape (y.unsqueeze(1), say), or outputs of the targets'",
        )


def _accuracy(outputs: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """1 for each row whose class (the largest along axis 1, or the sign of a logit) is right, else 0.

    A row whose label is ``ignored`` has 0, also where that is a class.
    """
    found = outputs.argmax(1) if outputs.dim() == targets.dim() + 1 else (outputs > 0)
    return _rows(((found == targets) & (targets != ignored)).to(outputs.dtype))


_LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
METRICS_PER_ROW: dict[str, Callable[..., Tensor]] = {"accuracy": _accuracy}


def loss_of(recipe: Recipe) -> PerRow:
    if isinstance(recipe.loss, str | CrossEntropy):
        each = _of_torch(recipe.loss, "none")
        return lambda outputs, targets: _rows(each(outputs, targets))
    user = recipe.loss

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        rows = user(outputs, targets)
        if not isinstance(rows, Tensor) or rows.dim() != 1 or len(rows) != len(targets):
            what = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise ConfigError(
                f"the loss function returned {what} for {len(targets)} rows",
                hint="return one loss per row: reduction='none', then a mean over all axes but the first. "
                "With weight= or ignore_index= that is another loss, as torch divides by the weights: use "
                "Recipe(loss=nn.CrossEntropyLoss(...)), or an objective, which may return one number",
            )
        return rows

    return checked


def mean_loss_of(recipe: Recipe) -> PerRow:
    """The mean over rows as one number; torch's own reduction where the loss is one of torch's."""
    if isinstance(recipe.loss, str | CrossEntropy):
        return _of_torch(recipe.loss, getattr(recipe.loss, "reduction", "mean"))
    per_row = loss_of(recipe)
    return lambda outputs, targets: per_row(outputs, targets).mean()


def metrics_of(recipe: Recipe) -> dict[str, PerRow]:
    """The metrics of a recipe by name, which leave out the labels that its loss does."""
    return {n: functools.partial(METRICS_PER_ROW[n], ignored=ignored_by(recipe)) for n in recipe.metrics}


def ignored_by(recipe: Recipe) -> int:
    """The label that the recipe's cross entropy leaves out."""
    return recipe.loss.ignore_index if isinstance(recipe.loss, CrossEntropy) else IGNORED


def n_counted(targets: Tensor, ignored: int = IGNORED) -> float:
    """The number of rows, each by the share of its labels that are not ``ignored``."""
    return float(_rows((targets != ignored).double()).sum())


def refuse_labels(targets: Tensor, n_classes: int, ignored: int = IGNORED) -> str | None:
    """Why these class labels cannot be used, or None. Soft targets (floating) are not labels.

    ``ignored`` is one that torch leaves out, and need be no class.
    """
    if targets.is_floating_point() or not len(targets):
        return None
    low, high = (int(v) for v in torch.aminmax(targets))
    if ignored in (low, high):
        used = targets[targets != ignored]
        low, high = (int(v) for v in torch.aminmax(used)) if len(used) else (0, 0)
    if low >= 0 and high < n_classes:
        return None
    return f"label {low if low < 0 else high} is out of range: the model's classes are 0 to {n_classes - 1}"
