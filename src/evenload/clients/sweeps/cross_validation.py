"""Cross-validation: a training per fold, all in one fused step, with scikit-learn's splitters and scorers."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload._optional import require
from evenload.clients.sweeps.module_estimator import ModuleEstimator, kind_of
from evenload.clients.training import train
from evenload.clients.values.data import Rows
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy, TrainingPlan
from evenload.errors import ConfigError, UnknownName, printable, quoted

__all__ = ["CrossValidation", "cross_validate"]


Folds = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """The outcome of a cross-validation.

    scores      name of a scorer -> its value on the test rows of each fold, larger being better; NaN, with a
                warning, where the scorer raises or the fold's training diverged
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
        """The mean score over the folds, of the first scorer or of the one named. Raises UnknownName."""
        if name is not None and name not in self.scores:
            raise UnknownName("scorer", name, self.scores)
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
    recipe   of a module; targets of "cross_entropy", and 0 and 1 of "bce_with_logits", are classes
    scoring  what scikit-learn takes: a name ("accuracy", "r2", ...), a function ``(estimator, X, y) ->
             float``, a list or dict of these; accuracy for classes and r2 for numbers by default
    groups   of rows that stay together, for splitters that ask for them
    Raises ConfigError, before training, for what cannot be split or scored; TaskError for a failing fold.
    """
    targets = _targets(X, y)
    selection: Any = require("sklearn.model_selection", extra="sweeps", why="cross-validation")
    if hasattr(model, "fit") and hasattr(model, "get_params"):
        return _by_scikit_learn(selection, model, X, targets, (cv, groups), scoring)
    kind = kind_of(recipe := recipe or Recipe(), targets)
    folds = _folds(selection, cv, targets, groups, kind in ("classes", "yes_no"))
    x, y = _tensor("X", X), _tensor("y", y)
    scorers = _scorers(scoring, ModuleEstimator(model, None, kind, targets, seed))
    datasets = [Rows(x, y, fold) for fold, _ in folds]
    run = train(model, datasets, recipe, strategy=strategy, devices=devices, seed=seed)
    estimators = tuple(ModuleEstimator(model, result.state, kind, targets, seed) for result in run)
    tests = [(one, e, x[b], targets[b]) for one, e, (_, b) in zip(run, estimators, folds, strict=True)]
    scores = {
        name: np.array([_score(scorer, name, *test) for test in tests]) for name, scorer in scorers.items()
    }
    return CrossValidation(scores, tuple(run.states), estimators, tuple(folds), run.plan)


def _targets(X: Any, y: Any) -> np.ndarray:
    """The targets as an array. Raises ConfigError unless there is one for each row of X."""
    targets = np.asarray(y)
    if isinstance(X, Mapping):
        raise ConfigError(f"X is a {type(X).__name__}", hint="give one tensor or array, rows along axis 0")
    n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
    if targets.ndim == 0 or n_rows != len(targets):
        n_targets = len(targets) if targets.ndim else "no"
        raise ConfigError(f"{n_rows} rows of X, but {n_targets} targets", hint="give one target per row")
    return targets


def _tensor(name: str, values: Any) -> Tensor:
    """A tensor of what scikit-learn takes: arrays, lists, frames of pandas."""
    try:
        return torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    except TypeError as error:
        raise ConfigError(
            f"a module cannot have {name} of type {type(values).__name__}: {error}",
            hint="give dense numbers; classes as 0, 1, ... (sklearn.preprocessing.LabelEncoder)",
        ) from error


def _folds(selection: Any, cv: Any, targets: np.ndarray, groups: Any, has_classes: bool) -> Folds:
    """(train rows, test rows) of each fold. Raises ConfigError for what gives none."""
    try:
        splitter = selection.check_cv(cv, targets, classifier=has_classes)
        split = [
            tuple(map(np.asarray, fold)) for fold in splitter.split(np.zeros(len(targets)), targets, groups)
        ]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"cv={quoted(cv)} cannot split {len(targets)} rows: {printable(str(error))}",
            hint="use a number of folds, a splitter of scikit-learn, or (train rows, test rows) of each fold",
        ) from error
    if not split:
        raise ConfigError(f"cv={quoted(cv)} gives no fold")
    return [_fold(at, fold, len(targets)) for at, fold in enumerate(split)]


def _fold(at: int, fold: tuple[np.ndarray, ...], n: int) -> tuple[np.ndarray, np.ndarray]:
    for rows in fold:
        is_mask = rows.dtype == bool and rows.shape == (n,)
        is_rows = rows.dtype.kind in "iu" and rows.ndim == 1 and rows.size
        if not (is_mask and rows.any()) and not (is_rows and rows.min() >= 0 and rows.max() < n):
            raise ConfigError(
                f"fold {at} of cv has rows {quoted(rows)} of {n}",
                hint="give numbers of rows from 0 on, one at least to train and to test, or a mask of all",
            )
    a, b = (np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64) for rows in fold)
    return a, b


def _score(scorer: Any, name: str, result: ClientResult, estimator: Any, x: Tensor, y: np.ndarray) -> float:
    """A fold's score; NaN and a warning if there is none."""
    why = f"its training ended as {quoted(result.status)}"
    if result.is_usable:
        try:
            return float(scorer(estimator, x, y))
        except Exception as error:  # the other folds keep their scores, as in scikit-learn
            why = f"{type(error).__name__}: {error}"
    warnings.warn(f"fold {result.client} has no {name}: {printable(why)}", stacklevel=3)
    return math.nan


def _by_scikit_learn(
    selection: Any, estimator: Any, X: Any, targets: np.ndarray, split: tuple[Any, Any], scoring: Any
) -> CrossValidation:
    base: Any = require("sklearn.base", extra="sweeps", why="cross-validation")
    folds = _folds(selection, split[0], targets, split[1], base.is_classifier(estimator))
    try:
        found = selection.cross_validate(
            estimator, X, targets, cv=folds, scoring=scoring, return_estimator=True
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"scikit-learn refuses: {printable(' '.join(str(error).split()), 600)}") from error
    scores = {n.removeprefix("test_"): v for n, v in found.items() if n.startswith("test_")}
    return CrossValidation(scores, (), tuple(found["estimator"]), tuple(folds), None)


def _scorers(scoring: Any, estimator: Any) -> dict[str, Any]:
    """Scorers by name. Raises ConfigError for one that scikit-learn does not know."""
    metrics: Any = require("sklearn.metrics", extra="sweeps", why="cross-validation")
    if scoring is None or isinstance(scoring, str) or callable(scoring):
        named = {"score": scoring}
    elif not scoring or not isinstance(scoring, Mapping | list | tuple | set):
        raise ConfigError(
            f"scoring={quoted(scoring)}", hint="give a name, a function, a list or dict of these"
        )
    else:
        named = dict(scoring) if isinstance(scoring, Mapping) else {name: name for name in scoring}
    try:
        return {name: metrics.check_scoring(estimator, scoring=one) for name, one in named.items()}
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"scoring={quoted(scoring)} is not known to scikit-learn",
            hint="names: sklearn.metrics.get_scorer_names(); or a function (estimator, X, y) -> float",
        ) from error
