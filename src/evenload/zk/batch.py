"""Proofs over several devices: one key, many witnesses, a prover in every worker process.

    for done in prove_batch("key.zkey", witnesses, devices="cpu*2"): ...

Each worker loads the key once. For threads of one process that share the key, see
``Prover.prove_batch_parallel``.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenload.executor import Results

    from .prover import ProvedStatement

__all__ = ["prove_batch", "prover_task"]


def prover_task(zkey: str | os.PathLike, level: str | None = None) -> type:
    """A task class for ``evenload.map``: built once in each worker, called with one witness at a time."""
    path = os.fspath(zkey)

    class ProveWitness:
        def __init__(self) -> None:
            from evenload.zk.prover import Prover

            self.prover = Prover(path, level=level)

        def __call__(self, witness: Any) -> "ProvedStatement":
            return self.prover.prove(witness)

        def close(self) -> None:
            self.prover.close()

    return ProveWitness


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
    options    those of ``evenload.map``: policy, on_error, backend, events, ...
    """
    from evenload.executor import map as map_over_devices

    return map_over_devices(prover_task(zkey, level), witnesses, devices=devices, **options)
