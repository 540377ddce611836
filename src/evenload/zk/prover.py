"""The prover: a key that stays loaded, workers that share it, and no proof that was not verified.

Prover(zkey).prove(witness)                        one proof, on as many threads as wanted
Prover(zkey, devices="wgpu:0")                     the same on a GPU
Prover(zkey).prove_batch_parallel(requests, n)     many proofs, n workers, results or errors in order
Prover(zkey, devices="wgpu:0,cpu*2")               batches over several devices, a process for each
Prover(zkey).spawn_worker()                        a worker of its own: same device, key and kernels, own
                                                   buffers and counts
"""

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from evenload.errors import ConfigError
from evenload.gpu.llvm import programs
from evenload.zk.formats.container import Source
from evenload.zk.formats.zkey import ZKey, read_zkey
from evenload.zk.key import LoadedKey, ReadyKey
from evenload.zk.place import Place, places_of, pool_of, refuse_unused, split_level
from evenload.zk.wgsl_device import WgslDevice
from evenload.zk.worker import InvalidProof, ProvedStatement, ProveRequest, ProverStats, Witness, Worker

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.executor import Executor

__all__ = ["InvalidProof", "ProveRequest", "ProvedStatement", "Prover", "ProverStats", "Worker"]


class Prover:
    """A loaded key and what proves with it.

    zkey     a path, bytes, an open binary file, or a ZKey
    devices  "cpu" (default): this process; "wgpu:0": this process and that GPU; several ("cpu*2",
             "wgpu:0,cpu", "all", a DevicePool): batches run in a worker process for each; or a
             ``WgslDevice`` that several provers share and that stays open
    backend  "cpu" or "wgsl" instead of devices: "wgsl" alone takes the best adapter
    threads  how many CPU threads one proof may use in this process (default 1: best for batches)
    level    "ifma52" or "word64" for CPU kernels, "u64" or "limb13" for WGSL; default: the best there is
    policy   how a batch is dealt to several devices
    stats    counts of ``prove``, and of batches over several devices; a spawned worker has its own

    Raises FormatError for a bad key, MissingExtra without the kernels extra (or wgpu, for a GPU),
    NoUsableDevice, UnknownName or ConfigError for devices that are not there.
    """

    def __init__(
        self,
        zkey: Source | ZKey,
        devices: Any = None,
        *,
        backend: str | None = None,
        threads: int = 1,
        level: str | None = None,
        policy: Any = "measured",
    ):
        if threads < 1:
            raise ConfigError(f"threads is {threads}, must be at least 1")
        self._cpu_level, self._variant = split_level(level)
        self._level, self._policy = level, policy
        self._opened = devices if isinstance(devices, WgslDevice) else None
        self._pool: DevicePool | None = None
        if self._opened:
            self.places: tuple[Place, ...] = (Place("wgpu", "wgsl"),)
        elif isinstance(devices, Place):
            self.places = (devices,)
        else:
            self._pool = pool_of(devices, backend)
            self.places = places_of(self._pool, backend)
        refuse_unused(level, self.places)
        # A file is read once: the key is needed again if a proof fails, and for workers of other processes.
        is_file = not isinstance(zkey, str | os.PathLike | bytes | bytearray | ZKey)
        self._source: Any = zkey.read() if is_file else zkey
        self._keys: dict[Place, ReadyKey] = {}
        self._gpus: list[WgslDevice] = []
        self._reference_key: LoadedKey | None = None
        self._executor: Executor | None = None
        self._task: type | None = None
        self._key_lock, self._lock = threading.Lock(), threading.Lock()
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None
        self._turns = itertools.cycle(self.places)
        key = self._read()
        self.verification_key, self.sha256 = key.verification_key, key.sha256
        self.stats = ProverStats()
        self._own: Worker | None = None
        if not self.has_many_devices:
            self._key(self.places[0], key)

    def __enter__(self) -> "Prover":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End threads and worker processes, and free GPUs."""
        if self._threads:
            self._threads.shutdown()
        if self._executor:
            self._executor.close()
        for gpu in self._gpus:
            gpu.close()

    @property
    def has_many_devices(self) -> bool:
        return len(self.places) > 1

    @property
    def key(self) -> ReadyKey:
        """The loaded key of the first device."""
        return self._key(self.places[0])

    def prove(self, witness: Witness, public: Sequence[int] | None = None) -> ProvedStatement:
        """On the first device; see ``Worker.prove``."""
        with self._lock:
            if self._own is None:
                self._own = self.spawn_worker(self.places[0].device)
                self._own.stats = self.stats
            return self._own.prove(witness, public)

    def spawn_worker(self, device: str | None = None) -> Worker:
        """A worker in this process that shares the device, the kernels and the key, with its own buffers and
        counts. With several devices, each worker is on the next one in turn, or on ``device``."""
        if device is None:
            place = next(self._turns)
        else:
            found = [place for place in self.places if place.device == device]
            if not found:
                raise ConfigError(
                    f"{device} is none of this prover's devices",
                    hint=f"it has {', '.join(place.device for place in self.places)}",
                )
            place = found[0]
        return Worker(self._key(place), self._reference, self._threads.map if self._threads else map)

    def prove_batch_parallel(
        self, requests: Iterable[ProveRequest | Witness], num_workers: int | None = None, policy: Any = None
    ) -> list[ProvedStatement | Exception]:
        """Prove every request; result or error for each, in the order given.

        On one device, ``num_workers`` threads (default: the processors of this process) take the next request
        when they are free. Several devices have a worker process each, which loads the key once and keeps it
        for the next batch; requests are dealt by ``policy``.
        """
        asked = [r if isinstance(r, ProveRequest) else ProveRequest(r) for r in requests]
        if self.has_many_devices:
            return self._over_devices(asked, num_workers, policy)
        from evenload.zk.queue import ProverQueue

        with ProverQueue(self, num_workers) as queue:
            jobs = [queue.submit(request) for request in asked]
            return [job.exception() or job.result() for job in jobs]

    # --- keys -----------------------------------------------------------------------------------
    def _read(self) -> ZKey:
        if isinstance(self._source, ZKey):  # loading empties the section table, and this one is not ours
            return dataclasses.replace(self._source, sections=dict(self._source.sections))
        return read_zkey(self._source)

    def _read_again(self) -> ZKey:
        key = self._read()
        if key.sha256 != self.sha256:
            raise ConfigError(f"{key.name} is another file than the one that was loaded")
        return key

    def _key(self, place: Place, read: ZKey | None = None) -> ReadyKey:
        """The key on a place's device; CPU slots of one process share it."""
        shared = Place("", place.backend, place.adapter)
        with self._key_lock:
            if shared not in self._keys:
                key = read or self._read_again()
                self._keys[shared] = self._load(key, place)
            return self._keys[shared]

    def _load(self, key: ZKey, place: Place) -> ReadyKey:
        if place.backend == "cpu":
            return LoadedKey.load(key, self._cpu_level or programs.best_level())
        from evenload.zk.wgsl.key import WgslKey

        if self._opened:
            return WgslKey.load(key, self._opened)
        gpu = WgslDevice(place.adapter, cast(Any, self._variant))
        self._gpus.append(gpu)
        return WgslKey.load(key, gpu)

    def _reference(self) -> LoadedKey:
        """The key read anew and loaded for the plain 64-bit kernels."""
        with self._key_lock:
            if self._reference_key is None:
                self._reference_key = LoadedKey.load(self._read_again(), "word64")
            return self._reference_key

    # --- several devices ------------------------------------------------------------------------
    def _over_devices(
        self, requests: list[ProveRequest], num_workers: int | None, policy: Any
    ) -> list[ProvedStatement | Exception]:
        from evenload.zk.batch import as_task, prover_task

        if num_workers not in (None, len(self.places)):
            raise ConfigError(
                f"num_workers is {num_workers}, but each of {len(self.places)} devices has one worker",
                hint="leave it out, or name other devices",
            )
        if self._executor is None:
            from evenload.executor import Executor

            self._executor = Executor(cast(Any, self._pool), policy=self._policy)
            self._task = prover_task(self._source, self._level, self.places)
        order = sorted(range(len(requests)), key=lambda k: -requests[k].priority)
        done = self._executor.map(
            cast(type, self._task),
            [as_task(requests[k]) for k in order],
            on_error="return",
            policy=policy,
        )
        results: list[Any] = [None] * len(requests)
        for k, result in zip(order, done, strict=True):
            if isinstance(result, ProvedStatement):
                self.stats.count(result.stages, sum(result.stages.values()))
                self.stats.n_redone += "reference" in result.stages
            else:
                self.stats.n_failed += 1
            results[k] = result.__cause__ or result if isinstance(result, Exception) else result
        return results
