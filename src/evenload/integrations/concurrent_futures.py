"""``evenload.futures.Executor``: a ``concurrent.futures.Executor`` whose jobs are dealt over devices.

Tested with the cases of CPython 3.11's own suite; ``map`` has the ``buffersize`` of Python 3.14.
"""

import collections
import functools
import itertools
import multiprocessing
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from functools import partial
from typing import Any, TypeVar

from evenload._arguments import whole
from evenload.errors import ConfigError, ExecutorClosed
from evenload.executor import Executor as DeviceExecutor
from evenload.executor.task.prepare import pickle_callable
from evenload.integrations.job_future import JobFuture, NoWorker, results_in_order
from evenload.integrations.worker_count import limited

R = TypeVar("R")

_open: "weakref.WeakSet[_JobExecutor]" = weakref.WeakSet()
_is_ending = threading.Event()


class Executor(futures.Executor):
    """An executor of jobs on devices, for programs that are written for ``concurrent.futures``.

    devices      which, as for ``evenload.map``: "all", "cuda:0,1", "cpu*4", a number
    max_workers  at most so many of them; where "all" means CPU cores, so many
    initializer  called with ``initargs`` in each worker before its first job
    more         ``backend``, ``events``, ``call_timeout_s`` and the others of ``evenload.Executor``

    A job that is free goes to the next free device, is never run twice, and fails with what it raised, whose
    ``__cause__`` tells device and traceback. A job whose worker died fails with a BrokenProcessPool; the
    worker is replaced, and the others go on. Raises ConfigError or NoUsableDevice.
    """

    def __init__(
        self,
        devices: Any = "all",
        *,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        **more: Any,
    ):
        if type(max_workers) is int and max_workers < 1:
            raise ConfigError("max_workers must be greater than 0", hint="leave it out for all devices")
        if max_workers is not None:
            whole("max_workers", max_workers, least=1)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        backend = more.get("backend", "process")
        begin = None if initializer is None else partial(initializer, *initargs)
        if backend == "process":
            key = bytes(multiprocessing.current_process().authkey)
            begin = partial(_begin_worker, key, None if begin is None else pickle_callable(begin))
        more.setdefault("max_worker_deaths", 1)
        self._jobs = _JobExecutor(limited(devices, max_workers, backend), initializer=begin, **more)
        self._pending: set[futures.Future] = set()
        _open.add(self._jobs)
        _finish_before_the_end()

    @property
    def devices(self) -> Any:
        """The devices that take part now."""
        return self._jobs.devices

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> "futures.Future[R]":
        """Run ``fn(*args, **kwargs)`` on the device that is free next.

        A future among the arguments stands for its result, as in ``evenload.Executor.submit``. Raises
        RuntimeError after ``shutdown``, BrokenProcessPool if no device could run anything, ConfigError if
        ``fn`` cannot be sent to a worker.
        """
        if _is_ending.is_set():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        if self._jobs.broken is not None:
            raise self._jobs.broken
        try:
            future = self._jobs.submit(fn, *args, **kwargs)
        except ExecutorClosed as error:
            raise RuntimeError("cannot schedule new futures after shutdown") from error
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """``map`` as ``concurrent.futures`` has it: it begins at once, and gives results in order.

        timeout     seconds from now until a result must be there; else TimeoutError
        chunksize   arguments that are sent together
        buffersize  at most so many results wait to be fetched; by default all iterables are read at once

        ``evenload.Executor.map`` finds chunk sizes by itself, and deals by what items cost on each device.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        end_s = None if timeout is None else time.monotonic() + timeout
        arguments: Iterator[Any] = zip(*iterables, strict=False)
        if chunksize > 1:
            arguments = iter(lambda read=arguments: list(itertools.islice(read, chunksize)), [])
            begun = map(partial(self.submit, _run_chunk, fn), arguments)
        else:
            begun = (self.submit(fn, *one) for one in arguments)
        jobs = collections.deque(begun if buffersize is None else itertools.islice(begun, buffersize))
        results = results_in_order(jobs, end_s, iter(()) if buffersize is None else begun)
        return itertools.chain.from_iterable(results) if chunksize > 1 else results

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and end the workers when those that were submitted are done.

        wait            until then
        cancel_futures  cancel those that have not begun
        """
        if cancel_futures:
            for future in tuple(self._pending):
                future.cancel()
        self._jobs.close(wait=wait)

    def finish_run(self) -> None:
        """Wait for all jobs, and end their run: ``evenload.last_run()`` is about them. More may follow."""
        self._jobs.finish_calls(wait=True)

    def drop(self) -> None:
        """End the workers at once, whatever they do: what is not done is cancelled, or fails."""
        self._jobs.close(cancel=True)


class _JobExecutor(DeviceExecutor):
    """An executor whose futures are of ``concurrent.futures``; they keep it alive, and nothing else does.

    broken  why no device can run anything
    """

    broken: NoWorker | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._calls().submit(fn, args, kwargs, self._run_of_calls, partial(JobFuture, self))


def _begin_worker(key: bytes, initializer: tuple[bytes, list] | None) -> None:
    """In the worker: trust the ``multiprocessing`` managers of the executor's process, and begin.

    initializer  pickled, as its arguments may be of these managers
    """
    multiprocessing.current_process().authkey = key
    if initializer is not None:
        body, buffers = initializer
        pickle.loads(body, buffers=buffers)()


def _run_chunk(fn: Callable[..., Any], chunk: list[tuple]) -> list[Any]:
    """In the worker: one call for each tuple of arguments."""
    return [fn(*arguments) for arguments in chunk]


@functools.cache
def _finish_before_the_end() -> None:
    """Have all jobs finished before the interpreter ends, as those of the standard library are."""
    threading._register_atexit(_finish_all)  # pyrefly: ignore


def _finish_all() -> None:
    _is_ending.set()
    for jobs in tuple(_open):
        jobs.close()
