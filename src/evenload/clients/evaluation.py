"""Loss and accuracy of states on examples that nobody trains on."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._arguments import suggests_arguments
from evenload.clients.load.datasets import as_rows
from evenload.clients.step.module_state import copy_model
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import dtype_of
from evenload.clients.values.losses import METRICS_PER_ROW, ignored_by, n_counted
from evenload.clients.values.recipe import Recipe

BATCH = 1024


@torch.no_grad()
@suggests_arguments
def evaluate(
    model: nn.Module, state: Mapping[str, Tensor], examples: Any, recipe: Recipe
) -> dict[str, float]:
    """Mean loss of ``state`` over ``examples``, and accuracy where targets are classes; the model is copied.

    NaN for no examples. Raises whatever the examples or the model raise.
    """
    own = copy_model(model).eval()
    own.load_state_dict(state)
    dtype = dtype_of(own.parameters())
    plain = dataclasses.replace(recipe, augment=None, precision=None)
    rows, batch_loss, key = as_rows(examples, dtype), BatchLoss(plain), torch.tensor(0)
    names = ("loss", "accuracy") if recipe.has_classes else ("loss",)
    accuracy, ignored = METRICS_PER_ROW["accuracy"], ignored_by(recipe)
    sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for at in range(0, len(rows), BATCH):
        x, y = rows.at(np.arange(at, min(at + BATCH, len(rows))))
        each, outputs = batch_loss.rows(own, x, y, key)
        is_labelled = "accuracy" in sums and not y.is_floating_point()
        counted = n_counted(y, ignored) if is_labelled else len(y)
        of_loss = counted if batch_loss.shares is None else float(batch_loss.shares(y).sum())
        counts = {name: n + (of_loss if name == "loss" else counted) for name, n in counts.items()}
        sums["loss"] += float(each.sum() if each.dim() else each * len(y))
        if "accuracy" in sums:
            sums["accuracy"] += float(accuracy(outputs, y, ignored=ignored).sum())
    return {name: sums[name] / n if n else float("nan") for name, n in counts.items()}


def evaluate_each(
    model: nn.Module, states: Sequence[Mapping[str, Tensor]], datasets: Sequence[Any], recipe: Recipe
) -> list[dict[str, float]]:
    """``evaluate`` of each client's state (or of one for all) on its own examples."""
    if len(states) == 1:
        states = [states[0]] * len(datasets)
    return [evaluate(model, s, d, recipe) for s, d in zip(states, datasets, strict=True)]
