"""Circuits of our own, built in Python: for tests, benchmarks and trying things out without a circuit
compiler."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.zk.circuits.builder import CircuitBuilder, Linear, squaring_chain
    from evenload.zk.circuits.merkle import poseidon_inclusion
    from evenload.zk.circuits.sha256 import sha256_preimage

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "builder": "CircuitBuilder Linear squaring_chain",
        "merkle": "poseidon_inclusion",
        "sha256": "sha256_preimage",
    },
)
