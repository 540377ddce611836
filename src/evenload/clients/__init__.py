"""Train many small models at once: federated clients, ensembles, folds, sweeps. The result is the serial one.

    train(model, datasets, Recipe(optimizer=SGD(lr=0.1), epochs=1), strategy="auto")

Each name is imported on first use; all that computes needs the extra ``clients``.
"""

from typing import TYPE_CHECKING, Any

from evenload._lazy import lazy_names
from evenload._optional import require

if TYPE_CHECKING:
    from evenload.clients.algorithms.cohort import Cohort
    from evenload.clients.evaluation import evaluate, evaluate_each
    from evenload.clients.federation import FederatedResult, federate
    from evenload.clients.lora import Adapter, AdaptersResult, LoRA, adapters, save_adapter
    from evenload.clients.sweeps.cross_validation import CrossValidation, cross_validate
    from evenload.clients.sweeps.ensemble import Ensemble, ensemble
    from evenload.clients.sweeps.sweep import SweepResult, TrialResult, sweep
    from evenload.clients.trainer import Trainer
    from evenload.clients.training import train
    from evenload.clients.values.adaptive_optimizers import (
        Adadelta,
        Adagrad,
        Adamax,
        NAdam,
        RAdam,
        RMSprop,
        Rprop,
    )
    from evenload.clients.values.data import Rows
    from evenload.clients.values.keys import client_seed
    from evenload.clients.values.optimizer import SGD, Adam, AdamW
    from evenload.clients.values.own_optimizer import OwnOptimizer, TorchOptimizer
    from evenload.clients.values.parameter_groups import ParameterGroups
    from evenload.clients.values.recipe import (
        Constant,
        Cosine,
        CrossEntropy,
        EarlyStop,
        Exponential,
        Recipe,
        StepDecay,
        TorchSchedule,
    )
    from evenload.clients.values.result import ClientResult, TrainResult
    from evenload.clients.values.strategy import Strategy

_HOMES = {
    "algorithms.cohort": "Cohort",
    "evaluation": "evaluate evaluate_each",
    "federation": "federate FederatedResult",
    "lora": "Adapter adapters AdaptersResult LoRA save_adapter",
    "sweeps.cross_validation": "cross_validate CrossValidation",
    "sweeps.ensemble": "Ensemble ensemble",
    "sweeps.sweep": "sweep SweepResult TrialResult",
    "trainer": "Trainer",
    "training": "train",
    "values.adaptive_optimizers": "Adadelta Adagrad Adamax NAdam RAdam RMSprop Rprop",
    "values.data": "Rows",
    "values.keys": "client_seed",
    "values.optimizer": "Adam AdamW SGD",
    "values.own_optimizer": "OwnOptimizer TorchOptimizer",
    "values.parameter_groups": "ParameterGroups",
    "values.recipe": "Constant Cosine CrossEntropy EarlyStop Exponential Recipe StepDecay TorchSchedule",
    "values.result": "ClientResult TrainResult",
    "values.strategy": "Strategy",
}

_load, __dir__, __all__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError:
        require("torch", extra="clients", why="training clients")
        raise
