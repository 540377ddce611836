"""joblib's backend "evenload": the batches of ``joblib.Parallel``, dealt over devices.

Registered by ``import evenload.joblib``; tested with joblib 1.4 to 1.6 and scikit-learn 1.9.
"""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    register_parallel_backend,
)

from evenload.devices import DevicePool, current_device
from evenload.errors import ConfigError, quoted
from evenload.integrations.concurrent_futures import Executor
from evenload.integrations.worker_count import limited

OPTIONS = (
    "call_timeout_s",
    "echo",
    "events",
    "max_worker_deaths",
    "memory_limit",
    "shared_memory_limit",
    "start",
)
OF_JOBLIB = ("initializer", "initargs")
OF_OTHER_BACKENDS = {"idle_worker_timeout", "temp_folder", "max_nbytes", "mmap_mode", "context", "verbose"}


class EvenloadBackend(AutoBatchingMixin, ParallelBackendBase):
    """A joblib backend with a worker per device, which stay while the backend is in use.

    ``n_jobs=-1``, the default, is every device; ``n_jobs=k`` the best k of them or, where ``devices`` is
    "all" and there are no accelerators, k workers that share the cores; ``n_jobs=1`` is the caller's process.
    A Parallel within a job that asks for this backend runs in that job's worker: its device has one job.

    devices  which, as for ``evenload.map``
    options  of ``evenload.Executor``: ``echo``, ``events``, ``start``, ``shared_memory_limit``,
             ``call_timeout_s``, ``max_worker_deaths``; and ``initializer`` with ``initargs``
    Raises ConfigError for other options.
    """

    # Seconds: a twentieth of joblib's, as a batch on a slow device must not outlast all others.
    MIN_IDEAL_BATCH_DURATION = 0.01  # pyrefly: ignore
    MAX_IDEAL_BATCH_DURATION = 0.1  # pyrefly: ignore
    default_n_jobs = -1
    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    uses_threads = False
    supports_sharedmem = False

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        *,
        devices: Any = "all",
        **options: Any,
    ):
        strange = sorted(set(options) - {*OPTIONS, *OF_JOBLIB, *OF_OTHER_BACKENDS})
        if strange:
            raise ConfigError(
                f"the joblib backend 'evenload' has no option {quoted(strange[0])}",
                hint=f"it has devices, {', '.join(OPTIONS)}; for more use evenload.Executor itself",
            )
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._devices = devices
        self._options = {name: options[name] for name in (*OPTIONS, *OF_JOBLIB) if name in options}
        self._workers: Executor | None = None
        self._warm: tuple[Any, Executor] | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.parallel: Any = None

    def __reduce__(self) -> tuple:
        make = functools.partial(EvenloadBackend, devices=self._devices)
        return make, (self.nesting_level, self.inner_max_num_threads)

    @functools.cached_property
    def _known_devices(self) -> DevicePool:
        return self._devices if isinstance(self._devices, DevicePool) else DevicePool.find(self._devices)

    def effective_n_jobs(self, n_jobs: int | None) -> int:  # pyrefly: ignore
        """Return how many workers ``n_jobs`` means. Raises ValueError for 0.

        While a Parallel uses them it is told 2 for one: the jobs of 1 it would run in this process, which is
        on no device.
        """
        n_workers = self._n_workers(n_jobs)
        return n_workers if self.parallel is None else max(n_workers, 2)

    def _n_workers(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or current_device() is not None:
            return 1
        if n_jobs < 0:
            return max(len(self._known_devices) + 1 + n_jobs, 1)
        return len(self._limited(n_jobs))

    def configure(  # pyrefly: ignore
        self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **more: Any
    ) -> int:
        """Make ready for calls of ``parallel``; returns what ``effective_n_jobs`` then does."""
        if self._process != os.getpid():  # forked from the one whose devices and workers these are
            self._process, self._warm, self._lock = os.getpid(), None, threading.Lock()
            self.__dict__.pop("_known_devices", None)
        n_workers = self._n_workers(n_jobs)
        if n_jobs == 1 or current_device() is not None:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        options = self._options | {name: more[name] for name in OF_JOBLIB if name in more}
        wanted = {"n_workers": n_workers, "n_threads": self.inner_max_num_threads, **options}
        if self._warm is None or self._warm[0] != wanted:
            self._close()
            self._warm = wanted, self._open(n_workers, options)
        self._workers = self._warm[1]
        return self.effective_n_jobs(n_jobs)

    def submit(  # pyrefly: ignore
        self, func: Callable[[], Any], callback: Callable[[Future], None] | None = None
    ) -> Future:
        """Have a batch run on the next free device."""
        workers = self._workers
        if workers is None:
            raise RuntimeError("this backend is not configured, or was aborted")
        future = workers.submit(_call, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # before joblib 1.5

    def retrieve_result_callback(self, out: Future) -> Any:
        return out.result()

    def stop_call(self) -> None:
        """A call is over: its run has a summary of its own (``evenload.last_run``)."""
        if self._workers is not None:
            self._workers.finish_run()

    def terminate(self) -> None:
        """``parallel`` is done. The workers stay for the next one, until this backend is forgotten."""
        self.reset_batch_stats()
        self.parallel = self._workers = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the workers, whatever they do. ``ensure_ready``: with new ones for the next call."""
        parallel = self.parallel
        self._close(cancel=True)
        if ensure_ready:
            self.configure(n_jobs=parallel.n_jobs, parallel=parallel)

    def _limited(self, n_jobs: int) -> DevicePool:
        spec = self._devices
        return limited(spec if isinstance(spec, str) and spec == "all" else self._known_devices, n_jobs)

    def _open(self, n_workers: int, options: dict[str, Any]) -> Executor:
        given = (options.get("initializer"), tuple(options.get("initargs", ())))
        begin: dict[str, Any] = {"initializer": _begin, "initargs": (self.inner_max_num_threads, *given)}
        return Executor(self._limited(n_workers), **options | begin)

    def _close(self, cancel: bool = False) -> None:
        with self._lock:
            warm, self._warm, self._workers = self._warm, None, None
        if warm is not None:
            warm[1].drop() if cancel else warm[1].shutdown()


def register() -> None:
    """Make the name "evenload" known to joblib."""
    register_parallel_backend("evenload", EvenloadBackend)


def _call(batch: Callable[[], Any]) -> Any:
    """In the worker: a batch of jobs."""
    return batch()


def _begin(n_threads: int | None, initializer: Callable[..., Any] | None, initargs: tuple) -> None:
    """In the worker, before its first job: limit the threads of libraries that it will import."""
    register()  # for a Parallel within a job
    if n_threads is not None:
        for name in ParallelBackendBase.MAX_NUM_THREADS_VARS:
            os.environ[name] = str(n_threads)
    if initializer is not None:
        initializer(*initargs)
