"""The future of a job as ``concurrent.futures`` has it: it fails with what the job raised."""

import collections
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pickle import PicklingError
from typing import Any

from evenload.errors import EvenloadError, NoUsableDevice, ResultNotSendable, TaskError, WorkerLost
from evenload.executor.submitted import CallFuture


class JobLost(WorkerLost, BrokenProcessPool):
    """An error for a job whose worker died: WorkerLost, and a BrokenProcessPool for whoever expects that.

    Only this job is lost: the worker is replaced, and others go on.
    """


class JobNotSendable(ResultNotSendable, PicklingError):
    """An error for a job whose arguments or result cannot be pickled or unpickled; a PicklingError, too."""


class NoWorker(NoUsableDevice, BrokenProcessPool):
    """An error for a job that no device could run, such as one whose initializer raised."""


KINDS: dict[type[EvenloadError], type[EvenloadError]] = {
    WorkerLost: JobLost,
    ResultNotSendable: JobNotSendable,
    NoUsableDevice: NoWorker,
}


class JobFuture(CallFuture[Any]):
    """A future of a job, which keeps its executor alive until it is done."""

    def __init__(self, executor: Any, is_bringer: Callable[[], bool]):
        super().__init__(is_bringer)
        self._executor = executor
        self.add_done_callback(_let_go)

    def set_exception(self, exception: BaseException | None) -> None:
        if exception is not None:
            exception = as_raised(exception)
            if isinstance(exception, NoWorker):
                self._executor.broken = exception
        super().set_exception(exception)


def _let_go(future: Any) -> None:
    future._executor = None


def as_raised(error: BaseException) -> BaseException:
    """Return what the job raised, with the TaskError as its cause, which tells device and traceback.

    Other errors of evenload become ones that are of ``concurrent.futures``, too.
    """
    raised = error.__cause__
    if type(error) is TaskError and raised is not None:
        error.__cause__ = None  # it is the other way round now
        raised.__cause__ = error
        return raised
    for kind, made in KINDS.items():
        if isinstance(error, kind):
            return _made_a(made, error)
    return error


def _made_a(kind: type[EvenloadError], error: EvenloadError) -> EvenloadError:
    made = kind.__new__(kind)
    Exception.__init__(made, *error.args)
    made.__dict__.update(error.__dict__)
    return made


def results_in_order(
    jobs: "collections.deque[Future]", end_s: float | None, more: Iterator[Future]
) -> Iterator[Any]:
    """Yield the results of ``jobs``, each before the time ``end_s``; one of ``more`` is begun for each.

    Whoever leaves it early cancels what has not begun.
    """
    try:
        while jobs:
            jobs.extend(itertools.islice(more, 1))
            yield _result_or_cancel(jobs.popleft(), end_s)
    finally:
        for job in jobs:
            job.cancel()


def _result_or_cancel(job: Future, end_s: float | None) -> Any:
    try:
        try:
            return job.result(None if end_s is None else end_s - time.monotonic())
        finally:
            job.cancel()  # has no effect on one that is done
    finally:
        del job  # a traceback must not hold on to it
