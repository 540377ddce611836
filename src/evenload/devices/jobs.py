"""The running jobs of this machine: each announces itself in a small file while it runs.

The files are in a folder of the user (in ``$XDG_RUNTIME_DIR`` or the temporary folder). Reading them deletes
those whose process has ended.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import own_folder, read_own, refuse_unless_own, write_own
from evenload.errors import ConfigError

MOST_BYTES = 64_000
# A ConfigError is a ValueError.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
WHAT = "the announcement of a job"


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs on this machine; ``events`` is the absolute path of its events file."""

    pid: int
    name: str
    unix_s: float
    command: str = ""
    events: str | None = None


def jobs_folder() -> Path:
    """Return the folder of the announcements, which only this user can write."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"evenload-{os.getuid() if hasattr(os, 'getuid') else os.environ.get('USERNAME', '')}"


@contextlib.contextmanager
def announced(name: str, *, events: Path | None = None) -> Iterator[None]:
    """Announce that this process runs ``name`` until the block ends. Failures to write are ignored."""
    path = None
    with contextlib.suppress(OSError):
        folder = _own_folder()
        at = None if events is None else str(events.resolve())
        job = RunningJob(os.getpid(), name, time.time(), " ".join(sys.argv)[:500], at)
        path = folder / f"{os.getpid()}-{time.time_ns()}.json"
        write_own(path, json.dumps(asdict(job)).encode())
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def running_jobs() -> list[RunningJob]:
    """List the announced jobs whose processes still run, in the order of their starts."""
    import psutil

    jobs = []
    folder = jobs_folder()
    for path in sorted(folder.glob("*.json")) if _is_own(folder) else ():
        job = _read(path)
        if job is not None and psutil.pid_exists(job.pid):
            jobs.append(job)
        elif job is not None:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(jobs, key=lambda job: job.unix_s)


def _own_folder() -> Path:
    try:
        return own_folder(jobs_folder(), WHAT)
    except ConfigError as error:
        raise PermissionError(error.message) from None


def _is_own(folder: Path) -> bool:
    try:
        refuse_unless_own(folder, folder.lstat(), WHAT)
        return True
    except (ConfigError, OSError):
        return False


def _read(path: Path) -> RunningJob | None:
    """Read an announcement; None if it is half-written, damaged or of a newer version."""
    try:
        row: Any = json.loads(read_own(path, WHAT, MOST_BYTES))
        texts = [row["name"], row.get("command", ""), row.get("events") or ""]
        if not all(isinstance(text, str) for text in texts):
            return None
        pid, unix_s = int(row["pid"]), float(row["unix_s"])
        if not (0 < pid < 1 << 31 and 0 <= unix_s < 1e12):
            return None
        return RunningJob(pid, texts[0], unix_s, texts[1], texts[2] or None)
    except UNREADABLE:
        return None
