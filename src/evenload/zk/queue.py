"""A queue of statements to prove in this process: priorities, cancelling, time-outs."""

import itertools
import os
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import PriorityQueue, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from evenload.errors import ConfigError, ExecutorClosed, TaskTimeout

if TYPE_CHECKING:
    from evenload.zk.worker import ProofWorker, ProvedStatement, ProveRequest


class SpawnsWorkers(Protocol):
    """A source of the workers of a queue, e.g. a ``Prover``."""

    def spawn_worker(self) -> "ProofWorker": ...


class ProofJob:
    """A submitted request. ``result()`` waits; ``cancel()`` also stops a proof between its stages."""

    def __init__(self, request: "ProveRequest", number: int):
        self.request, self.number = request, number
        self.submitted_s = time.monotonic()
        self._future: Future = Future()
        self._is_cancelled = threading.Event()

    def cancel(self) -> None:
        """Never proved if still queued; given up at the next stage if running; nothing if done."""
        self._is_cancelled.set()
        self._future.cancel()

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> "ProvedStatement":
        return self._future.result(timeout_s)

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """The error, CancelledError for a cancelled job, or None; waits like ``result``."""
        try:
            return self._future.exception(timeout_s)  # pyrefly: ignore
        except CancelledError as error:
            return error

    def prove_on(self, worker: "ProofWorker") -> None:
        """Prove it unless it was cancelled; the result or the error is the job's own."""
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self.check()
            self._future.set_result(worker.prove(self.request.witness, self.request.public, self.check))
        except BaseException as error:
            self._future.set_exception(error)

    def check(self) -> None:
        """Raise if the job was cancelled or its time is over."""
        if self._is_cancelled.is_set():
            raise CancelledError
        limit = self.request.timeout_s
        if limit is not None and time.monotonic() - self.submitted_s > limit:
            raise TaskTimeout(
                f"proof {self.number} was not ready within {limit} s of its submission", index=self.number
            )


def n_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProverQueue:
    """Threads of this process that prove requests, the highest priority first.

    Use it as a context manager: leaving waits for what was submitted.

    prover       whatever has ``spawn_worker()``, as a ``Prover`` has
    num_workers  default: the processors this process may use
    """

    def __init__(self, prover: SpawnsWorkers, num_workers: int | None = None):
        n = num_workers if num_workers is not None else n_processors()
        if n < 1:
            raise ConfigError(f"num_workers is {n}, must be at least 1")
        self._idle: SimpleQueue[ProofWorker] = SimpleQueue()
        for _ in range(n):
            self._idle.put(prover.spawn_worker())
        self._waiting: PriorityQueue[tuple[int, int, ProofJob]] = PriorityQueue()
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="prover")

    def submit(self, request: "ProveRequest") -> ProofJob:
        """Raises ExecutorClosed after ``close``."""
        job = ProofJob(request, next(self._numbers))
        try:
            # A thread that is free takes the first of what waits then, which need not be this job.
            self._threads.submit(self._prove_first)
        except RuntimeError as error:
            raise ExecutorClosed("the prover's queue is closed") from error
        self._waiting.put((-request.priority, job.number, job))
        return job

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self._threads.shutdown()

    def __enter__(self) -> "ProverQueue":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for entry in list(self._waiting.queue):
                entry[2].cancel()
        self.close()

    def _prove_first(self) -> None:
        job, worker = self._waiting.get()[2], self._idle.get()
        job.prove_on(worker)
        self._idle.put(worker)
