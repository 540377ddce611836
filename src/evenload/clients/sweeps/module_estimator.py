"""A trained module as scikit-learn sees one: ``predict``, ``predict_proba``, ``score``."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._optional import require
from evenload.clients.step.objective import outputs_of
from evenload.clients.tune.trainer import template_of

__all__ = ["ModuleEstimator"]

BATCH = 1024


class ModuleEstimator:
    """A trained module that scikit-learn's scorers can ask.

    has_classes  outputs [rows, classes] are logits; otherwise outputs are the numbers themselves
    targets      all targets, which say what classes there are
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        state: Mapping[str, Tensor],
        has_classes: bool,
        targets: np.ndarray,
        seed: int = 0,
    ):
        self.module = template_of(model, seed).eval()
        self.module.load_state_dict(state)
        self.has_classes = has_classes
        self._estimator_type = "classifier" if has_classes else "regressor"
        self._known = np.unique(targets) if has_classes else targets[:0]
        if has_classes:
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
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        x = torch.as_tensor(X)
        x = x.to(dtype) if x.is_floating_point() else x
        return torch.cat([outputs_of(self.module, part) for part in x.split(BATCH)])

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of each class; of two classes how much larger the second's is."""
        logits = self._logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [rows, classes]."""
        return self._logits(X).softmax(1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row, or the numbers."""
        if not self.has_classes:
            return self.outputs(X).double().numpy()
        return self._known[self._logits(X).argmax(1).numpy()]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R squared."""
        found, truth = self.predict(X), np.asarray(y)
        if self.has_classes:
            return float((found == truth).mean())
        left = ((truth - found.reshape(truth.shape)) ** 2).sum()
        return float(1 - left / ((truth - truth.mean(0)) ** 2).sum())

    def _logits(self, X: Any) -> Tensor:
        """Logits of the classes that occur."""
        return self.outputs(X).double()[:, torch.from_numpy(self._known.astype(np.int64))]
