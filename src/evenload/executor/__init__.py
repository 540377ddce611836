"""Run work on every device: ``map``, ``Executor``, ``run_partitioned``. Imported by name, on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends.ray import Ray
    from .executor import Executor, Stats
    from .gangs import gang
    from .hybrid import Task
    from .mapping import map
    from .partitioned import ParallelResult, run_partitioned
    from .ranks import Rank
    from .results import Results
    from .summary import DeviceShare, Summary

_HOMES = {
    "DeviceShare": "summary",
    "Executor": "executor",
    "ParallelResult": "partitioned",
    "Rank": "ranks",
    "Ray": "backends.ray",
    "Results": "results",
    "Stats": "executor",
    "Summary": "summary",
    "Task": "hybrid",
    "gang": "gangs",
    "map": "mapping",
    "run_partitioned": "partitioned",
}

__all__ = [
    "DeviceShare",
    "Executor",
    "ParallelResult",
    "Rank",
    "Ray",
    "Results",
    "Stats",
    "Summary",
    "Task",
    "gang",
    "map",
    "run_partitioned",
]


def __getattr__(name: str) -> Any:
    # A worker imports this package too, and needs none of these.
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
