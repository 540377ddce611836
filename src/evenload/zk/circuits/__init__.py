"""Circuits of our own, built in Python: for tests, benchmarks and trying things out without a circuit
compiler."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.zk.circuits.builder import CircuitBuilder, Linear
    from evenload.zk.circuits.chain import squaring_chain
    from evenload.zk.circuits.merkle import poseidon_inclusion
    from evenload.zk.circuits.sha256 import sha256_preimage

_HOMES = {
    "CircuitBuilder": "builder",
    "Linear": "builder",
    "poseidon_inclusion": "merkle",
    "sha256_preimage": "sha256",
    "squaring_chain": "chain",
}

__all__ = ["CircuitBuilder", "Linear", "poseidon_inclusion", "sha256_preimage", "squaring_chain"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
