"""Merkle trees over SHA-256, BLAKE2s, Keccak-256 and Poseidon: millions of leaves a second, on any device."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import make_engine
    from .partition import parallel_root
    from .proof import ConsistencyProof, InclusionProof, proof_from_json
    from .scheme import SCHEMES, Scheme
    from .standard import MultiProof, StandardTree
    from .stream import RootStream, root_of_file
    from .tree import MerkleTree

_HOMES = {
    "SCHEMES": "scheme",
    "ConsistencyProof": "proof",
    "InclusionProof": "proof",
    "MerkleTree": "tree",
    "MultiProof": "standard",
    "RootStream": "stream",
    "Scheme": "scheme",
    "StandardTree": "standard",
    "make_engine": "engine",
    "parallel_root": "partition",
    "proof_from_json": "proof",
    "root_of_file": "stream",
}

__all__ = [
    "SCHEMES",
    "ConsistencyProof",
    "InclusionProof",
    "MerkleTree",
    "MultiProof",
    "RootStream",
    "Scheme",
    "StandardTree",
    "make_engine",
    "parallel_root",
    "proof_from_json",
    "root_of_file",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
