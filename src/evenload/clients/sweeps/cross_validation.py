"""Cross-validation: a training per fold, all in one fused step, with scikit-learn's splitters and scorers."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._arguments import suggests_arguments
from evenload._optional import require
from evenload.clients.step.objective import outputs_of
from evenload.clients.trainer import template_of
from evenload.clients.training import train
from evenload.clients.values.data import Rows, dtype_of
from evenload.clients.values.losses import loss_of
from evenload.clients.values.recipe import CrossEntropy, Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.errors import ConfigError, UnknownName, printable, quoted

Folds = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """The outcome of a cross-validation.

    scores      name of a scorer -> its value on the test rows of each fold, larger being better; NaN, with a
                warning, where the scorer raises or the fold's training diverged
    train_scores  the same on the train rows; empty unless asked for
    states      the trained state of each fold; empty for a scikit-learn estimator
    estimators  the trained estimator of each fold, with ``predict``
    folds       (train rows, test rows) of each
    plan        how the folds were trained; None for a scikit-learn estimator
    """

    scores: Mapping[str, np.ndarray]
    states: tuple[Mapping[str, Tensor], ...]
    estimators: tuple[Any, ...]
    folds: tuple[tuple[np.ndarray, np.ndarray], ...]
    plan: ClientPlan | None
    train_scores: Mapping[str, np.ndarray] = field(default_factory=dict)

    def mean(self, name: str | None = None) -> float:
        """The mean score over the folds, of the first scorer or of the one named. Raises UnknownName."""
        if name is not None and name not in self.scores:
            raise UnknownName("scorer", name, self.scores)
        return float(np.mean(self.scores[name or next(iter(self.scores))]))


@suggests_arguments
def cross_validate(
    model: Any,
    X: Any,
    y: Any,
    cv: Any = 5,
    *,
    recipe: Recipe | None = None,
    scoring: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    return_train_score: bool = False,
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
    sample_weight       [n], of a module: what each row's loss is multiplied by; scorers get it, too
    return_train_score  score each fold on its train rows as well
    Raises ConfigError, before training, for what cannot be split or scored; TaskError for a failing fold.
    """
    targets = _targets(X, y)
    selection: Any = require("sklearn.model_selection", extra="clients", why="cross-validation")
    if hasattr(model, "fit") and hasattr(model, "get_params"):
        if sample_weight is not None:
            raise ConfigError(
                "sample_weight of a scikit-learn estimator",
                hint="use sklearn.model_selection.cross_validate(params={'sample_weight': ...})",
            )
        return _by_scikit_learn(selection, model, X, targets, (cv, groups), (scoring, return_train_score))
    kind = kind_of(recipe := recipe or Recipe(), targets)
    folds = _folds(selection, cv, targets, groups, kind in ("classes", "yes_no"))
    x, y = _tensor("X", X), _tensor("y", y)
    make = functools.partial(ModuleEstimator, model, kind=kind, targets=targets, seed=seed)
    scorers, rows, weights = _scorers(scoring, make(None)), x, None
    if sample_weight is not None:
        weights, recipe = _weights(sample_weight, len(targets)), _weighted(recipe)
        rows = {"x": x, "weight": torch.from_numpy(weights)}
    datasets = [Rows(rows, y, fold) for fold, _ in folds]
    run = train(model, datasets, recipe, strategy=strategy, devices=devices, seed=seed)
    found = [(result, make(result.state)) for result in run]
    score = functools.partial(_scores, scorers, found, x=x, targets=targets, weights=weights)
    on_train, on_test = zip(*folds, strict=True)
    estimators = tuple(estimator for _, estimator in found)
    of_train = score(on_train) if return_train_score else {}
    return CrossValidation(score(on_test), tuple(run.states), estimators, tuple(folds), run.plan, of_train)


BATCH = 1024


def kind_of(recipe: Recipe, targets: np.ndarray) -> str:
    """What the outputs of a module are that is trained by ``recipe``: see ModuleEstimator."""
    if recipe.loss == "bce_with_logits":
        return "yes_no" if np.isin(targets, (0, 1)).all() else "shares"
    return "classes" if recipe.has_classes and targets.dtype.kind in "iub" else "numbers"


class ModuleEstimator:
    """A trained module that scikit-learn's scorers can ask.

    kind     what outputs are: "classes" (logits [rows, classes]), "yes_no" (logits of ones, [rows] or a
             column; several columns are labels of their own), "shares" (logits of numbers in [0, 1]),
             "numbers"
    targets  all targets, which say what classes there are
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        state: Mapping[str, Tensor] | None,
        kind: str,
        targets: np.ndarray,
        seed: int = 0,
    ):
        self.module = template_of(model, seed).eval()
        if state is not None:
            self.module.load_state_dict(state)
        self.kind = kind
        self.has_classes = kind in ("classes", "yes_no")
        self._has_labels = kind == "yes_no" and targets.ndim > 1 and targets.shape[1] > 1
        self._estimator_type = "classifier" if self.has_classes else "regressor"
        zero_one = np.array([0, 1], targets.dtype) if kind == "yes_no" else targets[:0]
        self._known = np.unique(targets) if kind == "classes" else zero_one
        if self.has_classes and not self._has_labels:
            self.classes_ = self._known

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks before it picks a scorer."""
        tags: Any = require("sklearn.utils", extra="clients", why="cross-validation")
        return tags.Tags(
            estimator_type=self._estimator_type,
            target_tags=tags.TargetTags(required=True),
            classifier_tags=tags.ClassifierTags() if self.has_classes else None,
            regressor_tags=None if self.has_classes else tags.RegressorTags(),
        )

    def fit(self, X: Any, y: Any) -> "ModuleEstimator":
        """Return itself: it is trained already."""
        return self

    @torch.no_grad()
    def outputs(self, X: Any) -> Tensor:
        """The module's outputs for rows ``X``."""
        dtype = dtype_of(self.module.parameters())
        x = torch.as_tensor(X)
        x = x.to(dtype) if x.is_floating_point() else x
        return torch.cat([outputs_of(self.module, part) for part in x.split(BATCH)])

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of each class; of two classes how much larger the second's is."""
        logits = self._logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [rows, classes]; of labels [rows, labels]."""
        if self._has_labels:
            return self.outputs(X).double().sigmoid().numpy()
        return self._logits(X).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row, or the numbers."""
        if not self.has_classes:
            found = self.outputs(X).double()
            return (found.sigmoid() if self.kind == "shares" else found).numpy()
        if self._has_labels:
            return (self.outputs(X) > 0).numpy().astype(self._known.dtype)
        return self._known[self._logits(X).argmax(1).numpy()]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R squared; of rows with weights, if given."""
        metrics: Any = require("sklearn.metrics", extra="clients", why="cross-validation")
        truth = np.asarray(y)
        found, weights = self.predict(X).reshape(truth.shape), {"sample_weight": sample_weight}
        if self.has_classes:
            return float(metrics.accuracy_score(truth, found, **weights))
        return float(metrics.r2_score(truth, found, multioutput="variance_weighted", **weights))

    def _logits(self, X: Any) -> Tensor:
        """Logits of the classes that occur."""
        if self.kind == "yes_no":
            logits = self.outputs(X).double().flatten()
            return torch.stack([torch.zeros_like(logits), logits], 1)
        return self.outputs(X).double()[:, torch.from_numpy(self._known.astype(np.int64))]


def _scores(
    scorers: Mapping[str, Any],
    found: Sequence[tuple[ClientResult, ModuleEstimator]],
    rows: Sequence[np.ndarray],
    x: Tensor,
    targets: np.ndarray,
    weights: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """The scores of each fold on its ``rows``."""
    parts = [
        (*one, x[at], targets[at], None if weights is None else weights[at])
        for one, at in zip(found, rows, strict=True)
    ]
    return {n: np.array([_score(fn, n, *part) for part in parts]) for n, fn in scorers.items()}


def _weights(given: Any, n: int) -> np.ndarray:
    """The weights of rows as float64 [n]. Raises ConfigError for others."""
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sample_weight={quoted(given)}", hint="give a number for each row") from error
    if weights.shape != (n,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ConfigError(
            f"sample_weight of shape {weights.shape} for {n} rows", hint="give a number of 0 or more for each"
        )
    return weights


def _weighted(recipe: Recipe) -> Recipe:
    """The recipe whose loss of each row is multiplied by its weight. Raises ConfigError if it has none."""
    others = ("objective", "step", "metrics", "augment")
    asked = [name for name in others if getattr(recipe, name)]
    if asked or isinstance(recipe.loss, CrossEntropy):
        raise ConfigError(
            f"sample_weight with {asked[0] if asked else 'a CrossEntropy of options'}",
            hint="use one of the losses by name, or a function that returns one loss per row",
        )
    per_row = loss_of(recipe)

    def objective(model: Any, batch: Any) -> Tensor:
        inputs, y = batch
        rows = per_row(outputs_of(model, inputs["x"]), y)
        return rows * inputs["weight"].to(rows)

    return replace(recipe, objective=objective)


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


def _score(
    scorer: Any,
    name: str,
    result: ClientResult,
    estimator: ModuleEstimator,
    x: Tensor,
    y: np.ndarray,
    weights: np.ndarray | None,
) -> float:
    """A fold's score; NaN and a warning if there is none."""
    weighted = {} if weights is None else {"sample_weight": weights}
    why = f"its training ended as {quoted(result.status)}"
    if result.is_usable:
        try:
            return float(scorer(estimator, x, y, **weighted))
        except Exception as error:  # the other folds keep their scores, as in scikit-learn
            why = f"{type(error).__name__}: {error}"
    warnings.warn(f"fold {result.client} has no {name}: {printable(why)}", stacklevel=3)
    return math.nan


def _by_scikit_learn(
    selection: Any,
    estimator: Any,
    X: Any,
    targets: np.ndarray,
    split: tuple[Any, Any],
    scored: tuple[Any, bool],
) -> CrossValidation:
    base: Any = require("sklearn.base", extra="clients", why="cross-validation")
    folds = _folds(selection, split[0], targets, split[1], base.is_classifier(estimator))
    try:
        found = selection.cross_validate(
            estimator,
            X,
            targets,
            cv=folds,
            scoring=scored[0],
            return_estimator=True,
            return_train_score=scored[1],
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"scikit-learn refuses: {printable(' '.join(str(error).split()), 600)}") from error
    scores, on_train = (
        {n.removeprefix(part): v for n, v in found.items() if n.startswith(part)}
        for part in ("test_", "train_")
    )
    return CrossValidation(scores, (), tuple(found["estimator"]), tuple(folds), None, on_train)


def _scorers(scoring: Any, estimator: Any) -> dict[str, Any]:
    """Scorers by name. Raises ConfigError for one that scikit-learn does not know."""
    metrics: Any = require("sklearn.metrics", extra="clients", why="cross-validation")
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
