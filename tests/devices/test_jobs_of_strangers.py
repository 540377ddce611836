"""Announcements of jobs: nothing of another user's is opened, and nothing that could hang."""

import json
import os
from pathlib import Path

import pytest

from evenload.devices import jobs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    jobs.jobs_folder().mkdir(mode=0o700)
    return jobs.jobs_folder()


def announce(path: Path) -> None:
    path.write_text(json.dumps({"pid": os.getpid(), "name": "job", "unix_s": 1.0}))
    path.chmod(0o600)


def test_only_plain_files_of_ours_are_opened(folder: Path) -> None:
    announce(folder / "good.json")
    announce(folder / "elsewhere")
    (folder / "link.json").symlink_to(folder / "elsewhere")
    os.mkfifo(folder / "pipe.json", 0o600)
    announce(folder / "open.json")
    (folder / "open.json").chmod(0o666)
    (folder / "folder.json").mkdir()
    assert [job.name for job in jobs.running_jobs()] == ["job"]


def test_a_folder_that_is_not_ours_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(folder / "good.json")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(jobs, "jobs_folder", lambda: folder)
    assert jobs.running_jobs() == []
