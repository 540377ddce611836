"""Proofs over several devices: one key, many witnesses, a worker process on every device.

    for done in prove_batch("key.zkey", witnesses, devices="wgpu:0,cpu*2"): ...

Each worker loads the key once, for its device's kernels. For threads of one process that share the key, see
``evenload.zk.queue``.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evenload.errors import TaskTimeout
from evenload.zk.proving_devices import CPU, ProvingDevice, proving_devices, refuse_unused_level

if TYPE_CHECKING:
    from evenload.executor import Executor, Results
    from evenload.zk.worker import ProvedStatement, ProveRequest


def prover_task(
    zkey: Any, level: str | None = None, devices: Sequence[ProvingDevice] = (), keep: bool = False
) -> type:
    """A task class for ``evenload.map``: built once in each worker, called with a witness or a
    ``TimedRequest``.

    devices  which kernels each device runs; one that is not named runs those of the CPU, on as many threads
             as are its own
    keep     as for ``Prover``
    """
    source = os.fspath(zkey) if isinstance(zkey, str | os.PathLike) else zkey
    on_gpu = {device.id: device for device in devices if device.backend == "wgsl"}

    class ProveWitness:
        def __init__(self, device: Any) -> None:
            from evenload.zk.key_store import KeyStore

            own = on_gpu.get(device.id, CPU)
            self.keys = KeyStore(source, level, device.threads, own, keeps=keep)
            self.worker = self.keys.spawn_worker(own)

        def __call__(self, task: Any) -> "ProvedStatement":
            if isinstance(task, TimedRequest):
                return self.worker.prove(task.witness, task.public, task.check)
            return self.worker.prove(task)

        def close(self) -> None:
            self.keys.close()

    return ProveWitness


class TimedRequest:
    """A request with the time of its submission, which processes of one machine agree about."""

    def __init__(self, request: "ProveRequest"):
        self.witness, self.public, self.timeout_s = request.witness, request.public, request.timeout_s
        self.submitted_s = time.time()

    def check(self) -> None:
        """Raise TaskTimeout if its time is over."""
        if self.timeout_s is not None and time.time() - self.submitted_s > self.timeout_s:
            raise TaskTimeout(
                f"a proof was not ready within {self.timeout_s} s of its submission", index=None
            )


def prove_batch(
    zkey: str | os.PathLike,
    witnesses: Iterable[Any],
    devices: Any = "cpu",
    *,
    level: str | None = None,
    keep: bool = False,
    **options: Any,
) -> "Results[Any]":
    """Prove every witness over ``devices``; iterate for verified ``ProvedStatement`` in the order given.

    witnesses  paths, bytes of .wtns, arrays or integers, as ``ProveRequest.witness``
    devices    CPU slots run CPU kernels, all others WGSL
    level      of the kernels, as for ``Prover``; concerns the devices that have it
    keep       as for ``Prover``
    options    those of ``evenload.map``: policy, on_error, backend, events, ...
    """
    from evenload.devices import DevicePool
    from evenload.executor import map as map_over_devices

    pool = devices if isinstance(devices, DevicePool) else DevicePool.find(devices)
    chosen = proving_devices(pool)
    refuse_unused_level(level, chosen)
    return map_over_devices(prover_task(zkey, level, chosen, keep), witnesses, devices=pool, **options)


def prove_requests(
    executor: "Executor", task: type, requests: Sequence["ProveRequest"], policy: Any = None
) -> list["ProvedStatement | Exception"]:
    """Prove every request with the workers of ``executor``, those of the highest priority first.

    task  from ``prover_task``
    Returns a result or an error for each request, in the order given.
    """
    order = sorted(range(len(requests)), key=lambda k: -requests[k].priority)
    timed = [TimedRequest(requests[k]) for k in order]
    results: list[Any] = [None] * len(requests)
    proved = executor.map(task, timed, on_error="return", policy=policy, progress=False)
    for k, result in zip(order, proved, strict=True):
        results[k] = result.__cause__ or result if isinstance(result, Exception) else result
    return results
