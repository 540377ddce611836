"""Merkle trees over SHA-256, BLAKE2s, Keccak-256 and Poseidon: millions of leaves a second, on any device."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.merkle.engine import make_engine
    from evenload.merkle.log.checkpoint import (
        Checkpoint,
        read_checkpoint,
        verify_checkpoint,
        verify_growth,
        verify_inclusion,
    )
    from evenload.merkle.log.keys import SigningKey, VerifierKey
    from evenload.merkle.log.log import Log
    from evenload.merkle.log.note import Quorum
    from evenload.merkle.log.published import check_published
    from evenload.merkle.partition import parallel_root
    from evenload.merkle.proof import ConsistencyProof, InclusionProof, proof_from_json
    from evenload.merkle.scheme import SCHEMES, Scheme
    from evenload.merkle.standard import MultiProof, StandardTree
    from evenload.merkle.stream import RootStream, root_of_file
    from evenload.merkle.tree import MerkleTree

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "engine": "make_engine",
        "log.checkpoint": "Checkpoint read_checkpoint verify_checkpoint verify_growth verify_inclusion",
        "log.keys": "SigningKey VerifierKey",
        "log.log": "Log",
        "log.note": "Quorum",
        "log.published": "check_published",
        "partition": "parallel_root",
        "proof": "ConsistencyProof InclusionProof proof_from_json",
        "scheme": "Scheme SCHEMES",
        "standard": "MultiProof StandardTree",
        "stream": "root_of_file RootStream",
        "tree": "MerkleTree",
    },
)
