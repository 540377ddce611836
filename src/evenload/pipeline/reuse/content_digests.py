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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evenload._private_files import plain_file, refuse_unless_own
from evenload.errors import ConfigError

_TABLE = (
    "CREATE TABLE IF NOT EXISTS digest (path TEXT PRIMARY KEY, facts TEXT NOT NULL, digest TEXT NOT NULL)"
)
_SETTLED_NS = 2_000_000_000  # a file that changed later may change again without another time
_MOST_ROWS = 500_000
_N_THREADS = 8


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
            return self._of_files([path])[0] if stat.S_ISREG(status.st_mode) else ""
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

    def _of_folder(self, folder: Path) -> str:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        whole = hashlib.blake2b(digest_size=16)
        for path, digest in zip(files, self._of_files(files), strict=True):
            whole.update(f"{path.relative_to(folder)}\0{digest}\0".encode("utf-8", "surrogatepass"))
        return whole.hexdigest()

    def _of_files(self, files: Sequence[Path]) -> list[str]:
        """Return the digest of each, of those that are known without reading them."""
        found = {os.path.realpath(path): path.stat() for path in files}
        known = {name: self._known.get(name) or self._remembered(name) or ("", "") for name in found}
        unread = [name for name, status in found.items() if known[name][0] != _facts(status)]
        if len(unread) > 1:
            with ThreadPoolExecutor(_N_THREADS) as pool:
                digests = list(pool.map(_read, unread))
        else:
            digests = list(map(_read, unread))
        for name, digest in zip(unread, digests, strict=True):
            status = found[name]
            known[name] = _facts(status), digest
            self.n_read_bytes += status.st_size
            is_settled = status.st_ctime_ns < time.time_ns() - _SETTLED_NS
            if is_settled and _facts(os.stat(name)) == known[name][0]:  # not changed while it was read
                self._new[name] = known[name]
        self._known |= known
        return [known[os.path.realpath(path)][1] for path in files]

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


def _read(name: str) -> str:
    with plain_file(Path(name)) as file:
        whole = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))  # pyrefly: ignore
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
