"""Keep every accelerator equally busy, and say how close to the best possible that came.

This page is the whole public surface: names and where they live. Each is imported on first use,
so that ``import evenload`` stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from evenload._version import __version__

if TYPE_CHECKING:
    from evenload._waiting import waiting
    from evenload.devices import Device, DevicePool, current_device
    from evenload.errors import EvenloadError
    from evenload.executor import Executor, ParallelResult, Task, gang, map, run_partitioned
    from evenload.executor.finished_runs import last_run
    from evenload.integrations.generation import LLM
    from evenload.pipeline import MultiDeviceImageEdit, Pipeline

_HOMES = {
    "LLM": "integrations.generation",
    "Device": "devices",
    "DevicePool": "devices",
    "EvenloadError": "errors",
    "Executor": "executor",
    "ParallelResult": "executor",
    "MultiDeviceImageEdit": "pipeline",
    "Pipeline": "pipeline",
    "Task": "executor",
    "current_device": "devices",
    "gang": "executor",
    "last_run": "executor.finished_runs",
    "map": "executor",
    "run_partitioned": "executor",
    "waiting": "_waiting",
}
_MODULES = (
    "balance",
    "clients",
    "datasets",
    "devices",
    "errors",
    "events",
    "executor",
    "frames",
    "futures",
    "joblib",
    "merkle",
    "pipeline",
    "report",
    "settings",
    "training",
)

__all__ = [  # noqa: RUF022 (sorted as `sorted` does)
    "Device",
    "DevicePool",
    "EvenloadError",
    "Executor",
    "LLM",
    "MultiDeviceImageEdit",
    "ParallelResult",
    "Pipeline",
    "Task",
    "__version__",
    "current_device",
    "gang",
    "last_run",
    "map",
    "run_partitioned",
    "waiting",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'evenload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
