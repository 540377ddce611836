"""Merkle trees over SHA-256, BLAKE2s, Keccak-256 and Poseidon: millions of leaves a second, on any device."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.merkle.engine import make_engine
    from evenload.merkle.partition import parallel_root
    from evenload.merkle.proof import ConsistencyProof, InclusionProof, proof_from_json
    from evenload.merkle.scheme import SCHEMES, Scheme
    from evenload.merkle.standard import MultiProof, StandardTree
    from evenload.merkle.stream import RootStream, root_of_file
    from evenload.merkle.tree import MerkleTree

_HOMES = {
    "ConsistencyProof": "proof",
    "InclusionProof": "proof",
    "MerkleTree": "tree",
    "MultiProof": "standard",
    "RootStream": "stream",
    "SCHEMES": "scheme",
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
