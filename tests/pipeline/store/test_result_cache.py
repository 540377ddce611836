"""Tests the cache that run folders share: what goes first, what is not believed, and whose it must be."""

import os
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.store.ledger import LedgerEntry
from evenload.pipeline.store.result_cache import CachedSize, ResultCache, evict, to_evict

READS = {"value:a": "1"}


def test_the_least_recently_used_goes_first() -> None:
    sizes = [CachedSize(name, 100, used_s, 0.0) for name, used_s in (("b", 2.0), ("a", 1.0), ("c", 3.0))]
    assert to_evict(sizes, 300, 10.0) == []
    assert to_evict(sizes, 299, 10.0) == ["a"]
    assert to_evict(sizes, 0, 10.0) == ["a", "b", "c"]
    half = CachedSize("half", 100, None, 5.0)
    assert to_evict([half], 0, 10.0) == []
    assert to_evict([half], 10**9, 10_000.0) == ["half"]


def filled(tmp_path: Path, limit_bytes: int = 1 << 30) -> ResultCache:
    run = tmp_path / "run"
    (run / "outputs/s").mkdir(parents=True)
    (run / "outputs/s/i.txt").write_bytes(b"hello")
    cache = ResultCache(tmp_path / "cache", limit_bytes)
    outputs, files = {"t": "outputs/s/i.txt", "n": 3}, {"t": [5, digest_of(b"hello")]}
    cache.keep(LedgerEntry("made", READS, outputs, files), run)
    assert not cache.faults
    return cache


def taken(cache: ResultCache, folder: Path) -> LedgerEntry | None:
    found = cache.find("made", lambda names: {name: READS[name] for name in names})
    return None if found is None else cache.take(found, {"t": "outputs/x/j.txt"}, folder)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_whatever_the_umask_a_result_is_found_again(tmp_path: Path, umask: int) -> None:
    """Oracle: the very file that was kept. Entries that a group may write were kept, and never believed."""
    before = os.umask(umask)
    try:
        entry = taken(filled(tmp_path), tmp_path / "other")
    finally:
        os.umask(before)
    assert entry is not None
    assert entry.outputs == {"t": "outputs/x/j.txt", "n": 3}
    assert (tmp_path / "other/outputs/x/j.txt").read_bytes() == b"hello"


@pytest.mark.parametrize("damage", [b"jello", b"", b"hello!"])
def test_a_damaged_file_is_not_believed(tmp_path: Path, damage: bytes) -> None:
    cache = filled(tmp_path)
    (file,) = (tmp_path / "cache").rglob("*.file")
    file.write_bytes(damage)
    os.utime(file, ns=(1, 1))
    assert taken(cache, tmp_path / "other") is None


def test_a_damaged_entry_is_not_believed(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (file,) = (tmp_path / "cache/results").rglob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"n": 3', b'"n": 4'))
    assert taken(cache, tmp_path / "other") is None


def test_what_others_may_write_to_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigError, match="open to others"):
        ResultCache(tmp_path / "cache")


def test_a_full_cache_gives_way(tmp_path: Path) -> None:
    cache = filled(tmp_path, limit_bytes=1)
    cache.close()
    assert taken(cache, tmp_path / "other") is None


@pytest.mark.parametrize("note", ["", "x", "1", "1 2 3", "-1 0", "9" * 10_000, f"0 {2**62}", "0 5"])
def test_a_damaged_count_is_counted_again(tmp_path: Path, note: str) -> None:
    filled(tmp_path).close()
    (tmp_path / "cache/size").write_text(note)
    assert evict(tmp_path / "cache", 1)
    assert not [path for path in (tmp_path / "cache/results").rglob("*") if path.is_file()]
