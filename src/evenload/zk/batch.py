"""Proofs over several devices: one key, many witnesses, a prover in every worker process.

    for done in prove_batch("key.zkey", witnesses, devices="wgpu:0,cpu*2"): ...

Each worker loads the key once, for its device's kernels. For threads of one process that share the key, see
``Prover.prove_batch_parallel``.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from evenload.errors import TaskTimeout

if TYPE_CHECKING:
    from evenload.executor import Results
    from evenload.zk.place import Place
    from evenload.zk.worker import ProvedStatement, ProveRequest

__all__ = ["as_task", "prove_batch", "prover_task"]


def prover_task(zkey: Any, level: str | None = None, places: "Sequence[Place]" = ()) -> type:
    """A task class for ``evenload.map``: built once in each worker, called with one witness at a time, or
    with what ``as_task`` makes of a request.

    places  which kernels each device runs; a device that is not named runs those of the CPU, on as many
            threads as are its own
    """
    source = os.fspath(zkey) if isinstance(zkey, str | os.PathLike) else zkey
    wgsl = {place.device: place.adapter for place in places if place.backend == "wgsl"}

    class ProveWitness:
        def __init__(self, device: Any) -> None:
            from evenload.zk.place import CPU, Place
            from evenload.zk.prover import Prover

            place = Place(device.id, "wgsl", wgsl[device.id]) if device.id in wgsl else CPU
            threads = device.threads if place.backend == "cpu" else 1
            self.prover = Prover(source, place, threads=threads, level=_level_for(place.backend, level))
            self.worker = self.prover.spawn_worker()

        def __call__(self, task: Any) -> "ProvedStatement":
            if isinstance(task, _Request):
                return self.worker.prove(task.witness, task.public, task.check)
            return self.worker.prove(task)

        def close(self) -> None:
            self.prover.close()

    return ProveWitness


class _Request:
    """A request with its place in the batch and the time by which it must be done (seconds since 1970, which
    processes agree about)."""

    def __init__(self, request: "ProveRequest"):
        self.witness, self.public, self.timeout_s = request.witness, request.public, request.timeout_s
        self.submitted_s = time.time()

    def check(self) -> None:
        if self.timeout_s is not None and time.time() - self.submitted_s > self.timeout_s:
            raise TaskTimeout(
                f"a proof was not ready within {self.timeout_s} s of its submission", index=None
            )


def as_task(request: "ProveRequest") -> Any:
    """What a worker of ``prover_task`` takes: witness, expected public inputs and time limit."""
    return _Request(request)


def _level_for(backend: str, level: str | None) -> str | None:
    """A level only concerns the devices that have it."""
    from evenload.zk.place import split_level

    cpu, variant = split_level(level)
    return cpu if backend == "cpu" else variant


def prove_batch(
    zkey: str | os.PathLike,
    witnesses: Iterable[Any],
    devices: Any = "cpu",
    *,
    level: str | None = None,
    **options: Any,
) -> "Results[Any]":
    """Prove every witness over ``devices``; iterate for verified ``ProvedStatement`` in the order given.

    witnesses  paths, bytes of .wtns, arrays or integers, as ``ProveRequest.witness``
    devices    CPU slots run CPU kernels, all others WGSL
    level      of the kernels, as for ``Prover``; concerns the devices that have it
    options    those of ``evenload.map``: policy, on_error, backend, events, ...
    """
    from evenload.devices import DevicePool
    from evenload.executor import map as map_over_devices
    from evenload.zk.place import places_of, refuse_unused

    pool = devices if isinstance(devices, DevicePool) else DevicePool.find(devices)
    places = places_of(pool)
    refuse_unused(level, places)
    task = prover_task(zkey, level, places)
    return map_over_devices(task, witnesses, devices=pool, **options)
