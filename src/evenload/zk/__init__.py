"""Groth16 proofs over BN254: strict file formats, a fast prover that verifies what it gives out, and a slow
oracle.

``Prover(key)`` proves; ``verify`` checks; ``formats`` reads and writes .zkey, .wtns and .r1cs. Importing this
package loads no kernels.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .formats.r1cs import R1cs
    from .formats.witness import read_witness, write_witness
    from .formats.zkey import ZKey, read_zkey, write_zkey
    from .groth16 import Proof, VerificationKey
    from .prover import Prover
    from .verifier import verify
    from .worker import ProveRequest

_HOMES = {
    "Proof": "groth16",
    "ProveRequest": "worker",
    "Prover": "prover",
    "R1cs": "formats.r1cs",
    "VerificationKey": "groth16",
    "ZKey": "formats.zkey",
    "read_witness": "formats.witness",
    "read_zkey": "formats.zkey",
    "verify": "verifier",
    "write_witness": "formats.witness",
    "write_zkey": "formats.zkey",
}

__all__ = [
    "Proof",
    "ProveRequest",
    "Prover",
    "R1cs",
    "VerificationKey",
    "ZKey",
    "read_witness",
    "read_zkey",
    "verify",
    "write_witness",
    "write_zkey",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'evenload.zk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
