"""Digests of what files hold, each file read once: the next program knows it again by size, place and times.

digests = ContentDigests(memory=user_folder / "digests.sqlite")
digests.of(path)          of a file's content, or of a folder's names and contents; "" if it is not there
digests.save()
"""

import contextlib
import hashlib
import os
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evenload._private_files import plain_file, refuse_unless_own
from evenload.errors import ConfigError

__all__ = ["ContentDigests"]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS digest (path TEXT PRIMARY KEY, facts TEXT NOT NULL, digest TEXT NOT NULL)"
)
_SETTLED_NS = 2_000_000_000  # a file that changed later may change again without another time
_MOST_ROWS = 500_000
_N_THREADS = 8
_BLOCK_BYTES = 1 << 20


class ContentDigests:
    """Digests of files, kept for this program and, with ``memory``, for the next ones.

    n_read_bytes  bytes that had to be read
    """

    def __init__(self, memory: Path | None = None):
        self.n_read_bytes = 0
        self._known: dict[str, tuple[str, str]] = {}
        self._new: dict[str, tuple[str, str]] = {}
        self._memory = memory
        self._database = _opened(memory) if memory is not None and memory.is_file() else None

    def of(self, path: Path, *, unchanged_since_ns: int | None = None) -> str | None:
        """Return the digest of a file or folder; "" if there is none that can be read.

        unchanged_since_ns  None is returned for one that was changed after that, by the system's clock
        """
        try:
            status = path.stat()
            if unchanged_since_ns is not None and status.st_ctime_ns > unchanged_since_ns:
                return None
            if stat.S_ISDIR(status.st_mode):
                return self._of_folder(path)
            return self._of_file(path, status) if stat.S_ISREG(status.st_mode) else ""
        except (OSError, ValueError):
            return ""

    def save(self) -> None:
        """Keep what is new for the next program. Raises no OSError: else files are read again."""
        new, self._new = self._new, {}
        if self._memory is None or not new:
            return
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = self._database or _opened(self._memory)
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error), self._database:
                rows = [(os.fsencode(path), *facts) for path, facts in new.items()]  # a name may not be UTF-8
                self._database.executemany("INSERT OR REPLACE INTO digest VALUES (?, ?, ?)", rows)
                self._database.execute(
                    "DELETE FROM digest WHERE (SELECT count(*) FROM digest) > ?", (_MOST_ROWS,)
                )

    def close(self) -> None:
        self.save()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _of_file(self, path: Path, status: os.stat_result) -> str:
        name, facts = os.path.realpath(path), _facts(status)
        known = self._known.get(name) or self._remembered(name)
        if known is None or known[0] != facts:
            known = facts, _read(path)
            self.n_read_bytes += status.st_size
            if status.st_ctime_ns < time.time_ns() - _SETTLED_NS and _facts(path.stat()) == facts:
                self._new[name] = known
        self._known[name] = known
        return known[1]

    def _of_folder(self, folder: Path) -> str:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        with ThreadPoolExecutor(_N_THREADS) as pool:
            known = [self._fresh(path) for path in files]
            read = list(pool.map(lambda one: one[1] or _read(one[0]), zip(files, known, strict=True)))
        whole = hashlib.blake2b(digest_size=16)
        for path, digest, was in zip(files, read, known, strict=True):
            if not was:
                self._note(path, digest)
            whole.update(f"{path.relative_to(folder)}\0{digest}\0".encode("utf-8", "surrogatepass"))
        return whole.hexdigest()

    def _fresh(self, path: Path) -> str:
        """Return the digest of a file that is known and was not changed; else ""."""
        name = os.path.realpath(path)
        known = self._known.get(name) or self._remembered(name)
        if known is None or known[0] != _facts(path.stat()):
            return ""
        self._known[name] = known
        return known[1]

    def _note(self, path: Path, digest: str) -> None:
        status, name = path.stat(), os.path.realpath(path)
        self.n_read_bytes += status.st_size
        self._known[name] = _facts(status), digest
        if status.st_ctime_ns < time.time_ns() - _SETTLED_NS:
            self._new[name] = self._known[name]

    def _remembered(self, name: str) -> tuple[str, str] | None:
        if self._database is None:
            return None
        try:
            return self._database.execute(
                "SELECT facts, digest FROM digest WHERE path = ?", (os.fsencode(name),)
            ).fetchone()
        except sqlite3.Error:
            return None


def _facts(status: os.stat_result) -> str:
    """Return what changes when a file does: inode, size, times. Nobody can set the last one back."""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _read(path: Path) -> str:
    whole = hashlib.blake2b(digest_size=16)
    with plain_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            whole.update(block)
    return whole.hexdigest()


def _opened(memory: Path) -> sqlite3.Connection | None:
    """Open the memory of earlier programs; None if it is damaged, or others can have written it."""
    try:
        if memory.exists():
            refuse_unless_own(memory, memory.lstat(), "digests of files")
        with contextlib.ExitStack() as undone:
            database = undone.enter_context(contextlib.closing(sqlite3.connect(memory, timeout=1.0)))
            database.execute("PRAGMA synchronous=OFF")
            database.execute(_TABLE)
            undone.pop_all()
        return database
    except (sqlite3.Error, OSError, ConfigError):
        return None
