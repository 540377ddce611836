"""Tests the saver of files, alone and through whole runs: an item is done when its files are on disk."""

import threading
from pathlib import Path

import pytest

from evenload.errors import EvenloadError
from evenload.pipeline.dispatch.item_flow import StageTask, Strand
from evenload.pipeline.stage import Item
from evenload.pipeline.store.ledger import GroupCommit, Ledger, LedgerEntry, StageResult
from evenload.pipeline.worker.file_saver import MOST_WAITING_BYTES, FileSaver


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


def result(at: int) -> StageResult:
    strand = Strand(at, at, 0, Item(at, str(at)))
    return StageResult(StageTask(0, at), "draw", strand, LedgerEntry(f"made {at}", {}, {"n": at}))


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
