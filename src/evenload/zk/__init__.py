"""Groth16 proofs over BN254: strict file formats, and a fast prover that verifies what it gives out.

``Prover(key)`` proves; ``verify`` and ``verify_many`` check; ``formats`` reads and writes .zkey, .wtns and
.r1cs; ``plain_groth16`` does the same in plain Python. Importing this package loads no kernels.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.zk.circom.input_values import parse_inputs
    from evenload.zk.circom.witness import calculate_witness
    from evenload.zk.formats.r1cs import R1cs
    from evenload.zk.formats.witness import read_witness, write_witness
    from evenload.zk.formats.zkey import ZKey, read_zkey, write_zkey
    from evenload.zk.groth16 import Proof, VerificationKey
    from evenload.zk.prover import Prover
    from evenload.zk.verifier import Verdict, verify, verify_many
    from evenload.zk.worker import ProveRequest

_HOMES = {
    "Proof": "groth16",
    "ProveRequest": "worker",
    "Prover": "prover",
    "R1cs": "formats.r1cs",
    "VerificationKey": "groth16",
    "Verdict": "verifier",
    "ZKey": "formats.zkey",
    "calculate_witness": "circom.witness",
    "parse_inputs": "circom.input_values",
    "read_witness": "formats.witness",
    "read_zkey": "formats.zkey",
    "verify": "verifier",
    "verify_many": "verifier",
    "write_witness": "formats.witness",
    "write_zkey": "formats.zkey",
}

__all__ = [
    "Proof",
    "ProveRequest",
    "Prover",
    "R1cs",
    "Verdict",
    "VerificationKey",
    "ZKey",
    "calculate_witness",
    "parse_inputs",
    "read_witness",
    "read_zkey",
    "verify",
    "verify_many",
    "write_witness",
    "write_zkey",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
