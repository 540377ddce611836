"""One model over all clients' rows: step i takes every client's i-th batch together.

This is not training clients: one trajectory instead of many. It is here under its true name because it is
often recommended as if it were the same, and so that the two can be measured side by side.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from evenload.clients.step.objective import outputs_of
from evenload.clients.values.data import map_batch
from evenload.clients.values.losses import mean_loss_of
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, StateRow
from evenload.clients.values.task import ClientTask
from evenload.errors import ConfigError


def train_merged(model: nn.Module, tasks: Sequence[ClientTask]) -> list[ClientResult]:
    """Every client gets the one state; losses are those of the merged batch.

    Raises ConfigError for what only clients that are trained one by one can have.
    """
    _refuse(tasks)
    recipe, steps = tasks[0].recipe, max(task.batches.n_steps for task in tasks)
    model.load_state_dict(tasks[0].start)
    model.train()
    optimizer = recipe.optimizer.build(dict(model.named_parameters()))
    loss_fn, losses = mean_loss_of(recipe), []
    for step in range(steps):
        parts = [
            task.rows.at(task.batches.rows[step, : task.batches.counts[step]])
            for task in tasks
            if step < task.batches.n_steps
        ]
        xs, ys = zip(*parts, strict=True)
        x, y = map_batch(lambda *t: torch.cat(t), *xs), torch.cat(ys)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(outputs_of(model, x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    return [
        ClientResult(t.client, StateRow.of_shared(state), np.array(losses), {}, t.batches.examples, t.n_rows)
        for t in tasks
    ]


def _refuse(tasks: Sequence[ClientTask]) -> None:
    first, start = tasks[0].recipe, tasks[0].start
    plain = Recipe()
    names = ("schedule", "clip", "prox", "augment", "precision", "metrics", "step", "objective", "stop")
    asked = [name for name in names if any(getattr(t.recipe, name) != getattr(plain, name) for t in tasks)]
    if any(task.correction is not None for task in tasks):
        asked.append("corrections")
    if any(task.recipe.optimizer != first.optimizer for task in tasks):
        asked.append("an optimizer for each client")
    if any(task.start is not start for task in tasks):
        asked.append("a start for each client")
    if asked:
        raise ConfigError(
            f"'merged' trains one model over all clients' rows, without {', '.join(asked)}",
            hint="leave that out, or use strategy='auto', which trains clients",
        )
