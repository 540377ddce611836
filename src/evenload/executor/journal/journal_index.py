"""Which record holds which key: an SQLite file in WAL mode beside the segments.

It can be lost. What it knows stands in the segments too, and how far it knows them it says itself: on opening
the rest is read from there, or everything, if the file is damaged.
"""

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from evenload.executor.journal.segments import Entry

__all__ = ["Index"]

TABLES = """
CREATE TABLE IF NOT EXISTS entry (
    key TEXT PRIMARY KEY, segment INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segment (number INTEGER PRIMARY KEY, stop INTEGER NOT NULL);
"""


class Index:
    """Key -> Entry, on disk. Raises sqlite3.Error if the file is damaged."""

    def __init__(self, path: Path):
        self._path = path
        # Calls come from several threads, one at a time: the journal has a lock.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            # Commits are not waited for: the segments have been, and after a power cut tell what is missing.
            self._db.execute("PRAGMA synchronous=NORMAL")
            (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            self._db.executescript(TABLES)
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def remove(cls, path: Path) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{suffix}").unlink()

    def __len__(self) -> int:
        return self._db.execute("SELECT count(*) FROM entry").fetchone()[0]

    def keys(self) -> list[str]:
        return [key for (key,) in self._db.execute("SELECT key FROM entry")]

    def get(self, key: str) -> Entry | None:
        row = self._db.execute("SELECT * FROM entry WHERE key = ?", (key,)).fetchone()
        return None if row is None else Entry(*row)

    def known(self) -> dict[int, int]:
        """Segment -> how many of its bytes are in here."""
        return dict(self._db.execute("SELECT number, stop FROM segment"))

    def add(self, entries: Iterable[Entry], stops: dict[int, int]) -> None:
        """These are the latest of their keys; ``stops``: segments are known so far now."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", entries)
        self._db.executemany("INSERT OR REPLACE INTO segment VALUES (?, ?)", stops.items())
        self._db.execute("COMMIT")

    def drop(self, key: str) -> None:
        self._db.execute("DELETE FROM entry WHERE key = ?", (key,))

    def close(self) -> None:
        self._db.close()
