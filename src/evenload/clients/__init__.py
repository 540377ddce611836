"""Train many small models at once: federated clients, ensembles, folds, sweeps. The result is the serial one.

    train(model, datasets, Recipe(optimizer=SGD(lr=0.1), epochs=1), strategy="auto")

Each name is imported on first use; all that computes needs the extra ``torch``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cohort import Cohort
    from .data import Rows
    from .evaluation import evaluate, evaluate_each
    from .federation import FederatedResult, federate
    from .optimizer import SGD, Adam, AdamW
    from .recipe import Recipe
    from .result import ClientResult, TrainResult
    from .schedule import Constant, Cosine, Exponential, StepDecay
    from .strategy import Strategy
    from .trainer import Trainer
    from .training import train

_HOMES = {
    "SGD": "optimizer",
    "Adam": "optimizer",
    "AdamW": "optimizer",
    "ClientResult": "result",
    "Cohort": "cohort",
    "Constant": "schedule",
    "Cosine": "schedule",
    "Exponential": "schedule",
    "FederatedResult": "federation",
    "Recipe": "recipe",
    "Rows": "data",
    "StepDecay": "schedule",
    "Strategy": "strategy",
    "TrainResult": "result",
    "Trainer": "trainer",
    "evaluate": "evaluation",
    "evaluate_each": "evaluation",
    "federate": "federation",
    "train": "training",
}
_WITHOUT_TORCH = {"cohort", "optimizer", "recipe", "schedule", "strategy"}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenload.clients' has no attribute {name!r}")
    if _HOMES[name] not in _WITHOUT_TORCH:
        from evenload._optional import require

        require("torch", extra="torch", why="training clients")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return list(__all__)
