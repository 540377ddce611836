"""From what a user gives to tasks: datasets read, starts checked, batches planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload.errors import ConfigError

from .batches import plan_batches
from .data import Rows, as_rows
from .keys import MODEL, key
from .losses import refuse_labels
from .recipe import Recipe, check_together
from .result import ClientResult
from .serial import failed, untouched
from .survey import class_count
from .task import Task

__all__ = ["Loaded", "Wanted", "load_tasks", "recipes_for", "states_for", "with_seeds"]

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for, one entry per client."""

    datasets: Sequence[Any]
    recipes: Sequence[Recipe]
    ids: Sequence[int]
    starts: Sequence[State]
    anchors: Sequence[State | None]
    corrections: Sequence[State | None]

    def __len__(self) -> int:
        return len(self.datasets)


@dataclass(slots=True)
class Loaded:
    """Tasks that can run, and results of the clients that cannot."""

    tasks: list[Task] = field(default_factory=list)
    ended: list[ClientResult] = field(default_factory=list)


def load_tasks(model: nn.Module, wanted: Wanted, seed: int, round: int) -> Loaded:
    """Read every dataset. What raises, has no rows or labels out of range is in ``ended``."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    rows, errors = [], {}
    for at, dataset in enumerate(wanted.datasets):
        try:
            rows.append(as_rows(dataset, dtype))
        except Exception as error:
            rows.append(Rows(torch.empty(0), torch.empty(0)))
            errors[at] = error
    plans = plan_batches([len(r) for r in rows], wanted.ids, wanted.recipes, seed, round)
    loaded, n_classes = Loaded(), -1
    for at, (own, batches) in enumerate(zip(rows, plans, strict=True)):
        task = Task(
            wanted.ids[at],
            wanted.recipes[at],
            own,
            batches,
            wanted.starts[at],
            wanted.anchors[at],
            wanted.corrections[at],
        )
        if at in errors:
            loaded.ended.append(failed(task, errors[at]))
        elif not len(own):
            loaded.ended.append(untouched(task, "empty"))
        else:
            if n_classes == -1:
                n_classes = _n_classes(model, wanted.recipes[0], own)
            reason = _bad_labels(own, n_classes)
            if reason:
                loaded.ended.append(failed(task, ConfigError(f"client {task.client}: {reason}")))
            else:
                loaded.tasks.append(task)
    return loaded


def with_seeds(tasks: Sequence[Task], seed: int, round: int) -> list[Task]:
    """The same tasks, for a model that draws from torch's own generator."""
    return [replace(task, seed=key(MODEL, seed, round, task.client)) for task in tasks]


def recipes_for(recipe: Recipe | Sequence[Recipe], n: int) -> list[Recipe]:
    """Raises ConfigError if there is not one per client, or they cannot be trained together."""
    if isinstance(recipe, Recipe):
        return [recipe] * n
    recipes = list(recipe)
    if len(recipes) != n:
        raise ConfigError(
            f"{len(recipes)} recipes for {n} clients", hint="give one recipe, or one per client"
        )
    if recipes:
        check_together(recipes)
    return recipes


def states_for(
    what: str,
    given: State | Sequence[State] | None,
    n: int,
    like: State,
    default: State | None,
    is_whole: bool = True,
) -> list[Any]:
    """One state per client of one for all, one each, or none. ``is_whole``: it has every name of ``like``.

    Raises ConfigError naming the client and the tensor if shapes or names are not the model's.
    """
    if given is None:
        return [default] * n
    states = [given] * n if isinstance(given, Mapping) else list(given)
    if len(states) != n:
        raise ConfigError(f"{what}: {len(states)} states for {n} clients", hint="give one, or one per client")
    checked: set[int] = set()
    for client, state in enumerate(states):
        if id(state) not in checked:
            _check_state(f"{what} of client {client}", state, like, is_whole)
            checked.add(id(state))
    return states


def _check_state(what: str, state: State, like: State, is_whole: bool) -> None:
    missing = [name for name in like if name not in state] if is_whole else []
    unknown = [name for name in state if name not in like]
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which the model lacks"
        raise ConfigError(
            f"{what} {problem}", hint="all clients train the same model; its state_dict() has the names"
        )
    for name in state:
        if state[name].shape != like[name].shape:
            raise ConfigError(
                f"{what}: {name!r} is {tuple(state[name].shape)}, in the model {tuple(like[name].shape)}",
                hint="models that differ cannot be trained together: call train once for each",
            )


def _n_classes(model: nn.Module, recipe: Recipe, rows: Rows) -> int | None:
    try:
        return class_count(model, recipe, rows.at(np.zeros(1, np.int64))[0])
    except Exception:
        return None  # the model refuses this client's rows: training will say so, client by client


def _bad_labels(rows: Rows, n_classes: int | None) -> str | None:
    if n_classes is None:
        return None
    y = rows.y if rows.rows is None else rows.y[torch.from_numpy(rows.rows)]
    return refuse_labels(y, n_classes)
