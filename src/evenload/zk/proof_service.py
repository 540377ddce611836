"""Proofs on request: keys that stay loaded in worker processes, a bounded number of requests, no lost one.

with ProofService([Path("circuit.zkey")], "cpu*2") as service:
    with service.admitted():
        done = service.submit("circuit", witness).result()
"""

import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._arguments import seconds
from evenload.errors import ConfigError, EvenloadError, UnknownName, quoted
from evenload.events import EventLog
from evenload.zk.groth16 import VerificationKey
from evenload.zk.key_store import KeyStore
from evenload.zk.proving_devices import CPU, ProvingDevice, proving_devices, refuse_unused_level
from evenload.zk.worker import ProofWorker, ProvedStatement

MOST_WORKER_DEATHS = 10
LIMIT_S = 600.0
FIRST_GUESS_S, MOST_RETRY_S = 1.0, 60


class Busy(EvenloadError):
    """A request that is not taken, as enough others wait; ``retry_after_s`` says when to come again."""

    retry_after_s: int = 1


@dataclass(frozen=True, slots=True)
class ServedKey:
    """A key that a service proves with: its file, what it is, and what verifies its proofs."""

    name: str
    path: str
    sha256: str
    n_vars: int
    n_public: int
    verification_key: VerificationKey


@dataclass(frozen=True, slots=True)
class DoneProof:
    """A verified proof, and the process that made it."""

    statement: ProvedStatement
    pid: int


class ProofService:
    """A pool of worker processes that prove for named keys, each key loaded once in each worker.

    keys          files of keys; each is called by its name without ``.zkey``
    devices       a worker each, as for ``Executor``
    level         of the kernels, as for ``Prover``
    most_waiting  requests that may wait or run at once; others are ``Busy``
    limit_s       a proof that takes longer fails with TaskTimeout, and its worker is replaced; the load of
                  its key counts where a worker has not loaded it yet
    sink          gets the events of the workers
    Raises FormatError for a bad key, ConfigError for two of one name, and what ``Executor`` raises.
    """

    def __init__(
        self,
        keys: Sequence[Path],
        devices: Any = "cpu",
        *,
        level: str | None = None,
        most_waiting: int = 64,
        limit_s: float = LIMIT_S,
        sink: Callable[[Any], None] | None = None,
    ):
        from evenload.devices import DevicePool
        from evenload.executor import Executor

        if most_waiting < 1:
            raise ConfigError(f"most_waiting is {most_waiting}, must be at least 1")
        limit_s = seconds("limit_s", limit_s)
        pool = devices if isinstance(devices, DevicePool) else DevicePool.find(devices)
        chosen = proving_devices(pool)
        refuse_unused_level(level, chosen)
        self._level, self._on_gpu = level, {one.id: one for one in chosen if one.backend == "wgsl"}
        self.keys = _read_keys(keys, level)
        self.n_workers, self._most_waiting, self.limit_s = len(chosen), most_waiting, limit_s
        self._lock = threading.Lock()
        self._n_waiting, self._mean_s = 0, FIRST_GUESS_S
        self._pids: dict[int, float] = {}
        events = EventLog(sink) if sink else None
        # One at a time: what a worker holds when it dies is one request.
        self._executor = Executor(
            pool, policy="pull", events=events, echo=False, max_worker_deaths=MOST_WORKER_DEATHS,
            call_timeout_s=limit_s,
        )  # fmt: skip

    def __enter__(self) -> "ProofService":
        self._executor.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._executor.close(cancel=kind is not None)

    @property
    def n_waiting(self) -> int:
        """Requests that wait or run."""
        return self._n_waiting

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that made the last proofs, the latest first."""
        with self._lock:
            return sorted(self._pids, key=lambda pid: -self._pids[pid])[: self.n_workers]

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold one of the places for requests. Raises Busy if there is none."""
        with self._lock:
            if self._n_waiting >= self._most_waiting:
                busy = Busy(f"{self._n_waiting} requests wait already", hint="come again later")
                busy.retry_after_s = self._retry_after_s()
                raise busy
            self._n_waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_waiting -= 1

    def key(self, name: str) -> ServedKey:
        """The key called ``name``. Raises UnknownName."""
        if name not in self.keys:
            raise UnknownName("key", name, self.keys)
        return self.keys[name]

    def submit(self, name: str, witness: bytes, public: Sequence[int] | None = None) -> "Future[DoneProof]":
        """Prove one witness (the bytes of a .wtns) with the key ``name`` on whichever worker is free next.

        public  public inputs that the caller expects
        If a worker dies with it, another makes the proof. The future fails with TaskTimeout after the limit,
        and with what ``ProofWorker.prove`` raises, as the cause of a TaskError. Raises UnknownName,
        ExecutorClosed.
        """
        key = self.key(name)
        call = ProofCall(key.path, key.sha256, self._level, self._on_gpu)
        future = self._executor.submit(call, witness, public)
        future.add_done_callback(self._take)
        return future

    def _take(self, future: "Future[DoneProof]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        done = future.result()
        with self._lock:
            took_s = sum(done.statement.stages.values())
            self._mean_s += (took_s - self._mean_s) / 8
            self._pids[done.pid] = time.monotonic()
            if len(self._pids) > 4 * self.n_workers:
                del self._pids[min(self._pids, key=lambda pid: self._pids[pid])]

    def _retry_after_s(self) -> int:
        """About when half of those that wait will be done."""
        seconds = self._n_waiting * self._mean_s / self.n_workers / 2
        return max(1, min(MOST_RETRY_S, math.ceil(seconds)))


@dataclass(frozen=True, slots=True)
class ProofCall:
    """A call that proves in a worker, with the key of a file that must be the one that was checked."""

    source: str
    sha256: str
    level: str | None
    on_gpu: dict[str, ProvingDevice]

    def __call__(self, witness: bytes, public: Sequence[int] | None) -> DoneProof:
        from evenload.devices import current

        here = current()
        device = self.on_gpu.get(here.id, CPU)
        worker = _resident(self.source, self.sha256, self.level, device, here.threads)
        return DoneProof(worker.prove(witness, public), os.getpid())


@functools.cache
def _resident(
    source: str, sha256: str, level: str | None, device: ProvingDevice, threads: int
) -> ProofWorker:
    """The key in this process, for as long as it lives."""
    keys = KeyStore(source, level, threads, device, keeps=True)
    if keys.sha256 != sha256:
        raise ConfigError(
            f"{quoted(source)} was changed since the service began", hint="start the service again"
        )
    return keys.spawn_worker(device)


def _read_keys(paths: Sequence[Path], level: str | None) -> dict[str, ServedKey]:
    """Check every key, and have it kept for the workers."""
    found: dict[str, ServedKey] = {}
    for path in paths:
        name = path.stem
        if name in found:
            raise ConfigError(f"several keys are called {quoted(name)}", hint="rename one of the files")
        store = KeyStore(path, level, first=CPU, keeps=True)
        key = store.key(CPU)
        found[name] = ServedKey(
            name, str(path.absolute()), store.sha256, key.n_vars, key.n_public, store.verification_key
        )
        store.close()
    return found
