"""Trees: published vectors, the slow twin, any way to grow, proofs of any size it ever had."""

import hashlib

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, UnknownName
from evenload.merkle import MerkleTree, RootStream, Scheme, proof_from_json
from evenload.merkle.plain_engine import PlainEngine

# Certificate Transparency's reference tests: eight records and the roots of the first 1 .. 8.
CT_RECORDS = [b"", b"\x00", b"\x10", b"\x20\x21", b"\x30\x31"]
CT_RECORDS += [bytes(range(16 * k, 16 * k + n)) for k, n in ((4, 4), (5, 8), (6, 16))]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
# Bitcoin's block 100,000, as explorers show it: bytes backwards.
BLOCK_100000 = [
    "8c14f0db3df150123e6f3dbbf30f8b955a8249b62ac1d1ff16284aefa3d06d87",
    "fff2525b8931402dd09222c50775608f75787bd2b87e56995a7bdd30f79702c4",
    "6359f0868171b1d194cbee1af2f16ea598ae8fad666d9b012c8ed2b79a236ec4",
    "e9a66845e05d5abc0ad04ec80f774a7e585c6e8db975962d069a522137b80c1d",
]
BLOCK_100000_ROOT = "f3e94742aca4b5ef85488dc37c06c3282295ffec960994b2c0d5ac2a25a95766"


def test_certificate_transparency():
    tree = MerkleTree()
    tree.append_records(CT_RECORDS)
    assert [tree.root_at(size).hex() for size in range(1, 9)] == CT_ROOTS
    assert tree.root_at(0).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_bitcoin_block_100000():
    leaves = [bytes.fromhex(text)[::-1] for text in BLOCK_100000]
    tree = MerkleTree(leaves, scheme="bitcoin")
    assert tree.root[::-1].hex() == BLOCK_100000_ROOT
    assert not tree.is_mutated


def test_poseidon_of_one_and_two():
    """circomlib's own test vector for poseidon([1, 2])."""
    rows = np.zeros((2, 32), np.uint8)
    rows[:, 0] = 1, 2
    root = MerkleTree(rows, scheme="poseidon").root
    assert int.from_bytes(root, "little") == int(
        "7853200120776062878684798364095072458815029376092732009249414926327459813530"
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 11, 16, 21])
def test_equals_the_twin(scheme, twin, rows_for, n):
    rows = rows_for(n)
    leaves = [row.tobytes() for row in rows]
    assert MerkleTree(rows, scheme=scheme).root == twin(scheme).root(leaves)
    assert MerkleTree(leaves, scheme=scheme).root == twin(scheme).root(leaves)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 12), max_size=8), st.sampled_from(["rfc6962", "bitcoin", "rfc6962-blake2s"]))
def test_growing_is_the_same_as_building(counts, name):
    rows = np.random.default_rng(1).integers(0, 256, (sum(counts), 32), dtype=np.uint8)
    grown, at = MerkleTree(scheme=name), 0
    for count in counts:
        grown.append(rows[at : at + count])
        at += count
        if at:
            assert grown.root == MerkleTree(rows[:at], scheme=name).root
    for height in range(sum(counts).bit_length()):
        assert len(grown.level(height)) == sum(counts) >> height


def test_each_size_keeps_its_root_and_its_proofs(scheme, rows_for):
    rows = rows_for(13)
    tree = MerkleTree(rows, scheme=scheme)
    for size in range(1, 14):
        then = MerkleTree(rows[:size], engine=PlainEngine(scheme))
        assert tree.root_at(size) == then.root
        proofs = tree.prove_many(range(size), size)
        assert proofs == then.prove_many(range(size))
        assert all(proof.verify(row, then.root) for proof, row in zip(proofs, rows, strict=False))


@pytest.mark.parametrize("name", ["rfc6962", "rfc6962-blake2s"])
def test_consistency_between_all_sizes(name, rows_for):
    tree = MerkleTree(rows_for(17), scheme=name)
    for new in range(1, 18):
        for old in range(1, new + 1):
            proof = tree.prove_consistency(old, new)
            assert proof.verify(tree.root_at(old), tree.root_at(new))
            assert not proof.verify(tree.root_at(old), bytes(32))
            assert not proof.verify(bytes(32), tree.root_at(new))


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 12])
def test_repeated_transactions_give_the_same_root_and_are_flagged(rows_for, n):
    """CVE-2012-2459: the leaves that Bitcoin's rule would duplicate, written out."""
    rows = rows_for(n)
    honest = MerkleTree(rows, scheme="bitcoin")
    assert not honest.is_mutated
    size, height = n, 0
    while not size & 1:
        size, height = size >> 1, height + 1
    if size == 1:
        return
    forged = MerkleTree(np.concatenate([rows, rows[-1 << height :]]), scheme="bitcoin")
    assert forged.root == honest.root
    assert forged.is_mutated
    grown = MerkleTree(rows, scheme="bitcoin")
    for row in rows[-1 << height :]:
        grown.append(row[None])
    assert grown.is_mutated


def test_blake2s_in_the_shape_of_rfc6962_is_what_its_page_says_by_either_name(rows_for):
    """Node depth tells leaves from nodes, and no node knows its place: it is not BLAKE2's tree mode."""
    rows = rows_for(3)
    options = {"fanout": 2, "depth": 255, "inner_size": 32, "key": b"k", "person": b"app"}
    a, b, c = (hashlib.blake2s(row.tobytes(), **options).digest() for row in rows)
    expected = hashlib.blake2s(
        hashlib.blake2s(a + b, node_depth=1, **options).digest() + c, node_depth=1, **options
    ).digest()
    scheme = Scheme("rfc6962-blake2s", key=b"k", person=b"app")
    assert MerkleTree(rows, scheme=scheme).root == expected


@pytest.mark.parametrize(
    "named", [Scheme, lambda name: MerkleTree(scheme=name).scheme, lambda name: RootStream(name).scheme]
)
def test_the_old_name_works_and_warns_where_it_is_written(named):
    with pytest.warns(DeprecationWarning, match='"blake2s" is "rfc6962-blake2s" now') as seen:
        assert named("blake2s") == Scheme("rfc6962-blake2s")
    assert [one.filename for one in seen] == [__file__]


def test_a_file_with_the_old_name_is_read_without_a_warning(rows_for):
    """Who reads it cannot change it."""
    tree = MerkleTree(rows_for(3), scheme="rfc6962-blake2s")
    page = tree.prove(1).to_json()
    assert page["scheme"] == "rfc6962-blake2s"
    assert proof_from_json({**page, "scheme": "blake2s"}) == tree.prove(1)


@pytest.mark.parametrize(
    ("leaves", "match"),
    [
        (np.zeros((3, 32), np.int64), "not uint8"),
        (np.zeros(32, np.uint8), "not uint8"),
        (np.zeros((2, 2, 32), np.uint8), "not uint8"),
        (b"x" * 64, "no set of leaves"),
        (5, "no set of leaves"),
        ([b"a", b"bc"], "leaf 1 has 2 bytes"),
        ([b"a", "b"], "leaf 1 is a str"),
    ],
)
def test_what_are_no_leaves(leaves, match):
    with pytest.raises(ConfigError, match=match):
        MerkleTree(leaves)


@pytest.mark.parametrize("name", ["bitcoin", "poseidon"])
@pytest.mark.parametrize("width", [0, 31, 33, 64])
def test_leaves_that_are_nodes_have_32_bytes(name, width):
    with pytest.raises(ConfigError, match="32 bytes"):
        MerkleTree(np.zeros((2, width), np.uint8), scheme=name)


def test_elements_that_are_not_below_the_order_are_refused():
    from evenload.gpu.field import FR

    def rows(value):
        return [bytes(32), value.to_bytes(32, "little")]

    assert len(MerkleTree(rows(FR.modulus - 1), scheme="poseidon")) == 2
    for value in (FR.modulus, 2**256 - 1):
        with pytest.raises(ConfigError, match="node 1 is not below"):
            MerkleTree(rows(value), scheme="poseidon")


def test_no_leaves():
    for name in ("bitcoin", "rfc6962-blake2s", "poseidon"):
        empty = MerkleTree(np.empty((0, 32), np.uint8), scheme=name)
        assert len(empty) == 0
        assert not empty.is_mutated
        with pytest.raises(ConfigError, match="without leaves"):
            _ = empty.root


def test_what_the_tree_never_had():
    tree = MerkleTree([b"a", b"b"])
    calls = [(tree.root_at, 3), (tree.root_at, -1), (tree.prove, 2), (tree.prove, -1), (tree.prove, 1, 1)]
    calls += [(tree.prove_consistency, *sizes) for sizes in ((3,), (0,), (1, 5))]
    for call, *sizes in [*calls, (tree.level, 9)]:
        with pytest.raises(ConfigError):
            call(*sizes)
    with pytest.raises(ConfigError, match="no leaf 0 among 0") as caught:
        MerkleTree([]).prove(0)
    assert caught.value.hint is not None
    assert "-1" not in caught.value.hint
    with pytest.raises(ConfigError, match="no consistency proofs"):
        MerkleTree([bytes(32)] * 2, scheme="bitcoin").prove_consistency(1)


def test_trees_that_there_are_not():
    with pytest.raises(UnknownName, match="md5"):
        MerkleTree(scheme="md5")
    with pytest.raises(ConfigError, match="StandardTree"):
        MerkleTree(scheme="openzeppelin")
    for options in ({"depth": 3}, {"key": b"k"}, {"person": b"p"}):
        with pytest.raises(ConfigError):
            Scheme("rfc6962", **options)
    for options in ({"key": b"k" * 33}, {"person": b"p" * 9}):
        with pytest.raises(ConfigError):
            Scheme("rfc6962-blake2s", **options)
    with pytest.raises(ConfigError):
        Scheme("poseidon", depth=64)
    with pytest.raises(ConfigError, match="do not fit"):
        MerkleTree(np.zeros((5, 32), np.uint8), scheme=Scheme("poseidon", depth=2))


def test_levels_cannot_be_written():
    tree = MerkleTree([b"a", b"b"])
    with pytest.raises(ValueError, match="read-only"):
        tree.level(0)[0] = 0
    tree.append([b"c"])
    assert len(tree) == 3
