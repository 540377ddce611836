"""Which jobs run on this machine: each says so in a small file of its own while it runs.

The files are the user's own (``$XDG_RUNTIME_DIR`` or the temporary folder); one whose process is gone is
swept away by the next who looks.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Job", "announced", "jobs_folder", "running_jobs"]

MOST_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class Job:
    """``events`` is the absolute path of its events file, None if it keeps none; ``page`` its live page."""

    pid: int
    name: str
    unix_s: float
    command: str = ""
    devices: tuple[str, ...] = ()
    events: str | None = None
    page: str | None = None


def jobs_folder() -> Path:
    """Where jobs announce themselves; only this user can write there."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"evenload-{os.getuid() if hasattr(os, 'getuid') else os.environ.get('USERNAME', '')}"


@contextlib.contextmanager
def announced(
    name: str, *, devices: Sequence[str] = (), events: Path | None = None, page: str | None = None
) -> Iterator[None]:
    """Say that this process runs ``name`` until the block ends. What cannot be written is not worth a run."""
    path = None
    with contextlib.suppress(OSError):
        folder = _own_folder()
        at = None if events is None else str(events.resolve())
        job = Job(os.getpid(), name, time.time(), " ".join(sys.argv)[:500], tuple(devices), at, page)
        handle, made = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(job), file)
        path = folder / f"{os.getpid()}-{time.time_ns()}.json"
        os.rename(made, path)  # the name is new: nothing is replaced
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def running_jobs() -> list[Job]:
    """The announced jobs whose processes still run, in the order in which they were started."""
    import psutil

    jobs = []
    for path in sorted(jobs_folder().glob("*.json")):
        job = _read(path)
        if job is not None and _is_own(path) and psutil.pid_exists(job.pid):
            jobs.append(job)
        elif job is not None and _is_own(path):
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(jobs, key=lambda job: job.unix_s)


def _own_folder() -> Path:
    folder = jobs_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _is_own(path: Path) -> bool:
    try:
        return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _read(path: Path) -> Job | None:
    """None for what is no announcement: half-written, damaged, of a newer version."""
    try:
        with path.open(encoding="utf-8") as file:
            row: Any = json.loads(file.read(MOST_BYTES))
        texts = [row["name"], row.get("command", ""), row.get("events") or "", row.get("page") or ""]
        if not all(isinstance(text, str) for text in texts):
            return None
        devices = tuple(str(device) for device in row.get("devices", ()))
        return Job(
            int(row["pid"]),
            texts[0],
            float(row["unix_s"]),
            texts[1],
            devices,
            texts[2] or None,
            texts[3] or None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
