"""Run work on every device: ``map``, ``Executor``, ``run_partitioned``. Imported by name, on first use."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names
from evenload._optional import refuse_windows

if TYPE_CHECKING:
    from evenload.executor.backends.ray.backend import Ray
    from evenload.executor.counted_work import torch_work
    from evenload.executor.decide.summary import DeviceShare, Summary
    from evenload.executor.executor import Executor
    from evenload.executor.gangs.gang import gang
    from evenload.executor.gangs.ranks import Rank
    from evenload.executor.loop.results import Results
    from evenload.executor.loop.stats import Stats
    from evenload.executor.mapping import map
    from evenload.executor.partitioned import ParallelResult, run_partitioned
    from evenload.executor.task.hybrid import Task

refuse_windows("running work")

_HOMES = {
    "DeviceShare": "decide.summary",
    "Executor": "executor",
    "ParallelResult": "partitioned",
    "Rank": "gangs.ranks",
    "Ray": "backends.ray.backend",
    "Results": "loop.results",
    "Stats": "loop.stats",
    "Summary": "decide.summary",
    "Task": "task.hybrid",
    "gang": "gangs.gang",
    "map": "mapping",
    "run_partitioned": "partitioned",
    "torch_work": "counted_work",
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
    "torch_work",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
