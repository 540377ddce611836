"""OpenZeppelin's format: the example of its documentation, its rules for proofs, and ABI encoding."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from node_calls import Node, has

from evenload.errors import ConfigError, FormatError
from evenload.merkle import StandardTree
from evenload.merkle.abi import encode, split_types
from evenload.merkle.proof import MultiProof, SortedProof, sorted_proof_from_json
from evenload.merkle.scheme import keccak256

VALUES = [
    ["0x1111111111111111111111111111111111111111", "5000000000000000000"],
    ["0x2222222222222222222222222222222222222222", "2500000000000000000"],
]
TYPES = ["address", "uint256"]
# The dump in the README of @openzeppelin/merkle-tree.
NODES = [
    "0xd4dee0beab2d53f2cc83e567171bd2820e49898130a22622b10ead383e90bd77",
    "0xeb02c421cfa48976e66dfb29120745909ea3a0f843456c263cf8f1253483e283",
    "0xb92c48e9d7abe27fd8dfd6b5dfdbfb1c9a463f80c712b66f3a5180a090cccafc",
]


A = "0x" + "11" * 20


def tree_of(n, width=64):
    rows = np.random.default_rng(n).integers(0, 256, (n, width), dtype=np.uint8)
    return StandardTree(rows), [row.tobytes() for row in rows]


def twin(hashes):
    """The array of nodes, one after the other."""
    n = len(hashes)
    nodes = [b""] * (n - 1) + sorted(hashes)[::-1]
    for at in range(n - 2, -1, -1):
        nodes[at] = keccak256(b"".join(sorted(nodes[2 * at + 1 : 2 * at + 3])))
    return nodes


def test_the_documented_example():
    tree = StandardTree.of(VALUES, TYPES)
    dump = tree.dump()
    assert dump["tree"] == NODES
    assert [entry["treeIndex"] for entry in dump["values"]] == [1, 2]
    assert dump["format"] == "standard-v1"
    again = StandardTree.load(json.dumps(dump))
    assert again.dump() == dump


def test_published_digests_of_keccak256():
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert keccak256(b"hello").hex() == "1c8aff950685c2ed4bc3174f3472287b56d9517b9c948127319a09a7a36deac8"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9])
def test_nodes_equal_the_twin(n):
    tree, leaves = tree_of(n)
    hashes = [keccak256(keccak256(leaf)) for leaf in leaves]
    assert tree._nodes.tobytes() == b"".join(twin(hashes))
    assert [tree.leaf_hash(k) for k in range(n)] == hashes


def test_leaves_of_different_lengths():
    leaves = [b"a", b"bb", b"c", b"", b"d" * 200]
    tree = StandardTree(leaves)
    assert tree._nodes.tobytes() == b"".join(twin([keccak256(keccak256(leaf)) for leaf in leaves]))


def test_unsorted_leaves_keep_their_order():
    _, leaves = tree_of(5)
    tree = StandardTree(leaves, sort=False)
    assert [int(at) for at in tree._position] == [8, 7, 6, 5, 4]
    assert all(tree.prove(k).verify(leaf, tree.root) for k, leaf in enumerate(leaves))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_every_leaf_is_proved(n):
    tree, leaves = tree_of(n)
    for index, leaf in enumerate(leaves):
        proof = tree.prove(index)
        assert proof.verify(leaf, tree.root)
        assert not proof.verify(leaf + b"x", tree.root)
        assert not proof.verify(leaf, bytes(32))
        assert sorted_proof_from_json(json.dumps(proof.to_json())) == proof


def test_64_bytes_of_nodes_are_no_leaf():
    """A leaf is hashed twice, so that an inner node's content cannot pass for one."""
    tree, _ = tree_of(4)
    inner = b"".join(sorted([tree._nodes[3].tobytes(), tree._nodes[4].tobytes()]))
    assert not SortedProof((tree._nodes[2].tobytes(),)).verify(inner, tree.root)


TREE, LEAVES = tree_of(11, 32)


@settings(max_examples=examples(20), deadline=None)
@given(st.sets(st.integers(0, 10), min_size=1))
def test_multiproofs(chosen):
    proof = TREE.prove_many(sorted(chosen))
    assert proof.verify_hashes(TREE.root)
    in_order = {TREE.leaf_hash(k): LEAVES[k] for k in chosen}
    assert proof.verify([in_order[node] for node in proof.leaf_hashes], TREE.root)
    assert not proof.verify([LEAVES[0]] * len(chosen), TREE.root) or chosen == {0}
    assert sorted_proof_from_json(json.dumps(proof.to_json())) == proof
    for forged in (
        replace(proof, flags=(*proof.flags, True)),
        replace(proof, flags=proof.flags[:-1]),
        replace(proof, proof=(*proof.proof, bytes(32))),
        replace(proof, leaf_hashes=proof.leaf_hashes[1:]),
    ):
        if forged != proof:
            assert not forged.verify_hashes(TREE.root)


def test_a_root_in_the_proof_proves_nothing():
    """GHSA-wprv-93r4-jj2p, and a proof of no leaves."""
    root, leaf = TREE.root, b"\x99" * 32
    for forged in (
        MultiProof((), (root,), ()),
        MultiProof((leaf,), (root,), (True,)),
        MultiProof((leaf, leaf), (root,), (True, True)),
        MultiProof((leaf,), (leaf, root), (False, False)),
        MultiProof((leaf, root), (), (False,)),
        MultiProof((leaf, leaf, leaf), (root,), (True, True, True)),
    ):
        assert not forged.verify_hashes(root)


@pytest.mark.parametrize(
    "change",
    [{"flags": (1,)}, {"flags": ("true",)}, {"proof": (b"x",)}, {"leaf_hashes": ("x" * 32,)}],
)
def test_what_is_no_multiproof(change):
    with pytest.raises(ConfigError):
        replace(TREE.prove_many([0, 1]), **change)


MALFORMED = {
    "kind": ("single", None), "format": ("x",), "scheme": ("rfc6962",), "flags": (5, [0]),
    "proof": (["0x00"],), "leaf_hashes": (None,), "more": (1,),
}  # fmt: skip


@pytest.mark.parametrize("key", MALFORMED)
def test_malformed_multiproofs(key):
    for value in MALFORMED[key]:
        with pytest.raises(FormatError):
            sorted_proof_from_json(TREE.prove_many([0, 1]).to_json() | {key: value})


def test_bad_input():
    for leaves in ([], np.empty((0, 64), np.uint8)):
        with pytest.raises(ConfigError, match="without leaves"):
            StandardTree(leaves)
    with pytest.raises(ConfigError, match="leaf 1 is a str"):
        StandardTree([b"a", "b"])
    with pytest.raises(ConfigError, match="not uint8"):
        StandardTree(np.zeros((2, 8)))
    for indices in ([], [0, 0], [11], [-1]):
        with pytest.raises(ConfigError):
            TREE.prove_many(indices)
    with pytest.raises(ConfigError, match="no leaf 11"):
        TREE.prove(11)
    with pytest.raises(ConfigError, match=r"StandardTree\.of"):
        TREE.dump()
    with pytest.raises(ConfigError, match="1 values for 2 types"):
        encode(TYPES, ["x"])


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "1" * 5000])
def test_text_that_is_no_dump(text):
    with pytest.raises(FormatError):
        StandardTree.load(text)


LOOSE = {
    "format": ("standard-v2",), "tree": (NODES[::-1], NODES[:2], [1]), "values": ([], [{"value": VALUES[0]}]),
    "leafEncoding": (["address"], 5),
}  # fmt: skip


@pytest.mark.parametrize("key", LOOSE)
def test_a_dump_that_does_not_hold_together(key):
    for value in LOOSE[key]:
        with pytest.raises(FormatError):
            StandardTree.load(StandardTree.of(VALUES, TYPES).dump() | {key: value})


ROOTS = {
    "address[]": ([A], "3ad244ed26f6eb10c16f5dd3bcd5f69a01ddac69ccfa610dc4316bf6a8cef66c"),
    "uint256[2]": ([1, 2], "7fef4bf8f63cf9dd467136c679c02b5c17fcf6322d9562512bf5eb952cf7cc53"),
    "(address,uint256)": ([A, 5], "dc984b7043e0c8ae8e70bc0e6568af0135198234df994ba88ca915bbf0734048"),
    "uint256[][2]": ([[1], [2, 3]], "9606575401a884881acc2a70725ff598b681aae7cc5e987d405f84d82107be81"),
    "(string,uint8[])[]": (
        [["x", [1, 2]]],
        "b3ba7f9191ecb48f69e7adf7d0459f9d4660feb8ae0367f975a807ffa0b45a5a",
    ),
    "bytes3[2]": (
        ["0x010203", "0x040506"],
        "b39f09e7fdcfc3469217ac6d812131feb11e4e3399a449969b9007f6e934ecc5",
    ),
    "string[]": (["a", "b"], "7a55e2e63050a963a3d5db1cc66678b9cfb27c8f9d2eb89d9387c01c83c5c271"),
}


@pytest.mark.parametrize("kind", ROOTS)
def test_arrays_and_tuples_have_the_roots_of_openzeppelin(kind):
    """Oracle: what @openzeppelin/merkle-tree 1.0.8 made of the same values, written down."""
    value, root = ROOTS[kind]
    tree = StandardTree.of([[value]], [kind])
    assert tree.root.hex() == root
    assert StandardTree.load(json.dumps(tree.dump())).root == tree.root


def kind_of(rng, depth=0):
    how = rng.random() if depth < 3 else 1.0
    if how < 0.4:
        return kind_of(rng, depth + 1) + rng.choice(["[]", "[1]", "[3]"])
    if how < 0.6:
        return "(" + ",".join(kind_of(rng, depth + 1) for _ in range(rng.randint(1, 3))) + ")"
    return rng.choice(["address", "bool", "uint", "uint8", "int64", "bytes", "string", "bytes7", "function"])


def value_of(rng, kind):
    if kind.endswith("]"):
        part, _, n = kind[:-1].rpartition("[")
        return [value_of(rng, part) for _ in range(int(n) if n else rng.randint(0, 3))]
    if kind.startswith("("):
        return [value_of(rng, part) for part in split_types(kind[1:-1])]
    n_bytes = {"address": 20, "function": 24, "bytes7": 7, "bytes": rng.randint(0, 70)}.get(kind)
    if n_bytes is not None:
        return "0x" + rng.randbytes(n_bytes).hex()
    if kind == "string":
        return "".join(rng.choices("aé€\U0001f600 ", k=rng.randint(0, 40)))
    return {
        "bool": rng.random() < 0.5, "uint": str(rng.randrange(2**256)), "uint8": rng.randrange(256),
        "int64": str(rng.randrange(-(2**63), 2**63)),
    }[kind]  # fmt: skip


@pytest.mark.skipif(not has("@openzeppelin/merkle-tree"), reason="no @openzeppelin/merkle-tree (make setup)")
def test_random_values_have_the_roots_of_openzeppelin():
    """Oracle: the npm package itself, on the same types and values."""
    rng, trees = random.Random(5), []
    for _ in range(200):
        kinds = [kind_of(rng) for _ in range(rng.randint(1, 3))]
        rows = [[value_of(rng, kind) for kind in kinds] for _ in range(rng.randint(1, 3))]
        trees.append((kinds, rows))
    with Node() as node:
        roots = node("openzeppelin", trees)
    assert ["0x" + StandardTree.of(rows, kinds).root.hex() for kinds, rows in trees] == roots


def test_abi_encoding_of_each_kind():
    """Oracle: the examples of the Solidity specification, "sam" and "f" of four arguments; and edges."""
    assert encode(["uint32", "bool"], [69, True]).hex() == f"{69:064x}{1:064x}"
    assert encode(["bytes", "bool"], [b"dave", True]).hex() == (
        f"{0x40:064x}{1:064x}{4:064x}" + b"dave".hex().ljust(64, "0")
    )
    words = (0x123, 0x80, "31323334353637383930".ljust(64, "0"), 0xE0, 2, 0x456, 0x789, 13)
    spec = "".join(word if isinstance(word, str) else f"{word:064x}" for word in words)
    given = [0x123, [0x456, 0x789], b"1234567890", b"Hello, world!"]
    encoded = encode(["uint256", "uint32[]", "bytes10", "bytes"], given).hex()
    assert encoded == spec + b"Hello, world!".hex().ljust(64, "0")
    assert encode(["int8"], [-1]) == b"\xff" * 32
    assert encode(["bytes3"], ["0x616263"]).hex() == "616263".ljust(64, "0")
    assert encode(["string", "string"], ["", "é"]).hex() == (
        f"{0x40:064x}{0x60:064x}{0:064x}{2:064x}" + "c3a9".ljust(64, "0")
    )


BAD = {
    "uint8": (256, -1, "1" * 5000, "0x" + "1" * 5000), "int8": (128, -129), "uint7": (1,),
    "uint256": (2**256, "five", 1.0, True), "uint264": (1,), "uint0": (1,), "uint٢": (1,),
    "uint" + "8" * 5000: (8,), "bytes33": (b"",), "bytes": (5,), "bytes4": (b"abc", "xyz"), "tuple": ((),),
    "address": ("0x11", 5), "bool": (1, "true"),
    "string": (b"bytes", "\ud800"), "uint256[]": (5, ["five"]), "uint256[2]": ([1],), "uint256[0]": ([],),
    "uint256[-1]": ([],), "(bool,string)": ([True], "ab"), "(bool,string": ([True, "a"],), "()": ([],),
    "(bool)x": ([True],), "[]": ([],), "[]" * 5000: ([],), "(" * 400 + "bool" + ")" * 400: ([],),
    "bool" + "[]" * 200: ([],), "\x1b" * 1000: (1,),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: repr(kind)[:20])
def test_values_that_are_not_of_their_type(kind):
    for value in BAD[kind]:
        with pytest.raises(ConfigError) as caught:
            encode([kind], [value])
        assert len(caught.value.message) <= 200
        assert caught.value.message.isprintable()
