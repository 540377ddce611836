"""loky's executor, which is what ``joblib.Parallel`` runs on, but for who of its workers gets which batch.

Backends, batches, memory maps, pickling, the start of workers and their end when idle are the originals'. In
the place of its two queues is a ``Team``, as in ``process_executor``.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from evenload.errors import WorkerLost
from evenload.integrations.script.process_executor import CallResults, DealtCalls, DealtProcess
from evenload.integrations.script.team import Member

BATCH_S = (0.02, 0.2)
"""Least and most seconds of a batch of ``joblib.Parallel``: a tenth of its own."""


def take_over(module: ModuleType) -> None:
    """Have executors of ``module`` be dealt that this process, the script's own, makes from now on."""
    kind: Any = module.__dict__["ProcessPoolExecutor"]
    kind._setup_queues = partial_method(_set_up, kind._setup_queues, module)
    kind._adjust_process_count = partial_method(_adjust, kind._adjust_process_count)


def smaller_batches(module: ModuleType) -> None:
    """Have ``joblib.Parallel`` send what takes a tenth of the time that it would send at once."""
    backend: Any = module.__dict__["LokyBackend"]
    backend.MIN_IDEAL_BATCH_DURATION, backend.MAX_IDEAL_BATCH_DURATION = BATCH_S


def partial_method(ours: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """Return ``ours`` with its ``first`` arguments, as a method of a class."""
    return lambda self, *arguments, **named: ours(*first, self, *arguments, **named)


def _set_up(original: Any, module: Any, executor: Any, jobs: Any, results: Any, **how: Any) -> None:
    from evenload.integrations.script.takeover import is_script, new_team

    original(executor, jobs, results, **how)
    if not is_script():
        return
    dumps = sys.modules[module.Queue.__module__].__dict__["dumps"]
    starter = executor._context = _Starter(executor._context, executor._processes, CallResults(module))
    lost = type("JobLost", (WorkerLost, module.TerminatedWorkerError), {"__module__": __name__})
    starter.team = new_team(
        executor._max_workers,
        "joblib.Parallel",
        results=starter.results,
        on_end=starter.replace,
        lost=lost,
        dumps=(partial(dumps, reducers=jobs), partial(dumps, reducers=results)),
    )
    executor._call_queue = _Batches(starter.team, executor._work_ids, executor._call_queue)
    executor._result_queue = SimpleNamespace(_reader=starter.results, close=lambda: None)


def _adjust(original: Any, executor: Any) -> None:
    if isinstance(executor._context, _Starter):
        from evenload.integrations.script.takeover import resize_team

        executor._max_workers = resize_team(executor._context.team, executor._max_workers)
    original(executor)


class _Batches(DealtCalls):
    """The executor's queue; a None in it has one worker leave."""

    def put(self, call: Any, block: bool = True, timeout: float | None = None) -> None:
        if call is None:
            return self._team.leave_last()
        return super().put(call, block, timeout)


class _Starter:
    """The executor's context, whose processes are of a team."""

    team: Any

    def __init__(self, context: Any, processes: dict[int, Any], results: CallResults):
        self._context, self._processes, self.results = context, processes, results
        self._how: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def Process(self, target: Any, args: tuple, **more: Any) -> DealtProcess:
        """Return a worker that is not started yet."""
        self._how = target, args, more
        _, _, *arguments = args
        make = partial(self._context.Process, **more)
        return DealtProcess(self.team.new_process(make, target, arguments, None), self)

    def replace(self, member: Member) -> bool:
        """Start another worker in the place of one that has died, or say that workers cannot begin.

        False: loky itself has ended it, and forgotten it before.
        """
        pid = member.process.pid
        is_kept = pid in self._processes
        if not member.is_ready:
            self.results.set_broken()
        elif is_kept and not self.team.is_closing:
            target, (*args, _, depth), more = self._how
            exit_lock = self._context.BoundedSemaphore(1)
            exit_lock.acquire()
            worker: Any = self.Process(target, (*args, exit_lock, depth), **more)
            worker._worker_exit_lock = exit_lock
            worker.start()
            self._processes[worker.pid] = worker
            self._processes.pop(pid, None)
        return is_kept
