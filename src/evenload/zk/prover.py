"""The prover: a key that stays loaded, workers that share it, and no proof that was not verified.

Prover(zkey).prove(witness)                        one proof, on as many threads as wanted
Prover(zkey, devices="wgpu:0")                     the same on a GPU
Prover(zkey).prove_batch_parallel(requests, n)     many proofs, n workers, results or errors in order
Prover(zkey, devices="wgpu:0,cpu*2")               batches over several devices, a process for each
Prover(zkey).spawn_worker()                        a worker of its own: same device, key and kernels, own
                                                   buffers and counts
"""

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from evenload._closing import Closing
from evenload.errors import ConfigError
from evenload.zk.batch import prove_requests, prover_task
from evenload.zk.formats.container import Source
from evenload.zk.formats.zkey import ZKey
from evenload.zk.key import ProvingKey
from evenload.zk.key_store import KeyStore
from evenload.zk.proving_devices import find_pool, proving_devices, refuse_unused_level
from evenload.zk.worker import (
    InvalidProof,
    ProofWorker,
    ProvedStatement,
    ProveRequest,
    ProverStats,
    Witness,
    check_length,
)

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.executor import Executor
    from evenload.zk.wgsl_device import WgslDevice


__all__ = ["InvalidProof", "ProofWorker", "ProveRequest", "ProvedStatement", "Prover", "ProverStats"]


class Prover(Closing):
    """A loaded key and what proves with it.

    zkey     a path, bytes, an open binary file, or a ZKey
    devices  "cpu" (default): this process; "wgpu:0": this process and that GPU; several ("cpu*2",
             "wgpu:0,cpu", "all", a DevicePool): batches run in a worker process for each; or a
             ``WgslDevice`` that several provers share and that stays open
    backend  "cpu" or "wgsl" instead of devices: "wgsl" alone takes the best adapter
    threads  how many CPU threads one proof may use in this process (default 1: best for batches)
    level    of CPU kernels "ifma52", "fma52x8", "fma52x4", "word64" or "fma52x2", of WGSL "u64" or "limb13";
             default: the best there is
    policy   how a batch is dealt to several devices
    keep     the next process finds the key checked (for CPU devices, if ``zkey`` is a path): it is kept in
             the user's private cache, as ``evenload zk prove`` does
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
        keep: bool = False,
    ):
        gpu = _opened_adapter(devices)
        self._pool: DevicePool | None = None if gpu else find_pool(devices, backend)
        self.devices = proving_devices(self._pool, "wgsl" if gpu else backend)
        refuse_unused_level(level, self.devices)
        first = None if self.has_many_devices else self.devices[0]
        self._keys = KeyStore(zkey, level, threads, first, gpu, keep)
        self.verification_key, self.sha256 = self._keys.verification_key, self._keys.sha256
        self.stats = ProverStats()
        self._level, self._policy, self._keep = level, policy, keep
        self._turns = itertools.cycle(self.devices)
        self._lock = threading.Lock()
        self._own: ProofWorker | None = None
        self._executor: Executor | None = None
        self._task: type | None = None

    def close(self) -> None:
        """End threads and worker processes, and free GPUs."""
        if self._executor:
            self._executor.close()
        self._keys.close()

    @property
    def has_many_devices(self) -> bool:
        return len(self.devices) > 1

    @property
    def key(self) -> ProvingKey:
        """The loaded key of the first device."""
        return self._keys.key(self.devices[0])

    def accept(self, n: int) -> None:
        """Raise ConfigError unless a witness of ``n`` values fits the key."""
        check_length(n, self.key.n_vars, self.key.name)

    def prove(self, witness: Witness, public: Sequence[int] | None = None) -> ProvedStatement:
        """On the first device; see ``ProofWorker.prove``."""
        with self._lock:
            if self._own is None:
                self._own = self._keys.spawn_worker(self.devices[0])
                self._own.stats = self.stats
            return self._own.prove(witness, public)

    def spawn_worker(self, device: str | None = None) -> ProofWorker:
        """A worker in this process that shares the device, the kernels and the key, with its own buffers and
        counts. With several devices, each worker is on the next one in turn, or on ``device``."""
        found = [one for one in self.devices if one.id == device]
        if device is not None and not found:
            raise ConfigError(
                f"{device} is none of this prover's devices",
                hint=f"it has {', '.join(one.id for one in self.devices)}",
            )
        return self._keys.spawn_worker(found[0] if found else next(self._turns))

    def prove_batch_parallel(
        self, requests: Iterable[ProveRequest | Witness], num_workers: int | None = None, policy: Any = None
    ) -> list[ProvedStatement | Exception]:
        """Prove every request; result or error for each, in the order given.

        On one device, ``num_workers`` threads (default: the processors of this process) take the next request
        when they are free. Several devices have a worker process each, which loads the key once and keeps it
        for the next batch; requests are dealt by ``policy``.
        """
        asked = [r if isinstance(r, ProveRequest) else ProveRequest(r) for r in requests]
        if not self.has_many_devices:
            from evenload.zk.queue import ProverQueue

            with ProverQueue(self, num_workers) as queue:
                jobs = [queue.submit(request) for request in asked]
                return [job.exception() or job.result() for job in jobs]
        if num_workers not in (None, len(self.devices)):
            raise ConfigError(
                f"num_workers is {num_workers}, but each of {len(self.devices)} devices has one worker",
                hint="leave it out, or name other devices",
            )
        if self._executor is None:
            from evenload.executor import Executor

            self._executor = Executor(cast(Any, self._pool), policy=self._policy)
            self._task = prover_task(self._keys.source, self._level, self.devices, self._keep)
        results = prove_requests(self._executor, cast(type, self._task), asked, policy)
        for result in results:
            self.stats.count_result(result)
        return results


def _opened_adapter(devices: Any) -> "WgslDevice | None":
    """``devices`` if it is an opened adapter."""
    if devices is None or isinstance(devices, str):
        return None
    from evenload.zk.wgsl_device import WgslDevice

    return devices if isinstance(devices, WgslDevice) else None
