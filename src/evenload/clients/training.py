"""``train``: train clients with a trainer of its own for one call."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from evenload._arguments import suggests_arguments
from evenload.clients.algorithms.reduce import Reducer
from evenload.clients.plain_check import check_plainly
from evenload.clients.trainer import Trainer
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import TrainResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import State, TrainOptions
from evenload.errors import TaskError


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
