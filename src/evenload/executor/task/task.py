"""The user's function, or class whose instances hold a model, ready to be sent and to be called.

``Task`` is the description that the executor sends; ``Runner`` calls it on a device, in a worker process
or inline.
"""

import contextlib
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evenload._waiting import Meter
from evenload.errors import ConfigError
from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure, is_memory_error
from evenload.executor.task.item_context import CallerContext, ItemContexts
from evenload.executor.task.seeds import Seeding
from evenload.executor.transport.progress_cell import PACKING, ProgressCell

COMPARE_NS = 2_000_000  # after so long, all that items may have changed is compared before the next one
N_GOOD = 20  # batches after which a slightly larger one is tried


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A user's function or class, ready to be sent to workers.

    pickled    bytes and out-of-band buffers of ``fn``
    is_class   built once per worker, called for every item or batch, closed at the end
    device_as  argument of the constructor for the device, "" for its only one, None for no argument
    batch      call with lists of up to so many items
    may_split  a batch that failed may be tried again in parts
    ceiling    items per call that are known to fit into the memory of the device; None if not known
    is_spread  an item is a tuple of arguments; of a batch, the function gets a list for each argument
    is_tidied  what an item changes of its process is put back before the next
    caller     what items find of the context of the call
    is_seeded  an item comes in a pair with its seed, for all global generators
    """

    id: int
    name: str
    fn: Callable | type
    pickled: tuple[bytes, list] = field(repr=False, default=(b"", []))
    is_class: bool = False
    device_as: str | None = None
    batch: int | None = None
    may_split: bool = True
    ceiling: int | None = None
    is_spread: bool = False
    is_tidied: bool = False
    caller: CallerContext | None = None
    is_seeded: bool = False


class Runner:
    """A task built for one device."""

    def __init__(
        self, task: PreparedTask, device: Callable[[], Any], *, inline: bool = False, state: Any = None
    ):
        """Build the instance if the task is a class. Raises what its constructor raises.

        inline  exceptions are not pickled, and Ctrl-C is raised to the caller
        state   of the process (a ``ProcessState``), to be restored between items if the task says so
        """
        self._state = state if task.is_tidied else None
        self._compare_ns = 0
        self._travels = not inline
        self._lets_through = (KeyboardInterrupt,) if inline else ()
        self._task = task
        self._seeding = Seeding() if task.is_seeded else None
        self._contexts = ItemContexts(task.caller)
        self._call: Callable[[Any], Any] = task.fn
        self._ceiling = task.ceiling or task.batch
        self._n_good = 0  # batches of that size in a row
        if task.is_class:
            self._call = (
                _construct(task, device)
                if inline
                else self._contexts.build(partial(_construct, task, device))
            )
            if not callable(self._call):
                raise ConfigError(
                    f"{task.name} has no __call__", hint="give the class a method __call__(self, item)"
                )
        self._one = _spread(self._call) if task.is_spread else self._call

    def run(self, items: Iterable[Any], cell: ProgressCell, *, singly: bool = False) -> Answer:
        """Run the task on every item of the chunk that ``cell`` is at. An item's exception is its failure.

        ``singly``: one item per batch, to find the one that brings the worker down. An item that could not be
        unpickled is a Failure. Items that are read one by one are given one by one.
        """
        start_s = time.monotonic()
        answer = Answer([], {}, start_s, start_s, 0.0)
        if not self._travels:
            self._contexts.keep(copy_context())  # the caller's of now
        with Meter() as meter, self._seeding or contextlib.nullcontext():
            if self._task.batch is None:
                self._run_each(self._one, items, cell, answer)
            elif singly:
                self._run_each(self._call_one, items, cell, answer)
            else:
                self._run_batches(list(items), cell, answer, self._task.batch)
                answer.ceiling = self._ceiling if self._ceiling != self._task.batch else None
        cell.at(PACKING)
        answer.stop_s = time.monotonic()
        answer.busy_s = answer.stop_s - start_s
        answer.waited_s, answer.cpu_s = meter.waited_s, meter.cpu_s
        return answer

    def tidy(self) -> None:
        """Put back what the last item has changed of its process, and is known to have changed."""
        if self._state is not None and not self._state.is_untouched():
            self._restore(self._state)

    def _restore(self, state: Any) -> None:
        state.restore()
        self._compare_ns = time.monotonic_ns() + COMPARE_NS

    def close(self) -> None:
        """Close the instance, to free its memory. Raises what its ``close`` raises."""
        if self._task.is_class:
            call, self._call, self._one = self._call, _gone, _gone
            close = getattr(call, "close", None)
            if callable(close):
                self._contexts.fresh().run(close)

    def _run_each(self, call: Callable, items: Iterable[Any], cell: ProgressCell, answer: Answer) -> None:
        enter, values, state, fresh = cell.enter, answer.values, self._state, self._contexts.fresh
        seeding = self._seeding
        for position, item in enumerate(items):
            now = enter(position)
            if not now:
                answer.skipped = position
                return
            if type(item) is Failure:
                answer.failures[position] = item
                values.append(None)
                continue
            if state is not None and (now > self._compare_ns or not state.is_untouched()):
                self._restore(state)
                enter(position)
            try:
                if seeding is not None:
                    item = seeding.take(item)
                values.append(fresh().run(call, item))
            except self._lets_through:
                raise
            except BaseException as error:
                answer.failures[position] = Failure.of(error, travels=self._travels)
                values.append(None)

    def _run_batches(self, items: Sequence[Any], cell: ProgressCell, answer: Answer, most: int) -> None:
        todo = [(0, len(items))]
        while todo:
            start, stop = todo.pop()
            n = min(most, self._ceiling or most)
            if stop - start > n:
                todo.append((start + n, stop))
                stop = start + n
            if cell.is_dropped:
                answer.skipped = start
                return
            if self._state is not None:
                self._restore(self._state)
            cell.at(start)
            try:
                batch = items[start:stop]
                if self._seeding is not None:  # by its first item
                    batch = [self._seeding.take(item) for item in reversed(batch)][::-1]
                answer.values.extend(self._contexts.fresh().run(self._call_batch, batch))
                if stop - start == self._ceiling != most:
                    self._try_more(most)
            except self._lets_through:
                raise
            except BaseException as error:
                if stop - start > 1 and self._task.may_split:
                    self._split(error, start, stop, todo)
                    continue
                failure = Failure.of(error, travels=self._travels)
                answer.failures.update(dict.fromkeys(range(start, stop), failure))
                answer.values.extend([None] * (stop - start))

    def _try_more(self, most: int) -> None:
        """Raise the ceiling now and then, as other programs may have freed memory."""
        assert self._ceiling is not None
        self._n_good += 1
        if self._n_good >= N_GOOD:
            self._ceiling, self._n_good = min(most, self._ceiling + max(1, self._ceiling // 10)), 0

    def _call_one(self, item: Any) -> Any:
        return self._call_batch([item])[0]

    def _call_batch(self, batch: Sequence[Any]) -> list[Any]:
        columns = map(list, zip(*batch, strict=True)) if self._task.is_spread else (list(batch),)
        results = list(self._call(*columns))
        if len(results) != len(batch):
            raise ValueError(
                f"{self._task.name} returned {len(results)} results for a batch of {len(batch)} items"
            )
        return results

    def _split(self, error: BaseException, start: int, stop: int, todo: list[tuple[int, int]]) -> None:
        """Try a failed batch again: in halves if memory was too small, else one by one."""
        if is_memory_error(error):
            self._ceiling, self._n_good = (stop - start) // 2, 0
            error.__traceback__ = None  # its frames hold the tensors that did not fit
            torch = sys.modules.get("torch")
            if torch is not None:
                with contextlib.suppress(Exception):
                    torch.cuda.empty_cache()
            todo.append((start, stop))
        else:
            todo.extend((at, at + 1) for at in reversed(range(start, stop)))


def _construct(task: PreparedTask, device: Callable[[], Any]) -> Any:
    if task.device_as is None:
        return task.fn()
    return task.fn(**{task.device_as: device()}) if task.device_as else task.fn(device())


def _spread(call: Callable[..., Any]) -> Callable[[tuple], Any]:
    return lambda item: call(*item)


def _gone(*_: Any) -> Any:
    raise RuntimeError("this task was closed")


def load(spec: bytes, buffers: list | None, task_id: int) -> PreparedTask:
    """Read a task from a message of ``dump``. Raises what importing the function's module raises."""
    task = pickle.loads(spec)
    fn = pickle.loads(task.pickled[0], buffers=buffers or ())
    return replace(task, id=task_id, fn=fn, pickled=(b"", []))


def dump(task: PreparedTask) -> tuple[bytes, list]:
    """Write a task as a message for ``load``: bytes and buffers."""
    body, buffers = task.pickled
    return pickle.dumps(replace(task, fn=_gone, pickled=(body, [])), protocol=5), buffers
