"""Every engine gives the same bytes as plain Python: any scheme, any count, any length of leaves."""

import numpy as np
import pytest

from evenload.merkle import MerkleTree, Scheme, StandardTree, make_engine
from evenload.merkle.cpu_engine import CpuEngine
from evenload.merkle.plain_engine import PlainEngine

SCHEMES = [
    Scheme("rfc6962"),
    Scheme("bitcoin"),
    Scheme("rfc6962-blake2s", key=b"key", person=b"test"),
    Scheme("poseidon"),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_levels_and_subtrees(engine_of, scheme, rows_for):
    engine, plain, rows = engine_of(scheme), PlainEngine(scheme), rows_for(40)
    nodes = plain.leaves(rows)
    assert engine.leaves(rows).tobytes() == nodes.tobytes()
    assert engine.pairs(nodes).tobytes() == plain.pairs(nodes).tobytes()
    for top in (None, 0, 2):
        levels, expected = engine.climb(nodes, top), plain.climb(nodes, top)
        assert [level.tobytes() for level in levels] == [level.tobytes() for level in expected]
    for height in (0, 1, 3):
        assert engine.subtree_roots(rows, height).tobytes() == plain.subtree_roots(rows, height).tobytes()
    engine.close()


@pytest.mark.parametrize("name", ["rfc6962", "rfc6962-blake2s", "openzeppelin"])
def test_leaves_of_any_length(engine_of, name):
    scheme = Scheme(name)
    engine, plain = engine_of(scheme), PlainEngine(scheme)
    for width in (0, 1, 31, 33, 55, 64, 200) if name != "openzeppelin" else (32, 64):
        rows = np.random.default_rng(width).integers(0, 256, (9, width), dtype=np.uint8)
        assert engine.leaves(rows).tobytes() == plain.leaves(rows).tobytes()
    if name == "openzeppelin":
        assert StandardTree(rows, engine=engine).root == StandardTree(rows, engine=plain).root


def test_threads_share_large_levels(rows_for):
    one, three = make_engine(Scheme(), threads=1), make_engine(Scheme(), threads=3)
    for n in (4096 * 3, 4096 * 3 + 1, 40_001):
        rows = rows_for(n)
        assert MerkleTree(rows, engine=one).root == MerkleTree(rows, engine=three).root
    three.close()
    assert MerkleTree(rows[:5], engine=three).root == MerkleTree(rows[:5]).root


def test_subtrees_higher_than_what_is_folded_at_once(rows_for, monkeypatch):
    import evenload.merkle.cpu_engine as module

    monkeypatch.setattr(module, "CHUNK_LEAVES", 16)
    rows = rows_for(256)
    for threads in (1, 3):
        engine = CpuEngine(Scheme(), threads)
        for height in range(9):
            expected = PlainEngine(Scheme()).subtree_roots(rows, height)
            assert engine.subtree_roots(rows, height).tobytes() == expected.tobytes()
        engine.close()


def test_more_leaves_than_one_binding_holds(context, rows_for, monkeypatch):
    from evenload.merkle.wgsl_engine import WgslEngine

    engine = WgslEngine(Scheme(), context=context)
    engine._chunk_height = 4
    rows = rows_for(100)
    assert MerkleTree(rows, engine=engine).root == MerkleTree(rows).root
    for height in (2, 4, 6):
        part = rows[: 100 >> height << height]
        expected = PlainEngine(Scheme()).subtree_roots(part, height)
        assert engine.subtree_roots(part, height).tobytes() == expected.tobytes()


def test_a_lost_device_does_not_lose_the_tree(context, rows_for):
    from evenload.merkle.wgsl_engine import WgslEngine

    engine = WgslEngine(Scheme())  # on a device of its own
    rows = rows_for(50)
    engine.leaves(rows)
    engine.context.device.destroy()
    assert MerkleTree(rows, engine=engine).root == MerkleTree(rows).root
    assert engine.context.n_losses == 1
    engine.close()


def test_without_kernels_plain_python_hashes(monkeypatch):
    import evenload.merkle.engine as module

    monkeypatch.setattr(module, "is_installed", lambda name: False)
    tree = MerkleTree([b"a", b"b", b"c"])
    assert tree._engine.name == "plain"
    assert tree.root == MerkleTree([b"a", b"b", b"c"], engine=CpuEngine(Scheme())).root
