"""A queue of statements to prove: priorities, cancelling, time-outs, and what each job waited and took."""

import heapq
import itertools
import os
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError, ExecutorClosed, TaskTimeout

if TYPE_CHECKING:
    from evenload.zk.prover import Prover
    from evenload.zk.worker import ProvedStatement, ProveRequest, Worker

__all__ = ["ProofJob", "ProverQueue"]


class ProofJob:
    """One submitted request. ``result()`` waits; ``cancel()`` also stops a proof between its stages."""

    def __init__(self, request: "ProveRequest", number: int):
        self.request, self.number = request, number
        self.submitted_s = time.monotonic()
        self.wait_s: float | None = None
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
            return self._future.exception(timeout_s)  # pyright: ignore[reportReturnType]
        except CancelledError as error:
            return error

    def check(self) -> None:
        """Raise if the job was cancelled or its time is over."""
        if self._is_cancelled.is_set():
            raise CancelledError
        limit = self.request.timeout_s
        if limit is not None and time.monotonic() - self.submitted_s > limit:
            raise TaskTimeout(
                f"proof {self.number} was not ready within {limit} s of its submission", index=self.number
            )


@dataclass(frozen=True, slots=True)
class QueueStats:
    """``wait_s``: seconds in the queue, summed over the jobs that were started."""

    queued: int
    running: int
    done: int
    wait_s: float
    workers: list[dict[str, Any]]


def _n_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProverQueue:
    """Workers (threads) that pull from one heap. Use as a context manager: leaving waits for what was
    submitted.

    num_workers  default: the processors this process may use
    """

    def __init__(self, prover: "Prover", num_workers: int | None = None):
        n = num_workers if num_workers is not None else _n_processors()
        if n < 1:
            raise ConfigError(f"num_workers is {n}, must be at least 1")
        self._heap: list[tuple[int, int, ProofJob]] = []
        self._ready = threading.Condition()
        self._numbers = itertools.count()
        self._is_closed, self._n_running, self._n_done = False, 0, 0
        self._wait_s = 0.0
        self._workers = [prover.spawn_worker() for _ in range(n)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name=f"prover-{k}", daemon=True)
            for k, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: "ProveRequest") -> ProofJob:
        """Raises ExecutorClosed after ``close``."""
        with self._ready:
            if self._is_closed:
                raise ExecutorClosed("the prover's queue is closed")
            job = ProofJob(request, next(self._numbers))
            heapq.heappush(self._heap, (-request.priority, job.number, job))
            self._ready.notify()
        return job

    def stats(self) -> QueueStats:
        with self._ready:
            workers = [worker.stats.to_json() for worker in self._workers]
            return QueueStats(len(self._heap), self._n_running, self._n_done, self._wait_s, workers)

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "ProverQueue":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with self._ready:
                for entry in self._heap:
                    entry[2].cancel()
        self.close()

    def _next(self) -> ProofJob | None:
        with self._ready:
            while not self._heap:
                if self._is_closed:
                    return None
                self._ready.wait()
            job = heapq.heappop(self._heap)[2]
            self._n_running += 1
            job.wait_s = time.monotonic() - job.submitted_s
            self._wait_s += job.wait_s
            return job

    def _serve(self, worker: "Worker") -> None:
        while (job := self._next()) is not None:
            self._run(worker, job)
            with self._ready:
                self._n_running -= 1
                self._n_done += 1

    def _run(self, worker: "Worker", job: ProofJob) -> None:
        future = job._future
        if not future.set_running_or_notify_cancel():
            return
        try:
            job.check()
            future.set_result(worker.prove(job.request.witness, job.request.public, job.check))
        except BaseException as error:
            future.set_exception(error)
