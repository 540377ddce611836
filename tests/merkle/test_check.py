"""Many proofs against what one person trusts: exactly the leaves that are proved have to be given."""

import json

import pytest

from evenload.errors import ConfigError, FormatError
from evenload.merkle import MerkleTree, StandardTree
from evenload.merkle.check import Claims, check_proofs

RECORDS = [b"a", b"b", b"c", b"d", b"e"]


def lines(*proofs):
    return [json.dumps(proof.to_json()) for proof in proofs]


def test_inclusion_and_growth():
    tree = MerkleTree(RECORDS)
    proofs = lines(tree.prove(1), tree.prove_consistency(3), tree.prove(4))
    claims = Claims(tree.root, tree.root_at(3), leaves=[b"b", b"e"])
    assert check_proofs(proofs, claims) == [True, True, True]
    assert check_proofs(proofs, Claims(tree.root, bytes(32), [b"e", b"b"])) == [False, False, False]
    sized = Claims(tree.root, tree.root_at(3), [b"b", b"e"], size=4)
    assert check_proofs(proofs, sized) == [False, False, False]
    hashes = [tree.level(0)[k].tobytes() for k in (1, 4)]
    assert check_proofs([proofs[0], "", proofs[2]], Claims(tree.root, leaf_hashes=hashes)) == [True, True]


def test_sorted_trees():
    tree = StandardTree(RECORDS)
    multi = tree.prove_many([0, 3])
    by_hash = {tree.leaf_hash(k): RECORDS[k] for k in range(5)}
    leaves = [by_hash[node] for node in multi.leaf_hashes]
    proofs = lines(tree.prove(2), multi)
    assert check_proofs(proofs, Claims(tree.root, leaves=[b"c", *leaves])) == [True, True]
    assert check_proofs(proofs, Claims(tree.root, leaves=[b"c", *leaves[::-1]])) == [True, False]
    hashes = [tree.leaf_hash(2), *multi.leaf_hashes]
    assert check_proofs(proofs, Claims(tree.root, leaf_hashes=hashes)) == [True, True]


def test_what_is_missing_is_asked_for():
    tree = MerkleTree(RECORDS)
    with pytest.raises(ConfigError, match="0 leaves are given, 1 are proved"):
        check_proofs(lines(tree.prove(0)), Claims(tree.root))
    with pytest.raises(ConfigError, match="older root"):
        check_proofs(lines(tree.prove_consistency(2)), Claims(tree.root))
    with pytest.raises(ConfigError, match="both given"):
        check_proofs(lines(tree.prove(0)), Claims(tree.root, None, [b"a"], [bytes(32)]))
    with pytest.raises(ConfigError, match="no proof"):
        check_proofs(["", " "], Claims(tree.root))
    with pytest.raises(FormatError):
        check_proofs(["{}"], Claims(tree.root))
