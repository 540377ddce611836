"""A set of proofs against what somebody trusts and holds: ``evenload merkle verify``, as values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenload.errors import ConfigError
from evenload.merkle.proof import (
    ConsistencyProof,
    InclusionProof,
    MultiProof,
    SortedProof,
    proof_from_json,
    read_object,
    sorted_proof_from_json,
)

Proof = InclusionProof | ConsistencyProof | SortedProof | MultiProof


@dataclass(frozen=True, slots=True)
class Claims:
    """The values that whoever checks proofs knows: roots, leaves or their hashes in the order of the proofs,
    and the size of the tree."""

    root: bytes
    old_root: bytes | None = None
    leaves: Sequence[bytes] = field(default=())
    leaf_hashes: Sequence[bytes] = field(default=())
    size: int | None = None


def check_proofs(lines: Sequence[str], claims: Claims) -> list[bool]:
    """One answer per proof, each a line of JSON. Raises FormatError on a malformed proof, and ConfigError
    unless exactly the leaves that are proved are given."""
    proofs = [_read(line) for line in lines if line.strip()]
    if not proofs:
        raise ConfigError("there is no proof", hint="give a file with one JSON object a line")
    if claims.leaves and claims.leaf_hashes:
        raise ConfigError("leaves and their hashes are both given", hint="give one kind")
    n_proved = sum(map(_n_leaves, proofs))
    given = claims.leaves or claims.leaf_hashes
    if len(given) != n_proved:
        raise ConfigError(
            f"{len(given)} leaves are given, {n_proved} are proved",
            hint="give your leaves, in the proofs' order",
        )
    answers, at = [], 0
    for proof in proofs:
        n = _n_leaves(proof)
        answers.append(_check(proof, given[at : at + n], claims))
        at += n
    return answers


def _read(line: str) -> Proof:
    page = read_object(line)
    return (sorted_proof_from_json if page.get("kind") in ("sorted", "multi") else proof_from_json)(page)


def _n_leaves(proof: Proof) -> int:
    if isinstance(proof, MultiProof):
        return len(proof.leaf_hashes)
    return 0 if isinstance(proof, ConsistencyProof) else 1


def _check(proof: Proof, given: Sequence[bytes], claims: Claims) -> bool:
    if isinstance(proof, ConsistencyProof):
        if claims.old_root is None:
            raise ConfigError("a proof of growth needs the older root", hint="give --old-root")
        is_size = claims.size in (None, proof.new_size)
        return is_size and proof.verify(claims.old_root, claims.root)
    if isinstance(proof, MultiProof):
        if claims.leaves:
            return proof.verify(given, claims.root)
        return tuple(given) == proof.leaf_hashes and proof.verify_hashes(claims.root)
    if isinstance(proof, InclusionProof):
        checked = proof.verify if claims.leaves else proof.verify_hash
        return checked(given[0], claims.root, claims.size)
    return (proof.verify if claims.leaves else proof.verify_hash)(given[0], claims.root)
