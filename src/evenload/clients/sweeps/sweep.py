"""A sweep: many settings tried on one data set, those together that one fused step can serve."""

import copy
import dataclasses
import functools
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._arguments import suggests_arguments
from evenload.clients.evaluation import evaluate
from evenload.clients.load.datasets import size_of
from evenload.clients.trainer import Trainer, template_of
from evenload.clients.values.recipe import PER_CLIENT, Recipe
from evenload.clients.values.result import ClientResult, TrainResult
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.clients.values.task import TrainOptions
from evenload.errors import ConfigError, TaskError, quoted

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


Score = str | Callable[[nn.Module], float]


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """The outcome of one trial.

    score    larger is better: minus a loss, an accuracy, or what the caller's function gives;
             -inf if it fails, or if that is no number
    error    why there is no score, or None
    share    of its epochs or steps that it was given: less than 1 if it was stopped early
    metrics  what ``evaluate`` gave for the test examples
    """

    trial: Trial
    result: ClientResult
    score: float
    share: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.trial.settings

    @property
    def state(self) -> Mapping[str, Tensor]:
        return self.result.state


@dataclass(frozen=True, slots=True, eq=False)
class SweepResult(Sequence[TrialResult]):
    """The outcome of a sweep: every trial, the best first.

    plans  how each group of trials was trained, by the numbers of its trials
    """

    trials: tuple[TrialResult, ...]
    plans: Mapping[tuple[int, ...], ClientPlan]

    @property
    def best(self) -> TrialResult:
        return self.trials[0]

    def __getitem__(self, index: Any) -> Any:
        return self.trials[index]

    def __len__(self) -> int:
        return len(self.trials)

    def explain(self) -> str:
        """Which trials were trained together, and how."""
        return "\n".join(
            f"{len(numbers)} trial{'s' * (len(numbers) > 1)} together, {plan.explain()}"
            for numbers, plan in self.plans.items()
        )


@suggests_arguments
def sweep(
    model: nn.Module | Callable[..., nn.Module],
    data: Any,
    grid: Any,
    *,
    recipe: Recipe | None = None,
    test: Any = None,
    score: Score = "loss",
    halving: int | None = None,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
) -> SweepResult:
    """Train ``model`` on ``data`` with each setting of ``grid``; the best comes first.

    model    a function that makes one, called with the settings that no recipe or optimiser has (``width``),
             with torch's generator at the trial's seed. Or an nn.Module: all trials start from it
    grid     name -> list of values, of which every combination is tried; or a list of settings
    recipe   what all trials have in common
    test     examples that decide; without them the loss of the last training batch does
    score    "loss", "accuracy", or ``fn(model) -> float`` of the trained model, larger being better
    halving  stop early: all trials get a small share of their epochs (or steps), the best of ``halving``
             go on to ``halving`` times as much, and so on. Each is trained anew, so that the best is the one
             that a sweep without halving would give it
    A trial is what ``train`` gives alone, with the trial's number for an id. One that fails scores -inf.
    Raises ConfigError, before training, for a grid, score or test that cannot be used and arguments that
    the model does not take; TaskError if no trial can be trained.
    """
    trials = make_trials(grid, recipe or Recipe(), seed)
    _check_score(score, test, trials)
    if halving is not None and (not isinstance(halving, int) or halving < 2):
        raise ConfigError(f"halving={quoted(halving)}: use an int above 1, or None")
    if isinstance(model, nn.Module) and (odd := next((t for t in trials if t.arguments), None)):
        raise ConfigError(
            f"no recipe or optimizer has a setting {quoted(next(iter(odd.arguments)))}",
            hint="it could be an argument of the model: give a function that makes one, not an nn.Module",
        )
    with ExitStack() as stack:
        run = _Trainers(model, data, strategy, devices, seed, stack)
        return run.sweep(trials, halving, functools.partial(_judged, test=test, score=score))


class _Trainers:
    """A trainer for each shape of model, kept warm between the rungs of a sweep."""

    def __init__(self, model: Any, dataset: Any, strategy: Any, devices: Any, seed: int, stack: ExitStack):
        self._model, self._dataset, self._stack = model, dataset, stack
        self._options = {"strategy": strategy, "devices": devices, "seed": seed}
        self._trainers: dict[tuple, Trainer] = {}
        self._starts: dict[tuple[tuple, int | None], Mapping[str, Tensor]] = {}

    def sweep(
        self, trials: list[Trial], halving: int | None, judge: Callable[..., TrialResult]
    ) -> SweepResult:
        """Train trials, rung by rung; ``judge`` makes a result of a client's."""
        for trial in trials:
            self._start(trial)  # an argument that the model refuses is told before anything is trained
        alive, found = trials, dict[int, TrialResult]()
        plans: dict[tuple[int, ...], ClientPlan] = {}
        for share in _shares(trials, halving):
            ran: list[TrialResult] = []
            for group in groups_of([trial.cut_to(share) for trial in alive]):
                trained, trainer = self.train(group)
                plans[tuple(trial.number for trial in group)] = trained.plan
                ran += [judge(*pair, trainer.model, share=share) for pair in zip(group, trained, strict=True)]
            found |= {one.trial.number: one for one in ran}
            _raise_for_none(ran)
            ran.sort(key=lambda one: (-one.score, one.trial.number))
            kept = {one.trial.number for one in ran[: -(-len(ran) // (halving or 1))]}
            alive = [trial for trial in alive if trial.number in kept]
        order = sorted(found.values(), key=lambda one: (-one.share, -one.score, one.trial.number))
        return SweepResult(tuple(order), plans)

    def train(self, group: Sequence[Trial]) -> tuple[TrainResult, Trainer]:
        """Train a group of trials. Failures are in its results."""
        trainer = self._trainer(group[0])
        options = TrainOptions(
            start=[self._start(trial) for trial in group],
            ids=[trial.number for trial in group],
            on_error="return",
        )
        return trainer.train_with(
            [self._dataset] * len(group), [trial.recipe for trial in group], options
        ), trainer

    def _trainer(self, trial: Trial) -> Trainer:
        key = trial.arguments_key
        if key not in self._trainers:
            made = Trainer(self._make(trial), **self._options)
            self._trainers[key] = self._stack.enter_context(made)
        return self._trainers[key]

    def _start(self, trial: Trial) -> Mapping[str, Tensor]:
        is_made = not isinstance(self._model, nn.Module)
        key = trial.arguments_key, trial.seed if is_made else None
        if key not in self._starts and not is_made:
            self._starts[key] = self._trainer(trial).start  # one for all trials: they share what is frozen
        if key not in self._starts:
            made = template_of(self._make(trial), trial.seed)
            self._starts[key] = {n: t.detach() for n, t in made.state_dict().items()}
        return self._starts[key]

    def _make(self, trial: Trial) -> Any:
        if isinstance(self._model, nn.Module) or not callable(self._model):
            return self._model

        def make() -> nn.Module:
            arguments: dict[str, Any] = dict(trial.arguments)
            try:
                inspect.signature(self._model).bind(**arguments)
            except TypeError as error:
                raise ConfigError(
                    f"the model's function does not take {', '.join(map(quoted, arguments))}: {error}",
                    hint="a setting is a field of the recipe or its optimizer, 'seed', or for the model",
                ) from error
            except ValueError:
                pass  # it has no signature
            try:
                return self._model(**arguments)
            except Exception as error:
                raise ConfigError(
                    f"the model's function raised {type(error).__name__} for trial {trial.number}, "
                    f"{quoted(dict(trial.settings))}: {error}"
                ) from error

        return make


def _shares(trials: Sequence[Trial], halving: int | None) -> list[float]:
    """The shares of their length that trials get in turn, the last of them whole."""
    if halving is None:
        return [1.0]
    most = min(len(trials), max(trial.length for trial in trials))
    n_rungs = 0
    while halving ** (n_rungs + 1) <= most:
        n_rungs += 1
    return [float(halving) ** -rung for rung in range(n_rungs, -1, -1)]


def _judged(
    trial: Trial, result: ClientResult, model: nn.Module, *, test: Any, score: Score, share: float
) -> TrialResult:
    if not result.is_usable:
        return TrialResult(trial, result, -math.inf, share)
    metrics: Mapping[str, float] = {}
    try:
        if callable(score):
            own = copy.deepcopy(model).eval()
            own.load_state_dict(result.state)
            with torch.no_grad():
                value = float(score(own))
        elif test is None:
            value = -float(result.losses[-1])
        else:
            metrics = evaluate(model, result.state, test, trial.recipe)
            value = metrics[score] if score != "loss" else -metrics["loss"]
        error = ConfigError(f"the score is {value}") if math.isnan(value) else None
    except Exception as raised:  # of the caller's function or examples: what is trained is not lost by it
        value, error = math.nan, raised
    if error is not None:
        text = f"trial {trial.number} has no score: {type(error).__name__}: {error}"
        warnings.warn(text.splitlines()[0], stacklevel=2)
    return TrialResult(trial, result, -math.inf if error else value, share, metrics, error)


def _check_score(score: Any, test: Any, trials: Sequence[Trial]) -> None:
    """Raise ConfigError for a score that no trial, or not every trial, will have."""
    if callable(score):
        return
    recipes = [trial.recipe for trial in trials]
    has_classes = all(r.has_classes for r in recipes)
    known = ("loss", "accuracy") if has_classes else ("loss",)
    if not isinstance(score, str) or score not in known:
        raise ConfigError(
            f"score={quoted(score)} is not known here", hint=f"use {' or '.join(known)}, or a function"
        )
    if test is None and score != "loss":
        raise ConfigError(f"score={quoted(score)} needs examples to test with", hint="give test=(x, y)")
    if test is not None and size_of(test) == 0:
        raise ConfigError("test has no examples", hint="leave it out, and the last training loss decides")


def _raise_for_none(ran: Sequence[TrialResult]) -> None:
    """Raise TaskError if no trial could even be begun."""
    if any(one.result.status not in ("failed", "empty") for one in ran):
        return
    first = ran[0].result
    why = first.error if first.error is not None else "the data has no examples"
    raise TaskError(f"none of {len(ran)} trials could be trained: {why}", index=first.client) from first.error
