"""One tree over several devices: the same root by every strategy, from arrays and from files."""

import functools

import numpy as np
import pytest

from evenload.errors import ConfigError, FormatError, UnknownName
from evenload.executor import Executor
from evenload.merkle import MerkleTree, Scheme, parallel_root
from evenload.merkle import partition as module
from evenload.merkle.partition import Blocks, HashBlocks, LeafPart


@pytest.fixture(scope="module")
def inline():
    with Executor("cpu*3", backend="inline") as executor:
        yield executor


@pytest.mark.parametrize("strategy", ["equal", "proportional", "dynamic", "measured"])
def test_every_strategy_gives_the_root(inline, rows_for, strategy):
    for n in (0, 1, 1023, 1024, 5000):
        done = parallel_root(rows_for(n), strategy=strategy, executor=inline)
        assert (done.root, done.size) == (MerkleTree(rows_for(n)).root, n)
        assert done.parts.strategy == strategy


@pytest.mark.parametrize("name", ["bitcoin", "rfc6962-blake2s", "poseidon"])
def test_every_scheme(inline, rows_for, monkeypatch, name):
    monkeypatch.setattr(module, "LEAST_HEIGHT", 2)
    rows, scheme = rows_for(77), Scheme(name)
    root = parallel_root(rows, scheme=scheme, executor=inline).root
    assert root == MerkleTree(rows, scheme=scheme).root
    if name == "poseidon":
        rows[5] = 255
        with pytest.raises(Exception, match="below the order"):  # found by the workers
            parallel_root(rows, scheme=scheme, executor=inline)


def test_twins_are_found_in_any_block(inline, rows_for, monkeypatch):
    monkeypatch.setattr(module, "LEAST_HEIGHT", 2)
    rows = rows_for(64)
    assert not parallel_root(rows, scheme="bitcoin", executor=inline).is_mutated
    for twin_of, n in ((10, 1), (32, 16), (60, 2)):
        forged = rows.copy()
        forged[twin_of + n : twin_of + 2 * n] = rows[twin_of : twin_of + n]
        assert parallel_root(forged, scheme="bitcoin", executor=inline).is_mutated


def test_files(inline, tmp_path, rows_for):
    rows = np.random.default_rng(1).integers(0, 256, (3000, 48), dtype=np.uint8)
    (tmp_path / "raw").write_bytes(rows.tobytes())
    np.save(tmp_path / "rows.npy", rows)
    root = MerkleTree(rows).root
    assert parallel_root(tmp_path / "raw", width=48, executor=inline).root == root
    assert parallel_root(str(tmp_path / "rows.npy"), executor=inline).root == root
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert parallel_root(mapped, executor=inline).root == root
    assert parallel_root(mapped[700:2900], executor=inline).root == MerkleTree(rows[700:2900]).root
    assert parallel_root(mapped[::2], executor=inline).root == MerkleTree(rows[::2].copy()).root


def test_bad_input(inline, tmp_path, rows_for):
    (tmp_path / "cut").write_bytes(bytes(33))
    with pytest.raises(FormatError, match="no whole number"):
        parallel_root(tmp_path / "cut", executor=inline)
    with pytest.raises(FormatError):
        parallel_root(tmp_path / "cut", width=0, executor=inline)
    with pytest.raises(ConfigError, match="cannot be read"):
        parallel_root(tmp_path / "nothing", executor=inline)
    for source in (np.zeros((3, 32)), [b"a"], np.zeros((3, 0), np.uint8), np.zeros(3, np.uint8)):
        with pytest.raises(ConfigError, match="cannot be hashed in blocks"):
            parallel_root(source, executor=inline)
    with pytest.raises(ConfigError, match="cannot be streamed"):
        parallel_root(rows_for(3), scheme="openzeppelin", executor=inline)
    with pytest.raises(UnknownName):
        parallel_root(rows_for(3), strategy="fair", executor=inline)


def test_a_gpu_hashes_its_blocks(context, tmp_path, rows_for):
    """A worker's task on a wgpu device, as the executor builds it."""
    from evenload.devices.environment import CurrentDevice

    rows = rows_for(64)
    (tmp_path / "raw").write_bytes(rows.tobytes())
    task = functools.partial(HashBlocks, scheme=Scheme())
    worker = task(device=CurrentDevice("wgpu:0", "cpu", 1, None))
    roots, has_twins = worker(Blocks(LeafPart(str(tmp_path / "raw"), 0, 32, 64), 3, range(2, 7)))
    expected = [MerkleTree(rows[8 * k : 8 * k + 8]).root for k in range(2, 7)]
    assert [root.tobytes() for root in roots] == expected
    assert not has_twins
    worker.close()


def test_a_gpu_named_by_cuda_hashes_with_wgsl_where_wgpu_reaches_it(context):
    from evenload.devices import DevicePool
    from evenload.devices.environment import CurrentDevice

    uuid = next(device.uuid for device in DevicePool.discover() if device.family == "wgpu")
    for adapters in ({"cuda:0": uuid}, {"cuda:0": None}, {}):
        worker = HashBlocks(CurrentDevice("cuda:0", "cuda:0", 1, None), scheme=Scheme(), adapters=adapters)
        assert (worker._engine.name == "wgsl") == bool(adapters.get("cuda:0"))
        worker.close()


def test_over_processes(rows_for):
    rows = rows_for(20_000)
    done = parallel_root(rows, devices="cpu*2")
    assert done.root == MerkleTree(rows).root
    assert set(done.parts.device_s) == {"cpu:0", "cpu:1"}
