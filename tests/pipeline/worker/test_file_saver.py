"""Tests the saver of files, alone and through whole runs: an item is done when its files are on disk."""

import queue
import threading
from pathlib import Path

import pytest

from evenload.errors import EvenloadError
from evenload.pipeline.dispatch.item_flow import StageTask, Strand
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.stage import Item
from evenload.pipeline.store.ledger import GroupCommit, Ledger, LedgerEntry, StageResult
from evenload.pipeline.worker.file_saver import MOST_WAITING_BYTES, FileSaver


def test_a_file_is_there_when_it_is_told_and_a_fault_is_told_as_well(tmp_path: Path) -> None:
    saver, told = FileSaver(), queue.SimpleQueue()
    (tmp_path / "taken").write_bytes(b"a file, not a folder")
    for at in range(20):
        path = tmp_path / f"{at}.bin"
        saver.save([(path, bytes([at]))], lambda fault, path=path: told.put((fault, path.read_bytes())))
    saver.save([(tmp_path / "taken" / "x", b"")], lambda fault: told.put((fault, b"")))
    saver.close()
    seen = [told.get(timeout=500) for _ in range(21)]
    assert sorted(content for fault, content in seen if fault is None) == [bytes([at]) for at in range(20)]
    assert [type(fault) for fault, _ in seen if fault is not None] in (
        [FileExistsError],
        [NotADirectoryError],
    )
    assert not list(tmp_path.rglob("*.tmp"))


def test_whoever_brings_more_than_the_disk_takes_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    monkeypatch.setattr("evenload.pipeline.worker.file_saver.write_output", lambda *_: may_write.wait(60))
    monkeypatch.setattr("evenload.pipeline.worker.file_saver.MOST_WAITING_BYTES", 10)
    assert MOST_WAITING_BYTES > 10
    saver, is_in = FileSaver(), threading.Event()
    saver.save([(tmp_path / "a", b"x" * 10)], lambda _: None)
    waits = threading.Thread(
        target=lambda: (saver.save([(tmp_path / "b", b"x")], lambda _: None), is_in.set()), daemon=True
    )
    waits.start()
    assert not is_in.wait(0.05)
    may_write.set()
    assert is_in.wait(60)
    saver.close()


def result(at: int, error: ItemFailure | None = None) -> StageResult:
    strand = Strand(at, at, 0, Item(at, str(at)))
    return StageResult(
        StageTask(0, at), "draw", strand, LedgerEntry(f"made {at}", {}, {"n": at}, error=error)
    )


def test_results_are_told_when_the_journal_has_them_in_their_order(tmp_path: Path) -> None:
    ledger, woken = Ledger.open(tmp_path), threading.Semaphore(0)
    commits = GroupCommit(ledger, woken.release)
    taken: list[StageResult] = []
    for at in range(0, 40, 2):
        commits.put([result(at), result(at + 1, ItemFailure("draw", "E", "no"))])
        taken += commits.taken()
    while len(taken) < 40:
        assert woken.acquire(timeout=60)
        taken += commits.taken()
    assert [one.task.strand for one in taken] == list(range(40))
    assert not commits.pending
    commits.close()
    ledger.close()
    again = Ledger.open(tmp_path)
    found = [again.find("draw", one.strand) for one in taken]
    assert [kept is not None and kept.outputs["n"] for kept in found] == list(range(40))
    again.close()


def test_a_disk_that_takes_no_more_is_told_once_after_what_it_has(tmp_path: Path) -> None:
    ledger, woken = Ledger.open(tmp_path), threading.Semaphore(0)
    commits = GroupCommit(ledger, woken.release)
    commits.put([result(0)])
    assert woken.acquire(timeout=60)
    ledger.close()
    commits.put([result(1)])
    commits.close()
    assert [one.task.strand for one in commits.taken()] == [0]
    with pytest.raises(EvenloadError, match="closed"):
        commits.taken()
    assert [one.task.strand for one in commits.pending] == [1]
