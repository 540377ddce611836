"""A trained module as scikit-learn sees one: ``predict``, ``predict_proba``, ``score``."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._optional import require
from evenload.clients.step.objective import outputs_of
from evenload.clients.trainer import template_of
from evenload.clients.values.data import dtype_of
from evenload.clients.values.recipe import Recipe

__all__ = ["ModuleEstimator", "kind_of"]

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
        tags: Any = require("sklearn.utils", extra="sweeps", why="cross-validation")
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
        found, truth = self.predict(X), np.asarray(y)
        w = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight)
        if self.has_classes:
            is_right = found.reshape(truth.shape) == truth
            return float(
                np.average(is_right.all(1) if self._has_labels else is_right.reshape(len(w)), weights=w)
            )
        w = w.reshape(-1, *[1] * (truth.ndim - 1))
        left = (w * (truth - found.reshape(truth.shape)) ** 2).sum()
        mean = (w * truth).sum(0) / w.sum()
        return float(1 - left / (w * (truth - mean) ** 2).sum())

    def _logits(self, X: Any) -> Tensor:
        """Logits of the classes that occur."""
        if self.kind == "yes_no":
            logits = self.outputs(X).double().flatten()
            return torch.stack([torch.zeros_like(logits), logits], 1)
        return self.outputs(X).double()[:, torch.from_numpy(self._known.astype(np.int64))]
