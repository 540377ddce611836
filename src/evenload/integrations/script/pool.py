"""``multiprocessing.Pool`` with its own code, but for who of its workers gets which task.

The calls, callbacks, orders and errors, the start of processes and their end are the original's. In the
place of its two queues is a ``Team``; and of a map without a chunk size, in a pool whose workers stay, more
and smaller pieces are dealt.
"""

import importlib
import pickle
import queue
import types
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

from evenload.integrations.script.team import FAULT, Team, Work
from evenload.integrations.script.worker_ends import TIMES

original: Any = importlib.import_module("multiprocessing.pool")  # whose own parts nobody declares
PIECES = 512  # of a call at most, while it is not known how long its items take
PIECE_S = 0.002  # of work in a piece, once it is known
ATOMS = (bool, int, float, complex, str, bytes, type(None))
SEEN_TWICE = (list, tuple, range, str, bytes)  # can be looked at before the pool itself goes through it
MOST_LOOKED_AT = 1_000_000  # parts of items; beyond, the original's chunks stay
MAPPERS = (original.mapstar, original.starmapstar)


class _Piece(int):
    """The size of the pieces in which a call's items are dealt; ``chunk``: of the original's chunks."""

    chunk: int


class DealtPool(original.Pool):
    """A pool whose tasks are dealt by measured speed, and outlive the worker that they were sent to."""

    __module__, __qualname__ = original.Pool.__module__, original.Pool.__qualname__  # as scripts print it

    def _setup_queues(self) -> None:
        self._inqueue: Any = None

    def _repopulate_pool(self) -> None:
        if self._inqueue is None:  # the first time, when it is known how many workers there will be
            self._join_team()
        super()._repopulate_pool()

    def _join_team(self) -> None:
        from evenload.integrations.script.takeover import new_team

        team = new_team(self._processes, "multiprocessing.Pool")
        self._processes = min(self._processes, len(team.work.slots))
        self._inqueue, self._outqueue = team, team.results
        self._quick_put = partial(_put, team, self._cache)
        self._quick_get = partial(_next_result, team.results)
        self.Process = partial(_new_process, team)

    def _guarded_task_generation(self, result_job: int, func: Any, iterable: Any) -> Any:
        if hasattr(iterable, "__len__"):  # of imap; a map knows how many results it will have
            self._inqueue.totals[result_job] = len(iterable)
        return super()._guarded_task_generation(result_job, func, iterable)

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]

    def _map_async(
        self,
        func: Any,
        iterable: Any,
        mapper: Any,
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> Any:
        self._check_running()
        if chunksize is None:
            if not hasattr(iterable, "__len__"):
                iterable = list(iterable)
            chunk = -(-len(iterable) // (len(self._pool) * 4)) or 1
            chunksize = chunk
            is_open = len(self._pool) > 1 and self._maxtasksperchild is None  # which counts chunks
            if is_open and _travels_as_name(func) and _are_apart(iterable):
                item_s = self._inqueue.item_s.get(_name(func))
                piece = -(-len(iterable) // PIECES) if item_s is None else PIECE_S / max(item_s, 1e-9)
                chunksize = _Piece(min(max(piece, 1), chunk))
                chunksize.chunk = chunk
        return super()._map_async(func, iterable, mapper, chunksize, callback, error_callback)

    @staticmethod
    def _help_stuff_finish(inqueue: Team, task_handler: Any, size: int) -> None:
        inqueue.stop()


def _travels_as_name(func: Any) -> bool:
    """Whether a worker gets the function itself: an object is copied for each chunk, with its state."""
    if isinstance(func, partial):
        given = (*func.args, *func.keywords.values())
        return _travels_as_name(func.func) and all(type(one) in ATOMS for one in given)
    if isinstance(func, types.BuiltinFunctionType):
        return isinstance(func.__self__, types.ModuleType)
    return isinstance(func, types.FunctionType | type)


def _are_apart(items: Any) -> bool:
    """Whether no change of one item, by a call, could be seen in another of the same chunk.

    It could where two items hold the same object, which a chunk carries once. What may be gone through only
    once, such as a progress bar around a generator, is not looked at.
    """
    if type(items) not in SEEN_TWICE and not (type(items).__module__ == "numpy" and hasattr(items, "dtype")):
        return False
    if set(map(type, items)) <= set(ATOMS):
        return True
    seen, waiting, n_left = dict[int, Any](), [*items], MOST_LOOKED_AT
    while waiting and n_left:
        one, n_left = waiting.pop(), n_left - 1
        if type(one) in ATOMS or isinstance(one, PurePath):
            continue
        is_array = type(one).__module__ == "numpy" and hasattr(one, "dtype") and not one.dtype.hasobject
        if id(one) in seen or not (is_array or type(one) in (tuple, list, dict)):
            return False
        seen[id(one)] = one
        if not is_array:
            waiting += [*one, *one.values()] if type(one) is dict else one
    return not waiting


def _name(func: Any) -> str:
    return getattr(func, "__name__", "a call")


def _new_process(team: Team, context: Any, *, target: Any, args: tuple) -> Any:
    _, _, *arguments = args
    return team.new_process(context.Process, target, arguments, most=arguments[2])


def _put(team: Team, cache: Mapping[int, Any], task: Any) -> None:
    if task is None:
        return team.close()
    job, at, func, args, _ = task
    is_map = func in MAPPERS
    name = _name(args[0][0] if is_map else func)
    n_items = len(args[0][1]) if is_map else 1
    entry = cache.get(job)
    if isinstance(entry, original.MapResult):
        size = entry._chunksize
        n_together = max(1, getattr(size, "chunk", size) // size)
        n_left = -(-len(entry._value) // size) - at if isinstance(entry._value, list) else None
        work = Work((job, at), job, n_together, n_items, at // n_together, name, n_left)
    else:
        group = None if isinstance(entry, original.ApplyResult) else job
        n_left = team.totals[job] - at if job in team.totals else None
        work = Work((job, at), group, 1, n_items, at, name, n_left)
    return team.put(work, task)


def _next_result(results: queue.SimpleQueue) -> tuple[int, int, Any] | None:
    """Return the next result as the original reads it; one that cannot be unpickled is its task's error."""
    told = results.get()
    if told is None:
        return None
    kind, (job, at), value = told
    if kind == FAULT:
        return job, at, (False, value)
    try:
        return pickle.loads(memoryview(value)[TIMES.size :])
    except Exception as error:
        return job, at, (False, error)
