"""``train``: train clients with a trainer of its own for one call; and its check by a plain loop of torch."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from evenload._arguments import suggests_arguments
from evenload.clients.algorithms.reduce import Reducer
from evenload.clients.generators import seeded
from evenload.clients.load.datasets import is_lazy
from evenload.clients.step.module_state import ModuleState
from evenload.clients.trainer import Trainer
from evenload.clients.values.batches import plan_batches
from evenload.clients.values.data import Rows, dtype_of
from evenload.clients.values.keys import client_seed
from evenload.clients.values.recipe import CrossEntropy, Recipe
from evenload.clients.values.result import ClientResult, TrainResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import State, TrainOptions
from evenload.errors import ConfigError, TaskError, quoted

CLIENTS, BATCHES, EPOCHS = 2, 2, 2  # that are checked; each epoch has one short batch more
ALLOWED = {torch.float64: 1e-10}
ALLOWED_ELSE = 1e-4  # share of a tensor's largest number, in float32


@dataclass(frozen=True, slots=True)
class CheckedClient:
    """A client's training held against the plain loop.

    distance  the largest difference of a number of its state, as a share of the largest in its tensor
    allowed   the distance up to which the two are equal
    step      the first step whose losses differ, if one does;  why: what that points to
    """

    client: int
    steps: int
    distance: float
    allowed: float
    step: int | None = None
    why: str = ""

    @property
    def is_equal(self) -> bool:
        return self.distance <= self.allowed

    def __str__(self) -> str:
        if self.is_equal:
            return f"client {self.client}: equal within {self.distance:.1e} after {self.steps} steps"
        at = "at its end" if self.step is None else f"from step {self.step} on"
        return f"client {self.client}: differs by {self.distance:.1e} {at}: {self.why}"


def check_plainly(
    model: Any, datasets: Sequence[Any], recipe: Recipe, *, strategy: str | Strategy = "auto", seed: int = 0
) -> list[CheckedClient]:
    """Train the first clients for a few steps by ``strategy``, and each by a plain loop of torch.

    The loop is that of any tutorial: the caller's model (not a copy; a factory is called anew), examples from
    a DataLoader, torch's optimiser, ``backward``. Of evenload it takes the order of rows and the seeds only.
    Raises ConfigError where a plain loop cannot draw what is counted here (dropout, ``Recipe.augment``), and
    whatever training raises.
    """
    cut = _few_steps(recipe)
    n_rows = BATCHES * cut.batch_size + cut.batch_size // 2 + 1  # one row alone has no batch statistics
    few = [_few_rows(dataset, n_rows) for dataset in datasets[:CLIENTS]]
    with Trainer(model, strategy=strategy, seed=seed) as trainer:
        run = trainer.train(few, cut)
        _refuse_unlike(trainer, cut)
    found = []
    for client, (dataset, result) in enumerate(zip(few, run, strict=True)):
        losses, state = _plainly(model, _examples_of(dataset), cut, seed, client)
        found.append(_compared(client, result, losses, state))
    return found


def _few_steps(recipe: Recipe) -> Recipe:
    if recipe.steps is not None:
        return dataclasses.replace(recipe, steps=min(recipe.steps, EPOCHS * (BATCHES + 1)))
    return dataclasses.replace(recipe, epochs=min(recipe.epochs or 1, EPOCHS))


def _few_rows(dataset: Any, n: int) -> Any:
    """At most ``n`` rows of a dataset, of its own kind."""
    dataset = dataset() if is_lazy(dataset) else dataset
    if isinstance(dataset, Rows):
        own = np.arange(len(dataset)) if dataset.rows is None else dataset.rows
        return Rows(dataset.x, dataset.y, own[:n])
    if isinstance(dataset, Dataset):
        return Subset(dataset, range(min(n, len(dataset))))  # pyrefly: ignore
    if isinstance(dataset, Mapping):
        return {name: t[:n] for name, t in dataset.items()}
    if isinstance(dataset, tuple):
        return tuple(_few_rows(t, n) if isinstance(t, Mapping | tuple) else t[:n] for t in dataset)
    return dataset


def _refuse_unlike(trainer: Trainer, recipe: Recipe) -> None:
    """Raise ConfigError for what a plain loop has not, once ``trainer`` has seen the model at work."""
    if trainer.counts_draws(recipe):
        raise ConfigError(
            "the model or the recipe draws numbers that are counted for each client (dropout, torch.rand, "
            "augment): a plain loop draws others",
            hint="check it with p=0 and without augment; serial and fused training have the same draws",
        )
    unlike = [name for name in ("prox", "precision") if getattr(recipe, name)]
    if unlike:
        raise ConfigError(f"{unlike[0]}={quoted(getattr(recipe, unlike[0]))} is not in the plain loop")


def _examples_of(dataset: Any) -> Any:
    """What a DataLoader takes in place of a dataset that is no Dataset."""
    if isinstance(dataset, DataLoader):
        return dataset.dataset
    if isinstance(dataset, Rows):
        x, y = dataset.at(np.arange(len(dataset)))
        return _examples_of((x, y) if dataset.has_targets else x)
    if isinstance(dataset, Mapping):
        return [{name: t[i] for name, t in dataset.items()} for i in range(len(next(iter(dataset.values()))))]
    if isinstance(dataset, tuple):
        parts = [_examples_of(part) if isinstance(part, Mapping | tuple) else part for part in dataset]
        return list(zip(*parts, strict=True))
    return dataset


def _plainly(
    model: Any, dataset: Any, recipe: Recipe, seed: int, client: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and final state of the plain loop; a module that was given is put back as it was."""
    n = len(dataset)
    (plan,) = plan_batches([n], [client], [recipe], seed)
    with seeded(client_seed(seed, client, of="rows")):
        loader = DataLoader(dataset, batch_size=recipe.batch_size, collate_fn=list)
        read = [[example for part in loader for example in part] for _ in range(recipe.n_epochs(n))]
    if isinstance(model, nn.Module):
        own, before, kept = model, ModuleState(model), {k: t.clone() for k, t in model.state_dict().items()}
    else:
        with seeded(seed):
            own, before, kept = model(), None, {}
    was_training, per_epoch = own.training, recipe.steps_per_epoch(n)
    try:
        with seeded(client_seed(seed, client)):
            batches = [
                default_collate([read[step // per_epoch][i] for i in plan.rows[step, : plan.counts[step]]])
                for step in range(plan.n_steps)
            ]
            losses = _loop(own.train(), batches, recipe, per_epoch)
        return losses, {name: t.detach().clone() for name, t in own.state_dict().items()}
    finally:
        if before is not None:
            own.load_state_dict(kept)
            before.restore()
            own.train(was_training)


def _loop(model: nn.Module, batches: list[Any], recipe: Recipe, per_epoch: int) -> list[float]:
    dtype = dtype_of(model.parameters())
    optimizer = recipe.optimizer.build(dict(model.named_parameters()))
    rates, losses, loss_fn = [group["lr"] for group in optimizer.param_groups], [], _loss_of(recipe)
    for step, batch in enumerate(batches):
        if recipe.stop is not None and recipe.stop.stops(losses, per_epoch):
            break
        batch = _cast(batch, dtype)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * recipe.schedule.factor(step, len(batches))
        if recipe.step is not None:
            losses.append(float(torch.as_tensor(recipe.step(model, optimizer, *batch)).detach()))
            continue
        optimizer.zero_grad()
        value = loss_fn(model, batch)
        value.backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def _loss_of(recipe: Recipe) -> Callable[[nn.Module, Any], Tensor]:
    """A function of the model and a batch as its dataset has it."""
    named: dict[Any, Any] = {"mse": F.mse_loss, "l1": F.l1_loss, "cross_entropy": F.cross_entropy}
    named["bce_with_logits"] = F.binary_cross_entropy_with_logits
    given: Any = recipe.loss
    if isinstance(given, CrossEntropy):
        fields = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
        fields["weight"] = None if given.weight is None else torch.tensor(given.weight)
        given = nn.CrossEntropyLoss(**fields)
    compute = named.get(given, given) if isinstance(given, str) else given

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if recipe.objective is not None:
            found = recipe.objective(model, batch)
            return getattr(found, "loss", found).mean()
        x, y = batch
        outputs = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
        outputs = getattr(outputs, "logits", outputs)
        if isinstance(compute, nn.CrossEntropyLoss):
            compute.to(outputs.dtype)
        return compute(outputs, y).mean()

    return loss


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with floating numbers in the model's dtype, as people cast them in their datasets."""
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {name: _cast(part, dtype) for name, part in batch.items()}
    return tuple(_cast(part, dtype) for part in batch)


def _compared(
    client: int, result: ClientResult, losses: list[float], state: Mapping[str, Tensor]
) -> CheckedClient:
    dtype = dtype_of(state.values())
    allowed = ALLOWED.get(dtype, ALLOWED_ELSE)
    names = state.keys() ^ result.state.keys()
    pairs = [(result.state[name].double(), t.double()) for name, t in state.items() if name not in names]
    gaps = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs if b.numel()]
    distance = math.inf if names or any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)
    near = [abs(a - b) <= allowed * max(1.0, abs(b)) for a, b in zip(result.losses, losses, strict=False)]
    step = near.index(False) if False in near else len(near) if len(near) < len(losses) else None
    if distance <= allowed:
        return CheckedClient(client, result.steps, distance, allowed)
    why = "the updates: gradients, hooks, clipping or the optimiser"
    if step == 0:
        why = "the rows, the loss or the start: nothing was updated before"
    elif len(near) < len(losses):
        why = f"it ended as {quoted(result.status)}"
    return CheckedClient(client, result.steps, distance, allowed, step, why)


@suggests_arguments
def train(
    model: nn.Module | Callable[[], nn.Module],
    datasets: Sequence[Any],
    recipe: Recipe | Sequence[Recipe],
    *,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
    start: State | Sequence[State] | None = None,
    ids: Sequence[int] | None = None,
    anchor: State | Sequence[State] | None = None,
    corrections: Sequence[State] | None = None,
    round: int = 0,
    rounds: int = 1,
    threads: int = 1,
    cache: str | Path | None = None,
    reduce: str | Reducer | None = None,
    on_error: str = "raise",
    check: bool = False,
) -> TrainResult:
    """Train one copy of ``model`` per dataset. The result is the serial one, whatever the strategy.

    model        nn.Module or a function that makes one; never changed
    datasets     per client: a pair (x, y) of tensors or arrays, a Dataset of pairs, Rows, or a function that
                 returns one of these and is called when its client is due
    recipe       one for all, or one per client (they may differ in numbers: rates, decay, steps)
    strategy     "auto" picks, and measures first if the job repays it; "measured" always measures; see
                 ``Strategy`` for what else
    devices      what a strategy "devices/..." runs on
    start        state dict to start from, or one per client; the model's own by default
    ids          the clients' ids, which with ``seed`` and ``round`` decide shuffling and dropout; 0, 1, ...
    anchor       what the proximal term pulls to, for all or each; the start by default
    corrections  per client: parameter name -> tensor that is added to every gradient
    rounds       how many such calls are to come; compiling may only pay for many
    threads      torch's own threads per worker
    cache        file that remembers what "auto" has measured on this machine
    reduce       "mean" or a Reducer: aggregate states as clients end, and keep none
    on_error     "raise" a TaskError when all others are through (they are its ``result``), or "return"
    check        first hold a few steps of the first clients against a plain loop of torch on your own
                 objects; TaskError if they differ, a note in the plan if they are equal
    Raises ConfigError or UnknownName at once for arguments that cannot be used.
    """
    options = TrainOptions.among(locals())
    checked = check_plainly(model, datasets, _first(recipe), strategy=strategy, seed=seed) if check else []
    if unequal := [one for one in checked if not one.is_equal]:
        raise TaskError(
            f"training differs from a plain loop of torch: {unequal[0]}",
            hint="evenload clients check JOB shows each client; please tell us of a model that does",
        )
    with Trainer(
        model, strategy=strategy, devices=devices, seed=seed, rounds=rounds, threads=threads, cache=cache
    ) as trainer:
        found = trainer.train_with(datasets, recipe, options)
    notes = (*found.plan.notes, *(f"against plain torch: {one}" for one in checked))
    return dataclasses.replace(found, plan=dataclasses.replace(found.plan, notes=notes)) if check else found


def _first(recipe: Recipe | Sequence[Recipe]) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else recipe[0]
