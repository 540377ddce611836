"""From what a user gives to tasks: datasets read, starts checked, batches planned."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._arguments import instance_of, iterated, keywords
from evenload.clients.load.datasets import ReadRows, is_lazy, read_for, refuse_loader
from evenload.clients.step.dropout import keyed_layers
from evenload.clients.step.model_traits import ask, class_count
from evenload.clients.step.module_state import ModuleState, copy_model
from evenload.clients.step.objective import draws_numbers
from evenload.clients.step.serial import failed, untouched
from evenload.clients.values.batches import plan_batches
from evenload.clients.values.data import Rows, dtype_of, is_whole, leaves_of
from evenload.clients.values.keys import client_seeds
from evenload.clients.values.losses import ignored_by, refuse_labels
from evenload.clients.values.recipe import Recipe, check_together
from evenload.clients.values.result import ClientResult
from evenload.clients.values.task import ClientTask, State
from evenload.errors import ConfigError, quoted

ReadDataset = tuple[Any, ReadRows, Exception | None]
FEW = 4  # rows that show whether a model draws numbers
ROWS = 256  # rows whose outputs the model is asked for at once


@dataclass(frozen=True, slots=True)
class ClientInputs:
    """The inputs of a training, one entry per client."""

    datasets: Sequence[Any]
    recipes: Sequence[Recipe]
    ids: Sequence[int]
    starts: Sequence[State]
    anchors: Sequence[State | None]
    corrections: Sequence[State | None]

    def __len__(self) -> int:
        return len(self.datasets)


@dataclass(slots=True)
class LoadedClients:
    """Clients that were read: tasks that can run, and results of those that cannot."""

    tasks: list[ClientTask] = field(default_factory=list)
    ended: list[ClientResult] = field(default_factory=list)


class DatasetReader:
    """A reader of datasets for one model, which remembers what it read (but not what functions returned)."""

    def __init__(self, model: nn.Module):
        self._model, self._state = model, ModuleState(model)
        self._dtype = dtype_of(model.parameters())
        self._known: dict[tuple, dict[int, ReadDataset]] = {}  # what matters of a recipe -> id of a dataset
        self._n_classes: dict[tuple, int | None] = {}
        self._has_layers = bool(keyed_layers(model))
        self._draws: dict[tuple, bool] = {}  # what matters of a recipe -> does the model draw by functions?

    def read(
        self, datasets: Sequence[Any], recipes: Sequence[Recipe], seeds: Sequence[int]
    ) -> list[tuple[ReadRows, Exception | None]]:
        """Rows of each dataset, and what is wrong with them. Datasets are known by identity."""
        known_for: dict[int, dict[int, ReadDataset]] = {}
        read = []
        for dataset, recipe, seed in zip(datasets, recipes, seeds, strict=True):
            known = known_for.get(id(recipe))
            if known is None:
                key = *recipe.code, recipe.batch_size, recipe.shuffle, recipe.drop_last
                known = known_for[id(recipe)] = self._known.setdefault(key, {})
            found = known.get(id(dataset))
            if found is None:
                found = dataset, *self._read(dataset, recipe, seed)
                self._state.restore()  # the model was asked, and may remember it
                if found[2] is None and not is_lazy(dataset) and not found[1].is_fresh:
                    known[id(dataset)] = found
            read.append(found[1:])
        return read

    def _read(self, dataset: Any, recipe: Recipe, seed: int) -> tuple[ReadRows, Exception | None]:
        try:
            refuse_loader(dataset, recipe)
            read = read_for(dataset, self._dtype, seed, recipe.n_epochs, recipe.batch_size)
            rows = read.rows
            if not len(rows):
                return read, None
            reason = self._refuse(rows, recipe)
            if reason is None and recipe.step is None and recipe.code not in self._draws:
                self._learn_draws(rows, recipe)
            if recipe.has_classes and not rows.y.is_floating_point():
                ignores = bool((_own_labels(rows) == ignored_by(recipe)).any())
                read = replace(read, rows=replace(rows, has_ignored=True)) if ignores else read
            return read, reason
        except Exception as error:
            return ReadRows(Rows(torch.empty(0), torch.empty(0)), 0), error

    def is_keyed(self, recipe: Recipe) -> bool:
        """Does the model call functions that draw numbers, as far as its clients' rows have shown?"""
        return self._draws.get(recipe.code, False)

    def draws(self, recipes: Sequence[Recipe]) -> bool:
        """Do steps by these recipes need keys?"""
        return self._has_layers or any(r.augment or self.is_keyed(r) for r in recipes)

    def _learn_draws(self, rows: Rows, recipe: Recipe) -> None:
        try:
            x, y = rows.at(np.arange(min(FEW, len(rows))))
            self._draws[recipe.code] = draws_numbers(copy_model(self._model).train(), recipe, x, y)
        except Exception:
            return  # the next client's rows may tell, and training says what is wrong with these

    def _refuse(self, rows: Rows, recipe: Recipe) -> Exception | None:
        if not rows.has_targets and recipe.objective is None and recipe.step is None:
            return ConfigError(
                "the client's tensors have no targets beside them",
                hint="give (x, y), where x may be a dict or a tuple; or Recipe(objective=fn)",
            )
        key = (*recipe.code, rows.kind)
        if key not in self._n_classes:
            self._n_classes[key] = _n_classes(self._model, recipe, rows)
        n_classes, ignored = self._n_classes[key], ignored_by(recipe)
        reason = None if n_classes is None else refuse_labels(_own_labels(rows), n_classes, ignored)
        if reason:
            return ConfigError(reason)
        return _bad_indices(self._model, recipe, rows) if recipe.step is None else None


def load_tasks(reader: DatasetReader, inputs: ClientInputs, seed: int, round: int) -> LoadedClients:
    """Read every dataset; one that raises, has no rows or labels out of range is in ``ended``."""
    seeds = client_seeds(seed, inputs.ids, round, of="rows")
    read = reader.read(inputs.datasets, inputs.recipes, seeds)
    sizes = [found.n for found, _ in read]
    alike = list({id(recipe): recipe for recipe in inputs.recipes}.values())
    plans = plan_batches(sizes, inputs.ids, inputs.recipes, seed, round, draws=reader.draws(alike))
    is_keyed = {id(recipe): reader.is_keyed(recipe) for recipe in alike}
    loaded = LoadedClients()
    own_seeds = client_seeds(seed, inputs.ids, round, of="model")
    columns = (inputs.ids, inputs.recipes, inputs.starts, inputs.anchors, inputs.corrections)
    for (found, error), n, batches, own_seed, *own in zip(
        read, sizes, plans, own_seeds, *columns, strict=True
    ):
        client, recipe, start, anchor, correction = own
        batches = batches.of_fresh(n, recipe.steps_per_epoch(n)) if found.is_fresh and n else batches
        more = {"is_keyed": is_keyed[id(recipe)], "is_fresh": found.is_fresh, "seed": own_seed}
        task = ClientTask(client, recipe, found.rows, n, batches, start, anchor, correction, **more)
        if error is not None:
            loaded.ended.append(failed(task, error))
        elif not n:
            loaded.ended.append(untouched(task, "empty"))
        else:
            loaded.tasks.append(task)
    return loaded


def recipes_for(recipe: Recipe | Sequence[Recipe], n: int) -> list[Recipe]:
    """Raises ConfigError if there is not one per client, or they cannot be trained together."""
    if isinstance(recipe, Recipe):
        return [recipe] * n
    given = recipe if isinstance(recipe, Sequence) else [recipe]
    recipes = [instance_of("a recipe", one, Recipe, "Recipe(...)") for one in given]
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
    needed: Iterable[str] | None = None,
) -> list[Any]:
    """One state per client, from one for all, one each, or none (then ``default``).

    needed  the names of ``like`` that each state must have; all by default
    Raises ConfigError naming the client and the tensor if shapes or names are not the model's.
    """
    if given is None:
        return [default] * n
    states = [given] * n if isinstance(given, Mapping) else list(iterated(what, given))
    if len(states) != n:
        raise ConfigError(f"{what}: {len(states)} states for {n} clients", hint="give one, or one per client")
    checked: set[int] = set()
    names = list(like if needed is None else needed)
    for client, state in enumerate(states):
        if id(state) not in checked:
            _check_state(f"{what} of client {client}", state, like, names)
            checked.add(id(state))
    return states


def _check_state(what: str, state: State, like: State, needed: Sequence[str]) -> None:
    keywords(what, state)
    missing = [name for name in needed if name not in state]
    unknown = [name for name in state if name not in like]
    if missing or unknown:
        problem = (
            f"lacks {quoted(missing[0])}" if missing else f"has {quoted(unknown[0])}, which the model lacks"
        )
        raise ConfigError(
            f"{what} {problem}", hint="all clients train the same model; its state_dict() has the names"
        )
    for name in state:
        if state[name].shape != like[name].shape:
            raise ConfigError(
                f"{what}: {quoted(name)} is {tuple(state[name].shape)}, "
                f"in the model {tuple(like[name].shape)}",
                hint="models that differ cannot be trained together: call train once for each",
            )


def _n_classes(model: nn.Module, recipe: Recipe, rows: Rows) -> int | None:
    try:
        return class_count(model, recipe, *rows.at(np.zeros(1, np.int64)))
    except Exception:
        return None  # the model refuses this client's rows: training will say so, client by client


def _bad_indices(model: nn.Module, recipe: Recipe, rows: Rows) -> Exception | None:
    """What the model raises on the rows that hold the least and the largest whole numbers, or None.

    Whole numbers may index a table, and in a fused step all clients' tables are one tensor: an index beyond a
    client's own table would silently read and train its neighbour's.
    """
    own = None if rows.rows is None else torch.from_numpy(rows.rows)
    whole = [t if own is None else t[own] for t in leaves_of(rows.x) if is_whole(t) and t.numel()]
    flat = [t.reshape(len(t), -1) for t in whole]
    if not flat:
        return None
    extreme = torch.unique(torch.cat([end for t in flat for end in (t.argmax(0), t.argmin(0))]))
    try:
        for at in extreme.split(ROWS):
            ask(model, recipe, *rows.at(at.numpy()))
    except Exception as error:
        return error
    return None


def _own_labels(rows: Rows) -> Tensor:
    return rows.y if rows.rows is None else rows.y[torch.from_numpy(rows.rows)]
