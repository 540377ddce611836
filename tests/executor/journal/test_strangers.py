"""A journal that anybody else may have written is refused before a byte of it is unpickled."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.executor.journal import segments
from evenload.executor.journal.journal import Journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    with Journal.open(folder, "f") as journal:
        journal.record("1", b"payload")
    return folder


def test_what_it_makes_is_for_its_user_alone(folder: Path) -> None:
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o022 == 0 for path in folder.iterdir())


def _swap_for_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def _swap_for_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: folder.chmod(0o770), "open to others"),
        (lambda folder: (folder / "index.sqlite").chmod(0o666), "open to others"),
        (lambda folder: (folder / "segment-000001").chmod(0o620), "open to others"),
        (_swap_for_a_link, "a link"),
        (lambda folder: _swap_for_a_link(folder / "journal.json"), "a link"),
        (lambda folder: _swap_for_a_link(folder / "lock"), "a link"),
        (lambda folder: _swap_for_a_pipe(folder / "segment-000001"), "a pipe"),
        (lambda folder: _swap_for_a_pipe(folder / "journal.json"), "a pipe"),
    ],
)
def test_it_is_refused_if_others_may_have_written_it(
    folder: Path, spoil: Callable[[Path], object], why: str
) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=why):
        Journal.open(folder, "f")


def test_another_users_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="another user's"):
        Journal.open(folder, "f")


def test_what_takes_its_place_while_it_is_open_is_not_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is the disk: what has the name now stays empty, and all results are in the moved one."""
    monkeypatch.setattr(segments, "MOST_BYTES", 10)  # each record begins a segment
    with Journal.open(folder, "f") as journal:
        moved = folder.rename(folder.with_name("moved"))
        folder.mkdir(mode=0o777)
        journal.record("2", b"another")
    assert os.listdir(folder) == []
    with Journal.open(moved, "f") as journal:
        assert {key: journal.done(key) for key in ("1", "2")} == {"1": b"payload", "2": b"another"}
