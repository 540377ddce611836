"""Roots of streams and files: any cut into pieces, any end, and files that are damaged."""

import io
import tracemalloc

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError
from evenload.merkle import MerkleTree, RootStream, Scheme, root_of_file
from evenload.merkle import stream as module


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_HEIGHT", 3)
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "READ_BYTES", 1024)


def test_any_cut_gives_the_same_root(small_chunks):
    @settings(max_examples=examples(50), deadline=None)
    @given(
        st.lists(st.integers(0, 30), max_size=6), st.sampled_from(["rfc6962", "bitcoin", "rfc6962-blake2s"])
    )
    def check(counts, name):
        rows = np.random.default_rng(2).integers(0, 4, (sum(counts), 32), dtype=np.uint8)
        stream, at = RootStream(name), 0
        for count in counts:
            stream.update(rows[at : at + count])
            at += count
            if at:
                whole = MerkleTree(rows[:at], scheme=name)
                assert stream.root() == whole.root
                assert stream.is_mutated == whole.is_mutated
        assert len(stream) == at

    check()


@pytest.mark.parametrize("scheme", [Scheme("poseidon"), Scheme("poseidon", depth=6)])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 29])
def test_trees_that_are_filled_up(small_chunks, rows_for, scheme, n):
    stream = RootStream(scheme)
    stream.update(rows_for(n))
    assert stream.root() == MerkleTree(rows_for(n), scheme=scheme).root


def test_twins_are_found_wherever_they_are(small_chunks, rows_for):
    rows = rows_for(64)
    for copy_of, height in ((0, 0), (6, 1), (8, 3), (16, 4), (0, 5)):
        forged = rows.copy()
        forged[copy_of + (1 << height) : copy_of + (2 << height)] = rows[copy_of : copy_of + (1 << height)]
        stream = RootStream("bitcoin")
        for start in range(0, 64, 5):
            stream.update(forged[start : start + 5])
        is_pair = copy_of % (2 << height) == 0
        assert stream.is_mutated == is_pair == MerkleTree(forged, scheme="bitcoin").is_mutated


def test_records_of_different_lengths_and_subtrees_by_their_roots(small_chunks, rows_for):
    records = [b"r" * k for k in range(37)]
    tree, stream = MerkleTree(), RootStream()
    tree.append_records(records)
    stream.update_records(iter(records[:13]))
    stream.update_records(records[13:])
    assert (stream.root(), len(stream)) == (tree.root, 37)
    aligned = RootStream()
    aligned.push_roots(2, rows_for(3))
    for height, pushed in ((3, aligned), (0, stream)):  # not where such a subtree begins; others wait
        with pytest.raises(ConfigError, match="do not end where"):
            pushed.push_roots(height, rows_for(1))
    stream.update(rows_for(3))
    with pytest.raises(ConfigError, match="records of one length"):
        stream.update(rows_for(3, width=31))


@pytest.mark.parametrize(("width", "n"), [(1, 0), (1, 33), (32, 1), (32, 5), (50, 33)])
def test_files(small_chunks, tmp_path, width, n):
    rows = np.random.default_rng(n).integers(0, 256, (n, width), dtype=np.uint8)
    (tmp_path / "raw").write_bytes(rows.tobytes())
    np.save(tmp_path / "rows.npy", rows)
    expected = MerkleTree(rows).root, n
    assert root_of_file(tmp_path / "raw", width=width) == expected
    assert root_of_file(str(tmp_path / "rows.npy")) == expected
    assert root_of_file(io.BytesIO(rows.tobytes()), width=width) == expected


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content):
        self._left = content

    def readinto(self, target):
        n = min(len(target), len(self._left), 13)
        target[:n], self._left = self._left[:n], self._left[n:]
        return n


def test_a_pipe_that_gives_a_few_bytes_at_a_time(small_chunks, rows_for):
    rows = rows_for(100)
    assert root_of_file(Trickle(rows.tobytes())) == (MerkleTree(rows).root, 100)


def test_files_that_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        root_of_file(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        root_of_file(tmp_path)
    (tmp_path / "cut").write_bytes(bytes(70))
    with pytest.raises(FormatError, match="at byte 70"):
        root_of_file(tmp_path / "cut")
    with pytest.raises(ConfigError, match="records of 0 bytes"):
        root_of_file(tmp_path / "cut", width=0)
    for array in (
        np.zeros((3, 32)),
        np.zeros(5, np.uint8),
        np.zeros((3, 0), np.uint8),
        np.zeros((4, 3), np.uint8).T,
    ):
        np.save(tmp_path / "bad.npy", array)
        with pytest.raises(FormatError, match="npy"):
            root_of_file(tmp_path / "bad.npy")
    (tmp_path / "head.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{oops")
    with pytest.raises(FormatError, match="header"):
        root_of_file(tmp_path / "head.npy")


def test_what_cannot_be_streamed():
    with pytest.raises(ConfigError, match="cannot be streamed"):
        RootStream("openzeppelin")
    with pytest.raises(ConfigError, match="without leaves"):
        RootStream("bitcoin").root()
    assert not RootStream("bitcoin").is_mutated


def test_memory_stays_bounded(rows_for):
    block = rows_for(1 << 14)
    stream = RootStream(threads=1)
    stream.update(block)
    tracemalloc.start()
    for _ in range(40):
        stream.update(block)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * block.nbytes
    assert len(stream) == 41 << 14
