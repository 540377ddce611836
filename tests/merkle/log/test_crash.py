"""A log whose program is killed at any moment: no acknowledged leaf is lost, no wrong root is ever signed."""

import hashlib
import os

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload import _private_files
from evenload.errors import EvenloadError, FormatError
from evenload.merkle import Log, MerkleTree, SigningKey, check_published
from evenload.merkle.log import leaf_file, log

NAME = "example.com/log"
KEY = SigningKey(NAME, bytes(range(32)))
KINDS = st.lists(st.lists(st.binary(max_size=90), min_size=1, max_size=9), min_size=1, max_size=5)


class _Killed(BaseException):
    """A kill, as the code that is killed cannot see or handle one."""


class Disk:
    """The calls that change what is on disk; the one numbered ``fatal`` is not, or is half, made: a kill."""

    def __init__(self, monkeypatch, fatal=None, error=None):
        self.n, self.fatal, self.error = 0, fatal, error
        for module, name in (
            (leaf_file, "sync"),
            (leaf_file, "sync_folder"),
            (_private_files, "sync"),
            (log, "sync_folder"),
        ):
            monkeypatch.setattr(module, name, lambda _: self.reached())
        for name in ("pwrite", "replace", "link", "mkdir", "ftruncate"):
            monkeypatch.setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name, call):
        def counted(*args, **options):
            if self.n + 1 == self.fatal and name == "pwrite":
                call(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            self.reached()
            return call(*args, **options)

        return counted

    def reached(self):
        self.n += 1
        if self.fatal is not None and self.n >= self.fatal:  # who is dead does nothing more
            raise self.error or _Killed


def grow_and_sign(folder, acknowledged, notes):
    """A few appends and checkpoints; what the caller was told of goes to the lists."""
    with Log(folder, origin=NAME, threads=1) as opened:
        for k in range(len(acknowledged) // 100, 5):
            some = [b"%d %d" % (k, j) for j in range(100)]
            opened.append(some)
            acknowledged += some
            if k % 2:
                notes.append(opened.checkpoint(KEY))


def all_leaves(folder):
    with Log(folder, origin=NAME, threads=1) as opened:
        return [opened[k] for k in range(len(opened))], opened.root


def test_a_kill_at_each_call_that_changes_the_disk(tmp_path):
    twin_root([bytes(32)] * 300)  # the kernels are loaded, which may write to their cache
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        grow_and_sign(tmp_path / "whole", [], [])
    assert disk.n > 40
    everything, whole_root = all_leaves(tmp_path / "whole")
    for fatal in range(1, disk.n + 1):
        folder, acknowledged, notes = tmp_path / str(fatal), [], []
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fatal)
            with pytest.raises(_Killed):
                grow_and_sign(folder, acknowledged, notes)
        found, root = all_leaves(folder)
        assert found[: len(acknowledged)] == acknowledged, fatal
        assert found == everything[: len(found)], fatal
        assert root == (MerkleTree(threads=1).root if not found else twin_root(found))
        if notes:
            assert (folder / "checkpoint").exists()
        if (folder / "checkpoint").exists():
            assert check_published(folder, KEY.verifier, threads=1).size >= 100 * (2 * len(notes))
        grow_and_sign(folder, found, [])
        assert all_leaves(folder) == (everything, whole_root), fatal
        with Log(folder, threads=1) as opened:
            opened.checkpoint(KEY)
        assert check_published(folder, KEY.verifier, threads=1).size == 500


def twin_root(leaves):
    tree = MerkleTree(threads=1)
    tree.append_records(leaves)
    return tree.root


def test_a_full_disk_at_each_call_is_an_error_that_loses_nothing(tmp_path):
    for fatal in range(4, 40, 3):
        folder, acknowledged = tmp_path / str(fatal), []
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fatal, OSError(28, "no room"))
            with pytest.raises(EvenloadError, match="no room"):
                grow_and_sign(folder, acknowledged, [])
        if (folder / "leaves").exists():
            assert all_leaves(folder)[0][: len(acknowledged)] == acknowledged


def test_after_a_failed_write_nothing_is_appended_before_the_log_is_opened_again(tmp_path, monkeypatch):
    with Log(tmp_path, origin=NAME, threads=1) as opened:
        opened.append([b"a"])
        with monkeypatch.context() as patch:
            Disk(patch, 1, OSError(28, "no room"))
            with pytest.raises(EvenloadError, match="no room"):
                opened.append([b"b"])
        with pytest.raises(EvenloadError, match="no room"):
            opened.append([b"c"])
        opened.checkpoint(KEY)
        assert opened.prove_inclusion(0).verify(b"a", opened.root)
    assert all_leaves(tmp_path)[0] == [b"a"]


def written(folder, batches):
    """Append batches; the lengths of the file before and after each."""
    ends = []
    with Log(folder, origin=NAME, threads=1) as opened:
        ends.append(os.path.getsize(folder / "leaves"))
        for batch in batches:
            opened.append(batch)
            ends.append(os.path.getsize(folder / "leaves"))
    return ends


@settings(deadline=None, max_examples=examples(40))
@given(KINDS, st.data())
def test_a_file_that_ends_anywhere_holds_what_was_whole(tmp_path_factory, batches, draw):
    folder = tmp_path_factory.mktemp("cut")
    ends = written(folder, batches)
    cut = draw.draw(st.integers(ends[0], ends[-1]))
    rest = draw.draw(st.sampled_from([b"", bytes(40), b"\xff" * 200, os.urandom(99)]))
    path = folder / "leaves"
    path.write_bytes(path.read_bytes()[:cut] + rest)
    n_whole = sum(end <= cut for end in ends[1:])
    expected = [leaf for batch in batches[:n_whole] for leaf in batch]
    if rest == b"" or cut + len(rest) < ends[-1] or n_whole == len(batches):
        with Log(folder, is_writable=False, threads=1) as reader:
            assert [reader[k] for k in range(len(reader))] == expected
    assert all_leaves(folder)[0] == expected
    assert path.stat().st_size == ends[n_whole]
    with Log(folder, threads=1) as opened:
        opened.append([b"more"])
    assert all_leaves(folder)[0] == [*expected, b"more"]


@settings(deadline=None, max_examples=examples(50))
@given(KINDS, st.data())
def test_damage_of_the_first_line_takes_no_leaf(tmp_path_factory, batches, draw):
    """Whatever one flipped bit there does, the leaves are in the file still: by its length."""
    folder = tmp_path_factory.mktemp("head")
    ends = written(folder, batches)
    path = folder / "leaves"
    content = bytearray(path.read_bytes())
    content[draw.draw(st.integers(0, ends[0] - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    path.write_bytes(content)
    for is_writable in (False, True):
        with pytest.raises(FormatError):
            Log(folder, is_writable=is_writable, threads=1)
    assert path.read_bytes() == content


@settings(deadline=None, max_examples=examples(50))
@given(KINDS, st.data())
def test_damage_is_told_and_never_believed(tmp_path_factory, batches, draw):
    folder = tmp_path_factory.mktemp("damage")
    ends = written(folder, batches)
    path = folder / "leaves"
    content = bytearray(path.read_bytes())
    at = draw.draw(st.integers(ends[0], ends[-1] - 1))
    content[at] ^= draw.draw(st.integers(1, 255))
    path.write_bytes(content)
    hit = sum(end <= at for end in ends) - 1
    if hit < len(batches) - 1:
        with pytest.raises(FormatError, match="damaged"):
            Log(folder, is_writable=False, threads=1)
        with pytest.raises(FormatError, match="damaged"):
            all_leaves(folder)
        assert path.read_bytes() == content
    else:  # the last one: it cannot be told from one that a crash has cut
        assert all_leaves(folder)[0] == [leaf for batch in batches[:hit] for leaf in batch]


def test_a_leaf_that_looks_like_the_file_is_a_leaf(tmp_path):
    written(tmp_path / "one", [[b"a"], [b"b"]])
    copied = (tmp_path / "one" / "leaves").read_bytes()
    ends = written(tmp_path / "two", [[b"x"], [copied, copied]])
    path = tmp_path / "two" / "leaves"
    path.write_bytes(path.read_bytes()[: ends[2] - 1])
    assert all_leaves(tmp_path / "two")[0] == [b"x"]


def test_many_leaves_go_into_several_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(leaf_file, "MOST_FRAME_BYTES", 1000)
    monkeypatch.setattr(leaf_file, "MOST_FRAME_LEAVES", 7)
    leaves = [hashlib.sha256(b"%d" % k).digest() * (k % 40) for k in range(200)]
    written(tmp_path, [leaves])
    assert all_leaves(tmp_path)[0] == leaves
