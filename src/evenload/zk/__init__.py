"""Groth16 proofs over BN254: strict file formats, and a fast prover that verifies what it gives out.

``Prover(key)`` proves; ``verify`` and ``verify_many`` check; ``formats`` reads and writes .zkey, .wtns and
.r1cs; ``plain_groth16`` verifies in plain Python. Importing this package loads no kernels.
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

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "circom.input_values": "parse_inputs",
        "circom.witness": "calculate_witness",
        "formats.r1cs": "R1cs",
        "formats.witness": "read_witness write_witness",
        "formats.zkey": "read_zkey write_zkey ZKey",
        "groth16": "Proof VerificationKey",
        "prover": "Prover",
        "verifier": "Verdict verify verify_many",
        "worker": "ProveRequest",
    },
)
