"""Merkle trees over SHA-256, BLAKE2s, Keccak-256 and Poseidon: millions of leaves a second, on any device."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.merkle.engine import make_engine
    from evenload.merkle.log.checkpoint import Checkpoint, read_checkpoint, verify_checkpoint
    from evenload.merkle.log.keys import SigningKey, VerifierKey
    from evenload.merkle.log.log import Log
    from evenload.merkle.log.proof_text import verify_growth, verify_inclusion
    from evenload.merkle.log.published import check_published
    from evenload.merkle.partition import parallel_root
    from evenload.merkle.proof import ConsistencyProof, InclusionProof, proof_from_json
    from evenload.merkle.scheme import SCHEMES, Scheme
    from evenload.merkle.standard import MultiProof, StandardTree
    from evenload.merkle.stream import RootStream, root_of_file
    from evenload.merkle.tree import MerkleTree

_HOMES = {
    "Checkpoint": "log.checkpoint",
    "ConsistencyProof": "proof",
    "InclusionProof": "proof",
    "Log": "log.log",
    "MerkleTree": "tree",
    "MultiProof": "standard",
    "RootStream": "stream",
    "SCHEMES": "scheme",
    "Scheme": "scheme",
    "SigningKey": "log.keys",
    "StandardTree": "standard",
    "VerifierKey": "log.keys",
    "check_published": "log.published",
    "make_engine": "engine",
    "parallel_root": "partition",
    "proof_from_json": "proof",
    "read_checkpoint": "log.checkpoint",
    "root_of_file": "stream",
    "verify_checkpoint": "log.checkpoint",
    "verify_growth": "log.proof_text",
    "verify_inclusion": "log.proof_text",
}

__all__ = [
    "SCHEMES",
    "Checkpoint",
    "ConsistencyProof",
    "InclusionProof",
    "Log",
    "MerkleTree",
    "MultiProof",
    "RootStream",
    "Scheme",
    "SigningKey",
    "StandardTree",
    "VerifierKey",
    "check_published",
    "make_engine",
    "parallel_root",
    "proof_from_json",
    "read_checkpoint",
    "root_of_file",
    "verify_checkpoint",
    "verify_growth",
    "verify_inclusion",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
