"""Every engine gives the same bytes as plain Python: any scheme, any count, any length of leaves."""

import numpy as np
import pytest

from evenload.errors import ConfigError
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


@pytest.mark.parametrize("name", ["rfc6962", "rfc6962-blake2s"])
@pytest.mark.parametrize("width", [0, 1, 31, 33, 55, 64, 200])
def test_leaves_of_any_length(engine_of, name, width):
    scheme = Scheme(name)
    rows = np.random.default_rng(width).integers(0, 256, (19, width), dtype=np.uint8)
    assert engine_of(scheme).leaves(rows).tobytes() == PlainEngine(scheme).leaves(rows).tobytes()


def test_keccak(engine_of):
    scheme = Scheme("openzeppelin")
    rows = np.random.default_rng(0).integers(0, 256, (9, 64), dtype=np.uint8)
    engine = engine_of(scheme)
    assert StandardTree(rows, engine=engine).root == StandardTree(rows, engine=PlainEngine(scheme)).root
    assert engine.leaves(rows[:, :32].copy()).tobytes() == PlainEngine(scheme).leaves(rows[:, :32]).tobytes()


@pytest.mark.parametrize("n", [4096 * 3, 4096 * 3 + 1, 40_001])
def test_threads_share_large_levels(rows_for, n):
    rows = rows_for(n)
    one, three = make_engine(Scheme(), threads=1), make_engine(Scheme(), threads=3)
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
    expected = PlainEngine(Scheme())
    for height in (2, 4, 6):
        n = 100 >> height << height
        assert (
            engine.subtree_roots(rows[:n], height).tobytes()
            == expected.subtree_roots(rows[:n], height).tobytes()
        )


def test_a_lost_device_does_not_lose_the_tree(context, rows_for):
    from evenload.merkle.wgsl_engine import WgslEngine

    engine = WgslEngine(Scheme())  # on a device of its own
    rows = rows_for(50)
    engine.leaves(rows)
    engine.context.device.destroy()
    assert MerkleTree(rows, engine=engine).root == MerkleTree(rows).root
    assert engine.context.n_losses == 1
    engine.close()


def test_an_engine_needs_a_thread():
    with pytest.raises(ConfigError, match="0 threads"):
        CpuEngine(Scheme(), 0)


def test_without_kernels_plain_python_hashes(monkeypatch):
    import evenload.merkle.engine as module

    monkeypatch.setattr(module, "is_installed", lambda name: False)
    tree = MerkleTree([b"a", b"b", b"c"])
    assert tree._engine.name == "plain"
    assert tree.root == MerkleTree([b"a", b"b", b"c"], engine=CpuEngine(Scheme())).root
