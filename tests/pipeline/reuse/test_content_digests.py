"""Digests of files: those of their contents, whatever is remembered, changed, or cannot be read."""

import hashlib
import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evenload.pipeline.reuse import content_digests
from evenload.pipeline.reuse.content_digests import ContentDigests


def slow(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else ""


def test_random_changes_are_seen_and_the_rest_is_not_read_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(content_digests, "_SETTLED_NS", 0)
    rng, files = random.Random(7), [tmp_path / f"f{at}" for at in range(5)]
    memory = tmp_path / "digests.sqlite"
    for at, file in enumerate(files):
        file.write_bytes(bytes([at]) * 100)
    for _ in range(30):
        digests = ContentDigests(memory)
        before = {file: digests.of(file) for file in files}
        assert before == {file: slow(file) for file in files}
        digests.save()
        edited, how = rng.choice(files), rng.choice(["same size", "longer", "gone", "replaced", "touch"])
        if how == "gone":
            edited.unlink(missing_ok=True)
        elif how == "touch":
            edited.touch()
        elif how == "replaced" and edited.exists():
            shutil.copy2(edited, tmp_path / "copy")
            (tmp_path / "copy").write_bytes(rng.randbytes(100))
            os.utime(tmp_path / "copy", ns=(1, 1))
            os.replace(tmp_path / "copy", edited)
        else:
            edited.write_bytes(rng.randbytes(100 if how == "same size" else rng.randint(0, 300)))
        assert digests.of(edited) == slow(edited)
        digests.close()
    digests = ContentDigests(memory)
    for file in files:
        file.write_bytes(b"settled")
        digests.of(file)
    digests.close()
    again = ContentDigests(memory)
    assert {file: again.of(file) for file in files} == {file: slow(file) for file in files}
    assert again.n_read_bytes == 0, "known again by size, place and times"
    again.close()


def test_a_folder_is_known_by_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "part").mkdir(parents=True)
    (folder / "part/a").write_text("1")
    (folder / "b").write_text("2")
    (folder / ".hidden").write_text("3")
    first = ContentDigests().of(folder)
    (folder / ".hidden").write_text("4")
    assert ContentDigests().of(folder) == first
    (folder / "b").rename(folder / "c")
    assert ContentDigests().of(folder) != first
    (folder / "c").rename(folder / "b")
    assert ContentDigests().of(folder) == first
    (folder / "part/a").write_text("9")
    assert ContentDigests().of(folder) != first


def test_a_file_that_was_changed_since_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    assert ContentDigests().of(file, unchanged_since_ns=file.stat().st_ctime_ns) == slow(file)
    assert ContentDigests().of(file, unchanged_since_ns=file.stat().st_ctime_ns - 1) is None


@pytest.mark.parametrize("name", ["missing", "a\0b", "x" * 5000])
def test_what_cannot_be_read_has_an_empty_digest(tmp_path: Path, name: str) -> None:
    assert ContentDigests().of(tmp_path / name) == ""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert ContentDigests().of(tmp_path / "pipe") == ""


def test_a_memory_that_is_damaged_or_open_to_others_is_not_believed(tmp_path: Path) -> None:
    file, memory = tmp_path / "f", tmp_path / "digests.sqlite"
    file.write_text("x")
    memory.write_bytes(b"not sqlite" * 100)
    damaged = ContentDigests(memory)
    assert damaged.of(file) == slow(file)
    damaged.close()
    memory.unlink(missing_ok=True)
    status = file.stat()
    with sqlite3.connect(memory) as database:
        database.execute("CREATE TABLE digest (path TEXT PRIMARY KEY, facts TEXT, digest TEXT)")
        lie = (str(file), content_digests._facts(status), "f" * 32)
        database.execute("INSERT INTO digest VALUES (?, ?, ?)", lie)
    database.close()
    memory.chmod(0o666)
    strangers = ContentDigests(memory)
    assert strangers.of(file) == slow(file)
    strangers.close()


def test_what_changes_in_a_folder_while_it_is_read_is_not_remembered(tmp_path: Path, monkeypatch) -> None:
    """Oracle: digests without a memory, of what lies there in the end."""
    monkeypatch.setattr(content_digests, "_SETTLED_NS", -(10**12))
    folder, memory, read = tmp_path / "model", tmp_path / "digests.sqlite", content_digests._read
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_bytes(b"early")

    def read_while_it_changes(path: Any) -> str:
        digest = read(path)
        Path(path).write_bytes(b"later")
        return digest

    monkeypatch.setattr(content_digests, "_read", read_while_it_changes)
    digests = ContentDigests(memory)
    digests.of(folder)
    digests.close()
    monkeypatch.setattr(content_digests, "_read", read)
    again = ContentDigests(memory)
    assert again.of(folder) == ContentDigests().of(folder)
    again.close()


def test_a_file_whose_name_is_not_utf8_is_remembered_too(tmp_path: Path, monkeypatch) -> None:
    """Oracle: names of random bytes, as archives of other systems have them, and the count of bytes read."""
    monkeypatch.setattr(content_digests, "_SETTLED_NS", 0)
    rng, memory, n_made = random.Random(3), tmp_path / "digests.sqlite", 0
    for _ in range(20):
        name = bytes(rng.choice([*range(1, 47), *range(48, 256)]) for _ in range(5)).strip(b". ") + b"\xe9"
        file = tmp_path / os.fsdecode(name)
        try:
            file.write_bytes(name)
        except OSError:
            continue  # this file system refuses the name
        n_made += 1
        for n_read_bytes in (len(name), 0):
            digests = ContentDigests(memory)
            assert (digests.of(file), digests.n_read_bytes) == (slow(file), n_read_bytes)
            digests.close()
    if not n_made:
        pytest.skip("this file system has no names that are not UTF-8")
