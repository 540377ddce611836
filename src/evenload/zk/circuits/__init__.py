"""Circuits of our own, built in Python: for tests, benchmarks and trying things out without a circuit
compiler."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .builder import CircuitBuilder, Linear
    from .chain import squaring_chain
    from .merkle import poseidon_inclusion
    from .sha256 import sha256_preimage

_HOMES = {
    "CircuitBuilder": "builder",
    "Linear": "builder",
    "poseidon_inclusion": "merkle",
    "sha256_preimage": "sha256",
    "squaring_chain": "chain",
}

__all__ = ["CircuitBuilder", "Linear", "poseidon_inclusion", "sha256_preimage", "squaring_chain"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'evenload.zk.circuits' has no attribute {name!r}")
