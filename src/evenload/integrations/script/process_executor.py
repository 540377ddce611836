"""``concurrent.futures.ProcessPoolExecutor`` with its own code, but for who of its workers gets which call.

In the place of its two queues is a ``Team``. A worker that dies is replaced, and its call made once more; as
in the original, the executor is broken if workers cannot even begin.
"""

import importlib
import os
import pickle
import queue
from functools import partial
from types import SimpleNamespace
from typing import Any

from evenload.errors import WorkerLost
from evenload.integrations.script.team import FAULT, Member, Team, Work
from evenload.integrations.script.worker_ends import TIMES

original: Any = importlib.import_module("concurrent.futures.process")  # whose own parts nobody declares


class CallLost(WorkerLost, original.BrokenProcessPool):
    """An error for a call whose workers died: only it is lost, others go on."""


class DealtExecutor(original.ProcessPoolExecutor):
    """An executor whose calls are dealt by measured speed, and outlive the worker that they were sent to."""

    __module__, __qualname__ = original.ProcessPoolExecutor.__module__, "ProcessPoolExecutor"

    def __init__(self, *arguments: Any, **named: Any):
        from evenload.integrations.script.takeover import new_team

        super().__init__(*arguments, **named)
        results = CallResults(original)
        starter = self._starter = _Starter(self, results)
        kind = "concurrent.futures.ProcessPoolExecutor"
        team = new_team(self._max_workers, kind, results=results, on_end=starter.replace, lost=CallLost)
        starter.team = team
        self._max_workers = min(self._max_workers, len(team.work.slots))
        self._call_queue = DealtCalls(team, self._work_ids, self._call_queue)
        self._result_queue = SimpleNamespace(_reader=results, close=lambda: None)

    def _spawn_process(self) -> None:
        self._starter.start()


class _Starter:
    """A starter of an executor's workers, also when the executor itself is gone, and calls are left."""

    team: Team

    def __init__(self, executor: Any, results: "CallResults"):
        self.results, self._processes = results, executor._processes
        self._make, self._most = executor._mp_context.Process, executor._max_tasks_per_child
        self._arguments = executor._initializer, executor._initargs, self._most

    def start(self) -> None:
        process = self.team.new_process(self._make, original._process_worker, self._arguments, self._most)
        process.start()
        self._processes[process.pid] = DealtProcess(process, self)

    def replace(self, member: Member) -> bool:
        """Start another worker in the place of one that has died, or say that workers cannot begin."""
        if not member.is_ready:
            self.results.set_broken()
        elif not self.team.is_closing:
            self.start()
            self._processes.pop(member.process.pid, None)
        return True


class DealtProcess:
    """A worker's process as the executor's manager sees it: its end is no news, unless all is broken.

    starter  has a ``team``, and its ``results``
    """

    def __init__(self, process: Any, starter: Any):
        self._process, self._starter = process, starter
        self.sentinel = os.dup(starter.results.broken_fd)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def terminate(self) -> None:
        """End it by the script's own wish: nobody is to take its place."""
        self._starter.team.stop()
        self._starter.results.set_broken()
        self._process.terminate()

    def kill(self) -> None:
        """End it at once, as ``terminate``."""
        self.terminate()
        self._process.kill()

    def __del__(self) -> None:
        os.close(self.sentinel)


class DealtCalls:
    """The executor's queue of calls, which are dealt. ``replaced``: the original, which knows what to do."""

    def __init__(self, team: Team, to_come: "queue.Queue[int]", replaced: Any):
        self._team, self._to_come, self._replaced = team, to_come, replaced
        self._reader = SimpleNamespace(close=team.stop)
        self._terminate_broken = team.stop  # since Python 3.12

    def full(self) -> bool:
        return self._team.n_waiting >= self._replaced._maxsize

    def put(self, call: Any, block: bool = True, timeout: float | None = None) -> None:
        fn, n_items = call.fn, 1
        if isinstance(fn, partial) and fn.func.__name__ == "_process_chunk":
            fn, n_items = fn.args[0], len(call.args[0])
        elif type(fn).__name__ == "BatchedCalls":  # of joblib
            (fn, _, _), n_items = fn.items[0], len(fn.items)
        key = (call.work_id, 0)
        name = getattr(fn, "__name__", "a call")
        try:
            self._team.put(Work(key, None, 1, n_items, 0, name, 1 + self._to_come.qsize()), call)
        except Exception as error:
            self._replaced._on_queue_feeder_error(error, call)

    def put_nowait(self, call: None) -> None:
        self._team.close()

    def close(self) -> None:
        """Have the workers leave, also one that has just taken another's place."""
        self._team.close()

    def join_thread(self) -> None:
        """Nothing: the team ends with its workers."""


class CallResults(queue.SimpleQueue):
    """The results of calls, as a pipe that the executor's manager waits at.

    module     of the executor
    broken_fd  readable when workers cannot begin
    """

    def __new__(cls, module: Any) -> "CallResults":
        return super().__new__(cls)

    def __init__(self, module: Any):
        self._item = module._ResultItem
        self._out, self._in = os.pipe()
        self.broken_fd, self._broken = os.pipe()

    def fileno(self) -> int:
        return self._out

    def put(self, told: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(told)
        os.write(self._in, b"!")

    def set_broken(self) -> None:
        os.write(self._broken, b"!")

    def recv(self) -> Any:
        """Return the next result, or the process id of a worker that leaves. Raises what unpickling does."""
        os.read(self._out, 1)
        kind, key, value = self.get()
        if kind == FAULT:
            return self._item(key[0], exception=value)
        return pickle.loads(memoryview(value)[TIMES.size :])

    def __del__(self) -> None:
        for fd in (self._out, self._in, self.broken_fd, self._broken):
            os.close(fd)
