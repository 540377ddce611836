"""``evenload exec --observe``: measures a script's own pools, which are left as they are.

Each worker notes the times of its tasks in a file, a line a task; the loop that it runs is the original's.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

from evenload.integrations.script.measured_work import Done, MeasuredWork

PAUSE_S = 0.05  # without a task that runs: the script does something else


def observe(path: str, loop: str, module: ModuleType) -> None:
    """Have the workers of ``module``, whose loop has the name ``loop``, note in ``path`` what they do."""
    setattr(module, loop, partial(_run, path, getattr(module, loop)))


def _run(path: str, loop: Callable[..., Any], tasks: Any, results: Any, *arguments: Any) -> Any:
    """In the worker: be the original's loop, with eyes on what it takes and gives."""
    told = _Told(path)
    return loop(_Watched(tasks, told), _Watched(results, told), *arguments)


class _Told:
    """The notes of one worker, about the task that it is at."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._task: tuple[str, int, float] | None = None

    def begin(self, task: Any) -> None:
        fn, args = (task.fn, task.args) if hasattr(task, "fn") else task[2:4]
        n_items = 1
        if getattr(fn, "__name__", "") in ("mapstar", "starmapstar"):
            fn, items = args[0]
            n_items = len(items)
        elif isinstance(fn, partial) and fn.args:  # of map, with a size of chunks
            fn, n_items = fn.args[0], len(args[0])
        self._task = getattr(fn, "__name__", "a call"), n_items, time.monotonic()

    def end(self) -> None:
        if self._task is not None:
            line = json.dumps([os.getpid(), *self._task, time.monotonic()])
            os.write(self._file, f"{line}\n".encode())
            self._task = None


class _Watched:
    """A queue that is the original's in everything, and tells what passes."""

    def __init__(self, queue: Any, told: _Told):
        self._queue, self._told = queue, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *arguments: Any, **named: Any) -> Any:
        task = self._queue.get(*arguments, **named)
        if task is not None:
            self._told.begin(task)
        return task

    def put(self, result: Any) -> None:
        self._told.end()
        self._queue.put(result)


def works_of(lines: Iterable[bytes]) -> list[MeasuredWork]:
    """Return what the lines of the workers tell, as one pool's work."""
    done = sorted((json.loads(line) for line in lines), key=lambda one: one[3])
    if not done:
        return []
    pids = dict.fromkeys(one[0] for one in done)
    slots = {pid: f"cpu:{place}" for place, pid in enumerate(pids)}
    work, last_s = MeasuredWork("observed", tuple(slots.values())), 0.0
    for at, (pid, name, n_items, begun_s, over_s) in enumerate(done):
        if begun_s > last_s + PAUSE_S:
            work.pause()
        work.add(Done(name, slots[pid], n_items, at, begun_s, begun_s, over_s))
        last_s = max(last_s, over_s)
    return [work]
