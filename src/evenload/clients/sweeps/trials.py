"""The trials of a sweep: from a grid of settings to recipes, arguments of the model, and groups that fuse."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenload.clients.values.recipe import PER_CLIENT, Recipe
from evenload.errors import ConfigError, quoted

_RECIPE = tuple(f.name for f in dataclasses.fields(Recipe))


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting of a sweep.

    number     its place in the grid: the client's id, which with the seed decides shuffling and dropout
    settings   what the grid says
    recipe     how it is trained;  arguments  what the model's function is called with
    seed       of the model's start
    """

    number: int
    settings: Mapping[str, Any]
    recipe: Recipe
    arguments: Mapping[str, Any]
    seed: int

    @property
    def arguments_key(self) -> tuple:
        """What trials of one shape of model share."""
        return identity_of(self.arguments)

    def cut_to(self, share: float) -> "Trial":
        """The trial with a share of its epochs or steps, one at least."""
        name = "steps" if self.recipe.steps is not None else "epochs"
        n = max(1, round((getattr(self.recipe, name) or 1) * share))
        changed: dict[str, Any] = {name: n}
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, **changed))

    @property
    def length(self) -> int:
        """Epochs or steps."""
        return self.recipe.steps or self.recipe.epochs or 1


def make_trials(grid: Any, recipe: Recipe, seed: int) -> list[Trial]:
    """One trial for each combination of a grid's values, or each mapping of a sequence of settings.

    A setting is a field of the recipe, a field of its optimiser (a class as ``optimizer`` is called with
    those that it has), "seed", or else an argument of the model's function.
    Raises ConfigError for an empty grid and what a recipe or optimiser refuses.
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not hasattr(values, "__iter__"):
                raise ConfigError(
                    f"grid[{quoted(name)}]={quoted(values)}", hint="give a list of values for each name"
                )
        if any(not isinstance(name, str) for name in grid):
            raise ConfigError(f"the grid has names {quoted(list(grid))}", hint="names are strings")
        columns = [list(values) for values in grid.values()]
        settings = [dict(zip(grid, line, strict=True)) for line in itertools.product(*columns)]
    elif isinstance(grid, Sequence) and all(isinstance(one, Mapping) for one in grid):
        settings = [dict(one) for one in grid]
    else:
        raise ConfigError(
            f"grid={quoted(grid)}", hint="give {'lr': [0.1, 0.01]}, say, or a list of settings, each a dict"
        )
    if not settings or not any(settings):
        raise ConfigError("the grid has no setting", hint="give {'lr': [0.1, 0.01]}, say, or a list of dicts")
    return [_trial(number, one, recipe, seed) for number, one in enumerate(settings)]


def groups_of(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials that can be in one fused step: of one shape of model, with recipes that differ in numbers."""
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        fixed = {name: getattr(trial.recipe, name) for name in _RECIPE if name not in PER_CLIENT}
        code = {"optimizer": trial.recipe.optimizer.code(), "clips": trial.recipe.clip is not None}
        key = trial.arguments_key, identity_of(fixed), identity_of(code)
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def identity_of(settings: Mapping[str, Any]) -> tuple:
    """A key that two mappings share only if their values are the same: equal plain values, or one object."""
    return tuple((name, _identity(value)) for name, value in settings.items())


def _identity(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_identity, value))
    return type(value), id(value)  # what it prints or equals need not be all that it is


def _trial(number: int, settings: dict[str, Any], recipe: Recipe, seed: int) -> Trial:
    left = dict(settings)
    own_seed = left.pop("seed", seed)
    if isinstance(own_seed, bool) or not hasattr(own_seed, "__index__") or abs(int(own_seed)) >= 2**63:
        raise ConfigError(f"seed={quoted(own_seed)} of a trial is not an int of 64 bits")
    own_seed = int(own_seed)
    changes = {name: left.pop(name) for name in list(left) if name in _RECIPE}
    optimizer = changes.pop("optimizer", recipe.optimizer)
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    fields = [f.name for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else []
    numbers = {name: left.pop(name) for name in list(left) if name in fields}
    if isinstance(optimizer, type):
        try:
            changes["optimizer"] = optimizer(**numbers)
        except TypeError as error:
            raise ConfigError(
                f"optimizer={optimizer.__name__} of a trial cannot be made of its settings alone: {error}",
                hint="use SGD, Adam, ... of evenload.clients, or a value: TorchOptimizer('ASGD')",
            ) from error
    else:
        changes["optimizer"] = dataclasses.replace(optimizer, **numbers) if numbers else optimizer
    if "steps" in changes and "epochs" not in changes:
        changes["epochs"] = None
    if "epochs" in changes and "steps" not in changes:
        changes["steps"] = None
    return Trial(number, settings, dataclasses.replace(recipe, **changes), left, own_seed)
