"""Run work on every device: ``map``, ``Executor``, ``run_partitioned``. Imported by name, on first use."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names
from evenload._optional import refuse_windows

if TYPE_CHECKING:
    from evenload.executor.backends.ray.backend import Ray
    from evenload.executor.counted_work import torch_work
    from evenload.executor.decide.summary import DeviceShare, Summary
    from evenload.executor.executor import Executor
    from evenload.executor.finished_runs import Stats
    from evenload.executor.gangs.gang import gang
    from evenload.executor.gangs.ranks import Rank
    from evenload.executor.loop.results import Results
    from evenload.executor.mapping import map
    from evenload.executor.partitioned import ParallelResult, run_partitioned
    from evenload.executor.task.hybrid import Task

refuse_windows("running work")

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "backends.ray.backend": "Ray",
        "counted_work": "torch_work",
        "decide.summary": "DeviceShare Summary",
        "executor": "Executor",
        "finished_runs": "Stats",
        "gangs.gang": "gang",
        "gangs.ranks": "Rank",
        "loop.results": "Results",
        "mapping": "map",
        "partitioned": "ParallelResult run_partitioned",
        "task.hybrid": "Task",
    },
)
