"""The journal: what it has acknowledged is there, whatever happened to the program or to its files."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import evenload
from evenload.errors import ConfigError, EvenloadError
from evenload.executor.journal import Journal, segments


def fill(path: Path, n: int = 20) -> None:
    with Journal.open(path, "f") as journal:
        for at in range(n):
            journal.record(f"item {at}", bytes([at]) * at * 100)


@settings(max_examples=examples(25), deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=300_000)), max_size=5),
        max_size=5,
    ),
    reopens=st.booleans(),
)
def test_any_keys_and_payloads(
    tmp_path_factory: pytest.TempPathFactory, batches: list, reopens: bool
) -> None:
    path = tmp_path_factory.mktemp("journal")
    journal, expected = Journal.open(path, "f"), {}
    for batch in batches:
        batch = [(key, payload) for key, payload in batch if _is_text(key)]
        journal.record_many(batch)
        expected.update(batch)
        if reopens:
            journal.close()
            journal = Journal.open(path, "f")
    there = journal.keys()
    assert {key: journal.done(key) for key in there} == expected
    journal.close()


def _is_text(key: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


# --- damage ---------------------------------------------------------------------------------------


def lose_index(path: Path) -> None:
    for file in path.glob("index.sqlite*"):
        file.unlink()


def damage_index(path: Path) -> None:
    for file in path.glob("index.sqlite*"):
        file.write_bytes(b"\x00nonsense" * 5000)


def index_of_another_day(path: Path) -> None:
    """As after a power cut: SQLite had not written its last commits."""
    with sqlite3.connect(path / "index.sqlite") as db:
        (start,) = db.execute("SELECT start FROM entry WHERE key = 'item 12'").fetchone()
        db.execute("DELETE FROM entry WHERE start >= ?", (start,))
        db.execute("UPDATE segment SET stop = ?", (start,))
    db.close()


def half_a_record(path: Path) -> None:
    with open(path / "segment-000001", "ab") as file:
        file.write(segments.HEADER.pack(segments.MAGIC, 4, 10**6, b"?" * 16) + b"half a payload")


@pytest.mark.parametrize("harm", [lose_index, damage_index, index_of_another_day, half_a_record])
def test_nothing_is_lost_with_the_index_or_a_half_written_end(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    fill(tmp_path / "j")
    harm(tmp_path / "j")
    for _ in range(2):
        with Journal.open(tmp_path / "j", "f") as journal:
            got = [journal.done(f"item {at}") for at in range(20)]
            assert got == [bytes([at]) * at * 100 for at in range(20)]
            journal.record("new", b"new")
            assert journal.done("new") == b"new"


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_or_missing_piece_costs_only_what_it_belongs_to(
    tmp_path: Path, seed: int, with_index: bool
) -> None:
    fill(tmp_path / "j")
    file, dice = tmp_path / "j" / "segment-000001", random.Random(seed)
    raw = bytearray(file.read_bytes())
    at = dice.randrange(len(raw))
    if seed % 3:
        raw[at : at + 3] = bytes(byte ^ 0xFF for byte in raw[at : at + 3])
    else:
        del raw[at:]
    file.write_bytes(raw)
    if not with_index:
        lose_index(tmp_path / "j")
    with Journal.open(tmp_path / "j", "f") as journal:
        got = [journal.done(f"item {at}") for at in range(20)]
        lost = [at for at in range(20) if got[at] is None]
        assert all(got[at] == bytes([at]) * at * 100 for at in range(20) if at not in lost)
        assert lost == list(range(20))[lost[0] :] if not seed % 3 else 1 <= len(lost) <= 2
        for item in lost:
            journal.record(f"item {item}", b"again")
        assert all(journal.done(f"item {item}") == b"again" for item in lost)


def test_a_journal_inside_a_payload_is_not_taken_for_part_of_it(tmp_path: Path) -> None:
    fill(tmp_path / "inner")
    inner = (tmp_path / "inner" / "segment-000001").read_bytes()
    with Journal.open(tmp_path / "j", "f") as journal:
        journal.record("a", inner)
        journal.record("b", b"b")
    file = tmp_path / "j" / "segment-000001"
    file.write_bytes(b"\0" + file.read_bytes()[1:])  # so that the payload is looked through
    lose_index(tmp_path / "j")
    with Journal.open(tmp_path / "j", "f") as journal:
        assert journal.keys() == ["b"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_text("{")])
def test_results_of_which_nobody_knows_what_made_them_are_refused(tmp_path: Path, harm: Callable) -> None:
    fill(tmp_path / "j")
    harm(tmp_path / "j" / "journal.json")
    with pytest.raises(ConfigError, match="damaged or gone"):
        Journal.open(tmp_path / "j", "f")
    with Journal.open(tmp_path / "j", "f", on_change="rerun") as journal:
        assert journal.keys() == []


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        Journal.open(tmp_path / "file", "f")
    with pytest.raises(ConfigError, match="no journal"):
        Journal.open(tmp_path, "f", on_change="rerun")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="there it is a path")
@pytest.mark.parametrize("given", [r"C:\runs\x", "d:/x", Path(r"z:\x")])
def test_a_path_of_windows_makes_no_folder_of_that_name(tmp_path: Path, monkeypatch, given) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is a path of Windows") as refused:
        evenload.map(len, ["x"], journal=given, backend="inline", devices="cpu")
    assert "/mnt/" in str(refused.value.hint)
    assert os.listdir() == []
    assert list(evenload.map(len, ["x"], journal="./C:\\x", backend="inline", devices="cpu")) == [1]


def test_a_journal_has_one_user(tmp_path: Path, popen: Callable[..., subprocess.Popen]) -> None:
    with (
        Journal.open(tmp_path / "j", "f"),
        pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}"),
    ):
        Journal.open(tmp_path / "j", "f")
    Journal.open(tmp_path / "j", "f").close()
    other = popen([sys.executable, "-c", OTHER.format(path=str(tmp_path / "j"))], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"open\n"
    with pytest.raises(ConfigError, match=f"in use by process {other.pid}"):
        Journal.open(tmp_path / "j", "f")
    other.kill()
    other.communicate(timeout=500)
    with Journal.open(tmp_path / "j", "f") as journal:  # the lock has gone with its process
        assert journal.done("a") == b"a"


OTHER = """
import time
from evenload.executor.journal.journal import Journal
journal = Journal.open({path!r}, "f")
journal.record("a", b"a")
print("open", flush=True)
time.sleep(1000)
"""


# --- several threads, full disks, sudden ends -----------------------------------------------------


def test_threads_share_the_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_syncs, real = 0, segments.sync

    def slow(fd: int) -> None:
        nonlocal n_syncs
        n_syncs += 1
        while journal._n_waiting < 31:  # until all are there
            time.sleep(0.001)
        real(fd)

    with Journal.open(tmp_path / "j", "f") as journal:
        journal.record("first", b"")
        monkeypatch.setattr(segments, "sync", slow)
        threads = [threading.Thread(target=journal.record, args=(f"{at}", b"x")) for at in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=500)
        assert len(journal) == 31
    assert n_syncs < 15


def test_a_full_disk_is_told_and_harms_nothing_recorded_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, piece: bytes) -> None:
        os.write(fd, bytes(piece)[:7])
        raise OSError(28, "No space left on device")

    journal = Journal.open(tmp_path / "j", "f")
    journal.record("a", b"a")
    with monkeypatch.context() as patch:
        patch.setattr(segments, "_write", full)
        with pytest.raises(EvenloadError, match="cannot be written: No space left"):
            journal.record("b", b"b")
    with pytest.raises(EvenloadError, match="No space left"):
        journal.record("c", b"c")
    assert journal.done("a") == b"a"
    journal.close()
    with Journal.open(tmp_path / "j", "f") as journal:
        assert journal.keys() == ["a"]
        journal.record("b", b"b")
        assert journal.done("b") == b"b"
    with pytest.raises(EvenloadError, match="closed"):
        journal.record("c", b"c")
