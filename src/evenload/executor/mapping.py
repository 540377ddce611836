"""``evenload.map``: an executor for one call."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evenload._arguments import suggests_arguments
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Policy
from evenload.events import EventLog, RunFinished, RunStarted
from evenload.executor.backends import BackendSettings
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.loop.results import Results
from evenload.executor.run.map_options import MapOptions, as_items
from evenload.executor.task.hybrid import Task as HybridTask
from evenload.executor.task.prepare import name_of


@suggests_arguments
def map(  # the built-in's name on purpose: evenload.map
    fn: Callable[..., Any] | type | HybridTask,
    items: Iterable[Any],
    *more: Iterable[Any],
    strict: bool = False,
    devices: DeviceSpec = "all",
    policy: str | Policy = "measured",
    ordered: bool = True,
    batch: int | None = None,
    cost: Callable[..., float] | Sequence[float] | bool | None = None,
    on_error: str = "raise",
    backend: str | BackendSettings = "process",
    balancer: LoadBalancer | None = None,
    repeatable: bool = True,
    timeout_s: float | None = None,
    retries: int = 0,
    look_ahead: int | None = None,
    look_ahead_bytes: int | None = None,
    total: int | None = None,
    shared: Mapping[str, Any] | None = None,
    max_worker_deaths: int = 2,
    shared_memory_limit: int | str | None = None,
    memory_limit: int | str | None = None,
    start: str | None = None,
    events: EventLog | None = None,
    echo: bool = True,
    stage: str = "map",
    journal: str | os.PathLike | None = None,
    on_change: str = "refuse",
    fresh: bool | int = False,
    work: Mapping[str, float] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Results[Any]:
    """Run ``fn`` on every item over all devices; iterate over what this returns to get the results in order.

    With ``more`` iterables, ``fn`` gets an argument from each, as with the built-in ``map``.

    Workers start with the first result asked for and end with the last; ``Executor`` keeps them for more
    calls. The arguments are those of ``Executor`` and ``Executor.map``. Raises ConfigError, UnknownName,
    or NoUsableDevice at once, TaskError for an item that failed (unless ``on_error="return"``). ``events`` is
    told the whole of a run, from RunStarted to RunFinished.
    """
    asked_s, options = time.monotonic(), MapOptions.among(locals())
    executor = Executor(
        devices,
        policy=policy,
        backend=backend,
        events=events,
        echo=echo,
        max_worker_deaths=max_worker_deaths,
        shared_memory_limit=shared_memory_limit,
        memory_limit=memory_limit,
        start=start,
    )
    if more:
        items, options = as_items((items, *more), options, strict=strict)
    results = executor.map_with(fn, items, options, asked_s=asked_s)
    total = results.total
    call_s = time.monotonic() - asked_s

    def begin() -> None:
        if events is not None:
            began_s = max(0.0, events.now() - call_s)
            facts: dict[str, Any] = {"backend": str(backend), "policy": str(policy)}
            facts |= {"item_work": {stage: options.work}} if options.work else {}
            known = (total, executor.devices.facts(), facts)
            events.emit(RunStarted(began_s, name_of(fn), time.time() - call_s, *known))

    def finish(status: str, over_s: float) -> None:
        ended_s = 0.0 if events is None else events.now() - over_s
        executor.close()
        if events is not None:
            events.emit(RunFinished(ended_s, status))

    results.around(begin, finish)
    return results
