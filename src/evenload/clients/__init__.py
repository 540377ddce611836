"""Train many small models at once: federated clients, ensembles, folds, sweeps. The result is the serial one.

    train(model, datasets, Recipe(optimizer=SGD(lr=0.1), epochs=1), strategy="auto")

Each name is imported on first use; all that computes needs the extra ``torch``.
"""

from typing import TYPE_CHECKING, Any

from evenload._lazy import lazy_names
from evenload._optional import require

if TYPE_CHECKING:
    from evenload.clients.algorithms.cohort import Cohort
    from evenload.clients.evaluation import evaluate, evaluate_each
    from evenload.clients.federation import FederatedResult, federate
    from evenload.clients.training import train
    from evenload.clients.tune.trainer import Trainer
    from evenload.clients.values.data import Rows
    from evenload.clients.values.optimizer import SGD, Adam, AdamW
    from evenload.clients.values.recipe import Recipe
    from evenload.clients.values.result import ClientResult, TrainResult
    from evenload.clients.values.schedule import Constant, Cosine, Exponential, StepDecay
    from evenload.clients.values.strategy import Strategy

_HOMES = {
    "Adam": "values.optimizer",
    "AdamW": "values.optimizer",
    "ClientResult": "values.result",
    "Cohort": "algorithms.cohort",
    "Constant": "values.schedule",
    "Cosine": "values.schedule",
    "Exponential": "values.schedule",
    "FederatedResult": "federation",
    "Recipe": "values.recipe",
    "Rows": "values.data",
    "SGD": "values.optimizer",
    "StepDecay": "values.schedule",
    "Strategy": "values.strategy",
    "TrainResult": "values.result",
    "Trainer": "tune.trainer",
    "evaluate": "evaluation",
    "evaluate_each": "evaluation",
    "federate": "federation",
    "train": "training",
}
_WITHOUT_TORCH = {
    "algorithms.cohort",
    "values.optimizer",
    "values.recipe",
    "values.schedule",
    "values.strategy",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "ClientResult",
    "Cohort",
    "Constant",
    "Cosine",
    "Exponential",
    "FederatedResult",
    "Recipe",
    "Rows",
    "StepDecay",
    "Strategy",
    "TrainResult",
    "Trainer",
    "evaluate",
    "evaluate_each",
    "federate",
    "train",
]


_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES and _HOMES[name] not in _WITHOUT_TORCH:
        require("torch", extra="torch", why="training clients")
    return _load(name)
