"""Serial training: one client after the other with torch's own modules and optimisers. Slow and obvious.

Every other strategy is compared with this one.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from evenload.clients.generators import seeded
from evenload.clients.step.dropout import KEY, keyed_layers
from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import Batch, leaves_of, map_batch
from evenload.clients.values.losses import ignored_by, metrics_of, n_counted
from evenload.clients.values.result import ClientResult, StateRow
from evenload.clients.values.task import ClientTask
from evenload.errors import ConfigError

BLOCK, BLOCK_BYTES = 64, 1 << 18  # steps whose rows are gathered at once: these are read while in the cache


def train_one(model: nn.Module, task: ClientTask, device: str = "cpu") -> ClientResult:
    """Train ``model`` (a private copy on ``device``, with keyed dropout) on one client.

    The result has the exception, if there is one. A model that draws from generators that the whole process
    shares does so by the task's seed: one client at a time.
    """
    if not len(task.rows):
        return untouched(task, "empty")
    try:
        if not task.draws:
            return _train(model, task, device)
        with seeded(task.seed):
            return _train(model, task, device)
    except Exception as error:
        return failed(task, error)


def untouched(task: ClientTask, status: str, error: Exception | None = None) -> ClientResult:
    """The result of a client that was not trained: its start."""
    state = StateRow.of_shared(task.start)
    return ClientResult(task.client, state, np.zeros(0), n_rows=task.n_rows, status=status, error=error)


def failed(task: ClientTask, error: Exception) -> ClientResult:
    """The result of a client that failed: its start, and the error."""
    return untouched(task, "failed", error)


def _train(model: nn.Module, task: ClientTask, device: str) -> ClientResult:
    recipe, batches = task.recipe, task.batches
    model.load_state_dict(task.start)
    model.train()
    params = dict(model.named_parameters())  # one without a gradient is not stepped
    optimizer = recipe.optimizer.build(params)
    rates = [group["lr"] for group in optimizer.param_groups]
    layers, metrics = list(keyed_layers(model).values()), metrics_of(recipe)
    seen, counted, sums, losses, status = 0, 0, dict.fromkeys(metrics, 0.0), [], "ok"
    batch_loss = BatchLoss(recipe, ReplacedFunctions(is_fused=False) if task.is_keyed else None)
    buffers = [(m._buffers, name) for m in model.modules() for name in m._buffers if name != KEY]
    keys = torch.tensor(batches.draws, device=device).unbind()
    factors = [recipe.schedule.factor(step, batches.n_steps) for step in range(batches.n_steps)]
    for step, (x, y) in enumerate(_batches(task, device)):
        for layer in layers:  # each dropout has the key of this step
            layer.n_calls = 0
            getattr(layer, KEY).fill_(int(batches.draws[step]))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factors[step]
        if recipe.step is not None:
            loss = float(torch.as_tensor(recipe.step(model, optimizer, x, y)).detach())
        else:
            before = [(b := owner[name], None if b is None else b.clone()) for owner, name in buffers]
            for p in params.values():
                p.grad = None
            value, outputs = batch_loss(model, x, y, keys[step])
            loss = value.item()
            if not math.isfinite(loss):
                _restore(buffers, before)
                status = "diverged"
                break
            if not value.requires_grad:
                raise ConfigError(
                    "the loss depends on no trained parameter",
                    hint="leave requires_grad on for some, and detach no output",
                )
            value.backward()
            _add_terms(params, task)
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(params.values(), recipe.clip)
            optimizer.step()
            for name, metric in metrics.items():
                sums[name] += float(metric(outputs.detach(), y).sum())
        losses.append(loss)
        seen += len(y)
        counted += n_counted(y, ignored_by(recipe)) if task.rows.has_ignored else len(y)
        if recipe.stop is not None and recipe.stop.stops(losses, recipe.steps_per_epoch(task.n_rows)):
            break
    return _result(model, task, losses, {n: t / max(1, counted) for n, t in sums.items()}, seen, status)


def _result(
    model: nn.Module, task: ClientTask, losses: list[float], means: dict[str, float], seen: int, status: str
) -> ClientResult:
    state = {name: t.detach().to("cpu", copy=True) for name, t in model.state_dict().items()}
    floating = [t for t in state.values() if t.is_floating_point()]
    # A sum, which one pass gives, shows that all numbers are finite, unless it is too large itself.
    if not all(math.isfinite(float(t.sum())) or bool(t.isfinite().all()) for t in floating):
        status = "diverged"
    return ClientResult(task.client, state, np.array(losses), means, seen, task.n_rows, status)


def _batches(task: ClientTask, device: str) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the client's batches in order, gathered for up to BLOCK steps at a time."""
    rows, counts = task.batches.rows, task.batches.counts
    size = rows.shape[1]
    batch_bytes = size * sum(t[:1].numel() * t.element_size() for t in leaves_of(task.rows.x))
    n = max(1, min(BLOCK, BLOCK_BYTES // max(1, batch_bytes)))
    for at in range(0, len(counts), n):
        block = counts[at : at + n]
        x, y = task.rows.at(rows[at : at + n].reshape(-1))
        x, y = map_batch(lambda t: t.to(device), x), y.to(device)
        for i, count in enumerate(block.tolist()):
            own = slice(i * size, i * size + count)
            yield map_batch(lambda t, own=own: t[own], x), y[own]


@torch.no_grad()
def _restore(
    buffers: list[tuple[dict[str, Tensor | None], str]], before: list[tuple[Tensor | None, Tensor | None]]
) -> None:
    """Put back what each module had registered under a name, and its numbers."""
    for (owner, name), (buffer, kept) in zip(buffers, before, strict=True):
        owner[name] = buffer
        if buffer is not None and kept is not None:
            buffer.copy_(kept)


@torch.no_grad()
def _add_terms(params: dict[str, nn.Parameter], task: ClientTask) -> None:
    """Add the proximal term's gradient and the correction to the gradients, if there are any."""
    prox = task.recipe.prox
    if not prox and task.correction is None:
        return
    for name, p in params.items():
        if p.grad is None:
            continue
        if prox:
            anchor: Tensor = (task.anchor or task.start)[name].to(p.device)
            p.grad.add_(p - anchor, alpha=prox)
        if task.correction is not None:
            p.grad.add_(task.correction[name].to(p.device))
