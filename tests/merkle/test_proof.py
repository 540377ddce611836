"""Proofs from strangers: nothing but the right leaf, place, size and root passes."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError
from evenload.merkle import ConsistencyProof, InclusionProof, MerkleTree, Scheme, proof_from_json

NODE = st.binary(min_size=32, max_size=32)
NAMES = st.sampled_from(["rfc6962", "bitcoin", "rfc6962-blake2s"])


def tree_of(name, n):
    return MerkleTree([bytes([k]) * 32 for k in range(n)], scheme=name)


@settings(max_examples=examples(60), deadline=None)
@given(NAMES, st.integers(1, 20), st.data())
def test_another_place_size_leaf_or_node_does_not_verify(name, n, draw):
    tree = tree_of(name, n)
    index = draw.draw(st.integers(0, n - 1))
    proof, leaf = tree.prove(index), bytes([index]) * 32
    assert proof.verify(leaf, tree.root)
    assert not proof.verify(bytes([255]) * 32, tree.root)
    other_root = draw.draw(NODE)
    assert proof.verify(leaf, other_root) == (other_root == tree.root)
    other = draw.draw(st.integers(0, n - 1))
    if other != index:
        assert not replace(proof, index=other).verify(leaf, tree.root)
    for k in range(len(proof.path)):
        changed = list(proof.path)
        changed[k] = bytes(31) + b"\7"
        assert not replace(proof, path=tuple(changed)).verify(leaf, tree.root)
    for path in (proof.path[:-1], (*proof.path, bytes(32)), (bytes(32), *proof.path)):
        if path != proof.path:
            assert not replace(proof, path=path).verify(leaf, tree.root)


def test_a_node_is_no_leaf():
    """The second preimage that prefixes are there to prevent."""
    tree = tree_of("rfc6962", 4)
    inner = tree.level(0)[:2].tobytes()
    forged = InclusionProof(tree.scheme, 0, 2, (tree.level(1)[1].tobytes(),))
    assert not forged.verify(inner, tree.root)


@pytest.mark.parametrize("name", ["bitcoin", "rfc6962"])
def test_a_size_that_is_known_pins_the_depth(name):
    """Where leaves are not hashed, a node is a leaf of the smaller tree above it."""
    tree = tree_of(name, 4)
    node = tree.level(1)[0].tobytes()
    forged = InclusionProof(tree.scheme, 0, 2, (tree.level(1)[1].tobytes(),))
    assert forged.verify_hash(node, tree.root)
    assert not forged.verify_hash(node, tree.root, size=4)
    assert forged.verify(node, tree.root) == (name == "bitcoin")
    assert not forged.verify(node, tree.root, size=4)
    assert tree.prove(1).verify(bytes([1]) * 32, tree.root, size=4)


def test_bitcoins_duplicate_must_be_one():
    tree = tree_of("bitcoin", 3)
    proof = tree.prove(2)
    assert proof.path[0] == bytes([2]) * 32
    assert not replace(proof, path=(bytes([9]) * 32, proof.path[1])).verify(bytes([2]) * 32, tree.root)


def test_elements_have_one_name():
    """x and x + r are the same element: a second name would make a second proof."""
    from evenload.gpu.field import FR

    tree = MerkleTree([bytes(32), bytes([1, *bytes(31)])], scheme="poseidon")
    proof = tree.prove(0)
    alias = (1 + FR.modulus).to_bytes(32, "little")
    with pytest.raises(ConfigError, match="below the order"):
        replace(proof, path=(alias,))
    with pytest.raises(ConfigError, match="below the order"):
        proof.verify(FR.modulus.to_bytes(32, "little"), tree.root)
    with pytest.raises(ConfigError, match="below the order"):
        proof.verify_hash(FR.modulus.to_bytes(32, "little"), tree.root)


NO_PROOF = {
    "index": (-1, 8, True, 1.0, None), "size": (0, 2**64, "8"), "scheme": (Scheme("openzeppelin"),),
    "path": (None, (b"short",), ("text",), (bytes(32),) * 200),
}  # fmt: skip


def each(table):
    return [(key, value) for key, values in table.items() for value in values]


@pytest.mark.parametrize(("key", "value"), each(NO_PROOF))
def test_what_is_no_proof(key, value):
    with pytest.raises(ConfigError):
        replace(tree_of("rfc6962", 8).prove(3), **{key: value})


def test_roots_and_hashes_have_32_bytes():
    tree = tree_of("rfc6962", 5)
    for root in (b"", bytes(31), "text", None):
        with pytest.raises(ConfigError):
            tree.prove(1).verify(b"x", root)
        with pytest.raises(ConfigError):
            tree.prove_consistency(2).verify(root, tree.root)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 20), st.data())
def test_consistency_with_another_size_or_node_does_not_verify(n, draw):
    tree = tree_of("rfc6962", n)
    old = draw.draw(st.integers(1, n - 1))
    proof, roots = tree.prove_consistency(old), (tree.root_at(old), tree.root)
    assert proof.verify(*roots)
    other = draw.draw(st.integers(1, n))
    if other != old:
        assert not replace(proof, old_size=other).verify(tree.root_at(old), tree.root)
    for path in (proof.path[:-1], (*proof.path, bytes(32)), proof.path[::-1]):
        if path != proof.path:
            assert not replace(proof, path=path).verify(*roots)
    assert not ConsistencyProof(proof.scheme, n, n, proof.path).verify(tree.root, tree.root) or not proof.path


@pytest.mark.parametrize(("old", "new"), [(0, 3), (4, 3), (-1, 3), (1, 0), (True, 2), ("1", 2)])
def test_sizes_that_do_not_grow(old, new):
    with pytest.raises(ConfigError):
        ConsistencyProof(Scheme(), old, new)


def test_json_there_and_back():
    tree = MerkleTree([b"a", b"b", b"c"], scheme=Scheme("rfc6962-blake2s", person=b"app"))
    for proof in (tree.prove(1), tree.prove_consistency(2)):
        assert proof_from_json(json.dumps(proof.to_json())) == proof
        assert proof_from_json(proof.to_json()) == proof
    deep = MerkleTree([bytes(32)], scheme=Scheme("poseidon", depth=3)).prove(0)
    assert proof_from_json(json.dumps(deep.to_json())) == deep


def test_a_key_is_never_written():
    tree = MerkleTree([b"a", b"b"], scheme=Scheme("rfc6962-blake2s", key=b"secret"))
    with pytest.raises(ConfigError, match="give the key away"):
        tree.prove(0).to_json()


REPEATED = '{"format": "evenload-merkle-1", "format": "evenload-merkle-1"}'


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "{", "[" * 100_000, REPEATED, " " * (1 << 21), b"\xff{}"]
)
def test_text_that_is_no_proof(text):
    with pytest.raises(FormatError):
        proof_from_json(text)


WRONG = {
    "format": ("evenload-merkle-2",), "kind": ("multi", ["inclusion"]), "scheme": ("md5", 5, "openzeppelin"),
    "index": ("3", 1e9, 10**400), "size": (2, None), "path": ("00", [5], ["00"], ["zz" * 32], ["é" * 64]),
    "leaf_hash": (7,), "depth": (3, "3"), "person": ("00",), "extra": (1,),
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), each(WRONG))
def test_a_wrong_key_is_refused(key, value):
    page = tree_of("rfc6962", 8).prove(3).to_json()
    with pytest.raises(FormatError):
        proof_from_json(json.dumps(page | {key: value}))
    missing = "path" if key in ("leaf_hash", "depth", "person", "extra") else key
    with pytest.raises(FormatError):
        proof_from_json({name: one for name, one in page.items() if name != missing})


LONG = "\x1b]0;" + "x" * 100_000


@pytest.mark.parametrize(
    "value", [LONG, [LONG], {LONG: LONG}, 10**4000, [[10**4000]]], ids=lambda v: type(v).__name__
)
def test_messages_quote_little_and_no_control_characters(value):
    page = tree_of("rfc6962", 8).prove(3).to_json()
    for key in (*page, "leaf_hash", "depth", LONG):
        with pytest.raises(FormatError) as caught:
            proof_from_json(json.dumps(page | {key: value}))
        assert len(caught.value.message) <= 250
        assert caught.value.message.isprintable()


@pytest.mark.parametrize("size", [10**5000, -(10**5000)], ids=["huge", "negative"])
def test_sizes_of_many_digits(size):
    for change in ({"size": size}, {"index": size}):
        with pytest.raises(ConfigError, match="<int of 16610 bits>"):
            replace(tree_of("rfc6962", 8).prove(3), **change)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["format", "kind", "scheme", "index", "size", "path", "leaf_hash", "depth", "person", "key"]
)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_any_json_is_a_proof_or_a_format_error(changes):
    page = tree_of("rfc6962", 5).prove(3).to_json() | changes
    with suppress(FormatError, ConfigError):
        assert not proof_from_json(json.dumps(page)).verify(bytes(32), bytes(32))
