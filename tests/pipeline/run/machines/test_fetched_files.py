"""Files that come in pieces: whole and in their place, or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import FilePiece, OrderOutcome
from evenload.pipeline.run.machines.fetched_files import FetchedFiles
from evenload.pipeline.store.run_folder import says_full
from evenload.pipeline.worker import file_saver
from evenload.pipeline.worker.file_saver import PieceSender

TASK = StageTask(0, 3)
CONTENTS = {"drawn": b"a picture" * 7, "text": b""}


def place_of(task: StageTask, output: str) -> str | None:
    return f"outputs/draw/{task.strand}.{output}" if output in CONTENTS else None


def outcome_of(task: StageTask, contents: dict[str, bytes]) -> OrderOutcome:
    outputs = {name: place_of(task, name) for name in contents}
    files: dict[str, list] = {name: [len(one), digest_of(one)] for name, one in contents.items()}
    return OrderOutcome("done", task.stage, task, outputs, files)


def pieces_of(task: StageTask, contents: dict[str, bytes]) -> list[FilePiece]:
    sender = PieceSender()
    told: list[object] = []
    sender.send(task, contents, told.append)
    pieces = []
    while not sender.is_empty:
        pieces += sender.take()
    assert told == [None]
    return pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_saver, "PIECE_BYTES", 10)
    monkeypatch.setattr(file_saver, "ANSWER_BYTES", 25)


def fetch(fetched: FetchedFiles, pieces: list[FilePiece], until: Callable[..., None]) -> OrderOutcome:
    """Take the pieces and the outcome of the task; returns that when its files are on disk."""
    found: list[tuple[int, OrderOutcome]] = []
    for piece in pieces:
        fetched.take(1, piece)
    fetched.finish(1, outcome_of(TASK, CONTENTS))
    until(lambda: found.extend(fetched.done()) or found, "the files are on disk")
    fetched.close()
    return found[0][1]


def test_pieces_become_files_in_their_places(tmp_path: Path, small_pieces: None, until: Callable) -> None:
    pieces = pieces_of(TASK, CONTENTS)
    assert len(pieces) == 8
    assert fetch(FetchedFiles(tmp_path, place_of, lambda: None), pieces, until).kind == "done"
    there = {path.name: path.read_bytes() for path in (tmp_path / "outputs/draw").iterdir()}
    assert there == {"3.drawn": CONTENTS["drawn"], "3.text": b""}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pieces: pieces[:-2] + pieces[-1:], "missing|have come|damaged"),
        (lambda pieces: [pieces[1], pieces[0], *pieces[2:]], "missing"),
        (lambda pieces: [pieces[0]._replace(content=pieces[0].content[::-1].copy()), *pieces[1:]], "damaged"),
        (lambda pieces: [pieces[0]._replace(n_bytes=3), *pieces[1:]], "larger"),
        (lambda pieces: [*pieces, pieces[0]._replace(output="../../etc", start=0)], "is no file that"),
        (lambda pieces: [pieces[0]._replace(content=b"text"), *pieces[1:]], "no bytes"),
        (lambda pieces: [pieces[0]._replace(n_bytes=1 << 60), *pieces[1:]], "more than is fetched"),
        (lambda pieces: [], "have come"),
    ],
)
def test_what_came_wrong_is_a_failure_and_leaves_nothing(
    tmp_path: Path, small_pieces: None, until: Callable, damage: Callable, words: str
) -> None:
    pieces = damage(pieces_of(TASK, CONTENTS))
    outcome = fetch(FetchedFiles(tmp_path, place_of, lambda: None), pieces, until)
    assert outcome.kind == "failed"
    assert any(word in outcome.error[1] for word in words.split("|")), outcome.error
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_beyond_the_limit_of_the_job_is_refused_before_it_comes(
    tmp_path: Path, small_pieces: None, until: Callable
) -> None:
    fetched = FetchedFiles(tmp_path, place_of, lambda: None, len(CONTENTS["drawn"]) - 1)
    for piece in pieces_of(TASK, CONTENTS):
        fetched.take(1, piece)
        assert not [path for path in tmp_path.rglob("*") if path.name.startswith("3.drawn")]
    assert "backend.file_limit is" in fetch(fetched, [], until).error[1]


def test_what_a_lost_worker_had_sent_is_dropped(tmp_path: Path, small_pieces: None, until: Callable) -> None:
    """Its task is run again: by the time that the first result is on disk, it is another's."""
    fetched = FetchedFiles(tmp_path, place_of, lambda: None)
    fetched.take(3, pieces_of(TASK, CONTENTS)[0])
    fetched.forget(3)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    for piece in pieces_of(TASK, CONTENTS):
        fetched.take(2, piece)
    fetched.finish(2, outcome_of(TASK, CONTENTS))
    fetched.forget(2)
    assert fetch(fetched, pieces_of(TASK, CONTENTS), until).kind == "done"
    assert not fetched.done(), "and once only"


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(1, 70), st.integers(1, 100))
def test_a_sender_sends_each_byte_once(contents: list[bytes], piece_bytes: int, answer_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_saver, "PIECE_BYTES", piece_bytes)
        patch.setattr(file_saver, "ANSWER_BYTES", answer_bytes)
        named = {str(at): content for at, content in enumerate(contents)}
        came: dict[str, bytes] = {}
        for piece in pieces_of(TASK, named):
            assert piece.start == len(came.get(piece.output, b""))
            assert len(piece.content) <= piece_bytes
            came[piece.output] = came.get(piece.output, b"") + np.asarray(piece.content).tobytes()
        assert came == named


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("at", ["open", "fsync"])
def test_a_folder_that_takes_no_more_is_no_fault_of_the_item(
    tmp_path: Path, until: Callable, monkeypatch: pytest.MonkeyPatch, at: str, number: int
) -> None:
    """Nor does it keep who waits for the outcome: what is half there cannot be removed either."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "there")

    fetched = FetchedFiles(tmp_path, place_of, lambda: None)
    monkeypatch.setattr(f"evenload.pipeline.run.machines.fetched_files.os.{at}", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    outcome = fetch(fetched, pieces_of(TASK, CONTENTS), until)
    monkeypatch.undo()
    assert (outcome.kind, says_full(outcome.error[1])) == ("failed", True), outcome.error
