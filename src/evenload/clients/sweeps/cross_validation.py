"""Cross-validation: a training per fold, all in one fused step, with scikit-learn's splitters and scorers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload._optional import require
from evenload.clients.sweeps.module_estimator import ModuleEstimator
from evenload.clients.training import train
from evenload.clients.values.data import Rows
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.strategy import Strategy, TrainingPlan
from evenload.errors import ConfigError

__all__ = ["CrossValidation", "cross_validate"]


Folds = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """The outcome of a cross-validation.

    scores      name of a scorer -> its value on the test rows of each fold, larger being better
    states      the trained state of each fold; empty for a scikit-learn estimator
    estimators  the trained estimator of each fold, with ``predict``
    folds       (train rows, test rows) of each
    plan        how the folds were trained; None for a scikit-learn estimator
    """

    scores: Mapping[str, np.ndarray]
    states: tuple[Mapping[str, Tensor], ...]
    estimators: tuple[Any, ...]
    folds: tuple[tuple[np.ndarray, np.ndarray], ...]
    plan: TrainingPlan | None

    def mean(self, name: str | None = None) -> float:
        """The mean score over the folds, of the only scorer or of the one named."""
        return float(np.mean(self.scores[name or next(iter(self.scores))]))


def cross_validate(
    model: Any,
    X: Any,
    y: Any,
    cv: Any = 5,
    *,
    recipe: Recipe | None = None,
    scoring: Any = None,
    groups: Any = None,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
) -> CrossValidation:
    """Train and score ``model`` on each fold of ``X`` [n, ...] and ``y`` [n, ...].

    model    nn.Module or a function that makes one: the folds are trained together, each as ``train`` would;
             or a scikit-learn estimator, which scikit-learn's own ``cross_validate`` fits
    cv       a number of folds, a splitter of scikit-learn, or an iterable of (train rows, test rows)
    scoring  what scikit-learn takes: a name ("accuracy", "r2", ...), a function ``(estimator, X, y) ->
             float``, a list or dict of these; accuracy for classes and r2 for numbers by default
    groups   of rows that stay together, for splitters that ask for them
    Raises ConfigError for what cannot be split, TaskError if a fold cannot be trained.
    """
    targets = np.asarray(y)
    if len(X) != len(targets):
        raise ConfigError(f"{len(X)} rows of X, but {len(targets)} targets", hint="give one target per row")
    recipe = recipe or Recipe()
    has_classes = recipe.loss == "cross_entropy" and targets.dtype.kind in "iub"
    selection: Any = require("sklearn.model_selection", extra="sweeps", why="cross-validation")
    splitter = selection.check_cv(cv, targets, classifier=has_classes)
    folds = _folds(splitter.split(np.zeros(len(targets)), targets, groups))
    if hasattr(model, "fit") and hasattr(model, "get_params"):
        return _by_scikit_learn(selection, model, X, targets, folds, scoring)
    x = torch.as_tensor(X)
    datasets = [Rows(x, torch.as_tensor(y), fold) for fold, _ in folds]
    run = train(model, datasets, recipe, strategy=strategy, devices=devices, seed=seed)
    estimators = tuple(ModuleEstimator(model, result.state, has_classes, targets, seed) for result in run)
    scores = _scores(scoring, estimators, x, targets, folds)
    return CrossValidation(scores, tuple(run.states), estimators, tuple(folds), run.plan)


def _folds(split: Any) -> Folds:
    return [(np.asarray(a, np.int64), np.asarray(b, np.int64)) for a, b in split]


def _scores(
    scoring: Any, estimators: tuple[ModuleEstimator, ...], x: Tensor, targets: np.ndarray, folds: Folds
) -> dict[str, np.ndarray]:
    metrics: Any = require("sklearn.metrics", extra="sweeps", why="cross-validation")
    return {
        name: np.array([scorer(e, x[b], targets[b]) for e, (_, b) in zip(estimators, folds, strict=True)])
        for name, scorer in _scorers(metrics, scoring, estimators[0]).items()
    }


def _by_scikit_learn(
    selection: Any, estimator: Any, X: Any, targets: np.ndarray, folds: Folds, scoring: Any
) -> CrossValidation:
    found = selection.cross_validate(estimator, X, targets, cv=folds, scoring=scoring, return_estimator=True)
    scores = {n.removeprefix("test_"): v for n, v in found.items() if n.startswith("test_")}
    return CrossValidation(scores, (), tuple(found["estimator"]), tuple(folds), None)


def _scorers(metrics: Any, scoring: Any, estimator: Any) -> dict[str, Any]:
    """Scorers by name. Raises ConfigError for one that scikit-learn does not know."""
    if scoring is None or isinstance(scoring, str) or callable(scoring):
        named = {"score": scoring}
    else:
        named = dict(scoring) if isinstance(scoring, Mapping) else {name: name for name in scoring}
    try:
        return {name: metrics.check_scoring(estimator, scoring=one) for name, one in named.items()}
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"scoring: {error}".splitlines()[0], hint="sklearn.metrics.get_scorer_names()"
        ) from error
