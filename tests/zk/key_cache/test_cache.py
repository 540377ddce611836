"""Keys kept for the next process: used as they were, made again if damaged, refused if others may write."""

import os
import random
import shutil
import threading

import numpy as np
import pytest

from evenload.errors import ConfigError
from evenload.zk import verify

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.gpu.llvm import programs
from evenload.zk.formats.zkey import read_zkey
from evenload.zk.key import CpuKey
from evenload.zk.key_cache import array_file, cache
from evenload.zk.prover import Prover


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the entries."""
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keys"


@pytest.fixture
def key(public8, tmp_path):
    return shutil.copy(public8 / "circuit.zkey", tmp_path / "circuit.zkey")


def loader(key, level, made):
    def load():
        made.append(level)
        return CpuKey.load(read_zkey(key), level)

    return load


def refuse():
    raise AssertionError("must come from the cache")


def prove(key, witness, **options):
    with Prover(key, keep=True, **options) as prover:
        done = prover.prove(witness)
        assert verify(prover.verification_key, done.public, done.proof)
        return prover.stats


def test_a_kept_key_is_the_key_that_was_loaded(circuit, level):
    path, made = circuit / "circuit.zkey", []
    loaded = cache.kept_key(path, level, loader(path, level, made))
    kept = cache.kept_key(path, level, refuse)
    assert made == [level]
    (facts, arrays), (same_facts, same_arrays) = cache.parts_of(loaded), cache.parts_of(kept)
    assert facts == same_facts
    assert arrays.keys() == same_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, same_arrays[name], err_msg=name)
    with Prover(path, level=level, keep=True) as prover:
        assert prover.sha256 == read_zkey(path).sha256
        done = prover.prove(circuit / "witness.wtns")
        assert verify(read_zkey(path).verification_key, done.public, done.proof)


def test_large_arrays_lie_in_the_file_and_cannot_be_written(key):
    kept = [cache.kept_key(key, "word64", loader(key, "word64", [])) for _ in range(2)][1]
    points = kept.bases["A"].points
    assert not points.flags.owndata
    assert points.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        points[0] = 0


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40], lambda b: b"", lambda b: b + b"!", lambda b: b"x" + b[1:]]
)
def test_a_damaged_entry_is_made_again(key, folder, damage):
    made = []
    cache.kept_key(key, "word64", loader(key, "word64", made))
    (at,) = folder.glob("*.key")
    at.write_bytes(damage(at.read_bytes()))
    cache.kept_key(key, "word64", loader(key, "word64", made))
    cache.kept_key(key, "word64", refuse)
    assert len(made) == 2


@pytest.mark.parametrize("seed", range(4))
def test_whatever_bits_change_in_an_entry_proofs_are_right(public8, key, folder, monkeypatch, seed):
    """With nothing but the head digested, as if every array were large."""
    monkeypatch.setattr(array_file, "_SMALL_BYTES", 4096)  # the tables of the verifier have more than 10 KB
    prove(key, public8 / "witness.wtns", level="word64")
    (at,) = folder.glob("*.key")
    content, chance = bytearray(at.read_bytes()), random.Random(seed)
    start = content.index(b'"n_bytes"')
    for _ in range(chance.choice([1, 400])):
        content[chance.randrange(start + 100, len(content))] ^= 1 << chance.randrange(8)
    at.write_bytes(content)
    try:
        stats = prove(key, public8 / "witness.wtns", level="word64")
    except Exception as error:  # bits of the verifier's own tables: told, and never a wrong proof
        assert type(error).__name__ == "InvalidProof"  # noqa: PT017
        return
    assert stats.n_redone in (0, 1)
    if stats.n_redone:
        assert not at.exists()  # and the next one is made anew
    assert not prove(key, public8 / "witness.wtns", level="word64").n_redone


@pytest.mark.parametrize(
    ("array", "column"), [("coefficients", "wire"), ("coefficients", "row"), ("keep A", None)]
)
def test_an_index_out_of_range_is_no_entry(key, array, column):
    facts, arrays = cache.parts_of(CpuKey.load(read_zkey(key), "word64"))
    assert cache.key_of(facts, arrays, "k") is not None
    changed = arrays[array].copy()
    (changed.reshape(-1).view(cache.COEFFICIENT)[column] if column else changed)[-1] = 1 << 30
    assert cache.key_of(facts, arrays | {array: changed}, "k") is None


@pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX matter")
def test_what_others_may_write_is_refused(key, folder):
    cache.kept_key(key, "word64", loader(key, "word64", []))
    (at,) = folder.glob("*.key")
    for path, mode in ((at, 0o620), (folder, 0o770), (folder.parent, 0o702)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(ConfigError, match="checked proving keys, and is open to others"):
            cache.kept_key(key, "word64", refuse)
        path.chmod(before)


def test_another_key_of_that_name_is_another_entry(key, multiplier, folder):
    cache.kept_key(key, "word64", loader(key, "word64", []))
    shutil.copy(multiplier / "circuit.zkey", key)
    found = cache.kept_key(key, "word64", loader(key, "word64", []))
    assert found.sha256 == read_zkey(key).sha256
    assert len(list(folder.glob("*.key"))) == 2


def test_of_threads_that_miss_a_key_one_loads_it(key):
    made, found, both = [], [], threading.Barrier(3)

    def ask():
        both.wait(100)
        found.append(cache.kept_key(key, "word64", loader(key, "word64", made)))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(found) == 3
    assert len(made) == 1


def test_the_entries_used_least_recently_make_room(folder, tmp_path, monkeypatch, multiplier, public8):
    keys = [shutil.copy(c / "circuit.zkey", tmp_path / f"{c.name}.zkey") for c in (multiplier, public8)]
    for path in keys:
        cache.kept_key(path, "word64", loader(path, "word64", []))
    sizes = {path: path.stat().st_size for path in folder.glob("*.key")}
    for k, path in enumerate(sorted(sizes, key=lambda path: sizes[path])):
        os.utime(path, (k, k))  # the smaller one, multiplier's, was used less recently
    monkeypatch.setenv("EVENLOAD_KEY_CACHE_LIMIT", str(sum(sizes.values()) + 1))
    third = shutil.copy(public8.parent / "boundary64" / "circuit.zkey", tmp_path / "third.zkey")
    cache.kept_key(third, "word64", loader(third, "word64", []))
    assert not min(sizes, key=lambda path: sizes[path]).exists()


def test_a_key_beyond_the_limit_is_not_kept_and_a_limit_that_is_none_is_named(key, folder, monkeypatch):
    for limit in ("0", "100 B"):
        monkeypatch.setenv("EVENLOAD_KEY_CACHE_LIMIT", limit)
        assert cache.kept_key(key, "word64", loader(key, "word64", [])).n_public == read_zkey(key).n_public
        assert not list(folder.glob("*.key"))
    monkeypatch.setenv("EVENLOAD_KEY_CACHE_LIMIT", "much")
    with pytest.raises(ConfigError, match="key_cache_limit='much' is no amount of memory"):
        cache.kept_key(key, "word64", loader(key, "word64", []))


def test_on_a_full_disk_the_key_is_used_all_the_same(key, folder, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_file.os, "fsync", full)
    assert cache.kept_key(key, "word64", loader(key, "word64", [])).sha256
    assert not list(folder.iterdir())
    assert "No space left" in caplog.text


# --- which file it is -----------------------------------------------------------------------------
def test_a_file_that_was_not_changed_is_not_read_again(key, monkeypatch):
    monkeypatch.setattr(cache, "SETTLED_S", -3600.0)  # as if it had lain there for an hour
    first = cache.file_digest(key)
    assert first == read_zkey(key).sha256
    monkeypatch.setattr(cache.hashlib, "file_digest", lambda *_: refuse())
    assert cache.file_digest(key) == first


def test_a_file_that_was_just_changed_is_always_read(key, folder):
    key.touch()
    cache.file_digest(key)
    assert not (folder.parent / "digests").exists() or not list((folder.parent / "digests").iterdir())


def test_a_change_is_seen_whatever_times_are_set(key, monkeypatch):
    monkeypatch.setattr(cache, "SETTLED_S", -3600.0)
    before = os.stat(key)
    first = cache.file_digest(key)
    content = bytearray(key.read_bytes())
    content[-1] ^= 1
    while os.stat(key).st_ctime_ns == before.st_ctime_ns:  # the system's clock goes in steps
        key.write_bytes(content)
        os.utime(key, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(key).st_mtime_ns == before.st_mtime_ns
    assert cache.file_digest(key) != first


def test_a_level_of_another_processor_is_refused_also_where_its_key_is_kept(public8, key, monkeypatch):
    """The whole command is refused, not one witness after the other."""
    chosen = programs.best_level()
    with Prover(key, level=chosen, keep=True) as prover:
        prover.prove(public8 / "witness.wtns")
    monkeypatch.setattr(programs, "levels_here", lambda: ["other"])
    with pytest.raises(ConfigError, match=f"level {chosen} needs"):
        Prover(key, level=chosen, keep=True)
