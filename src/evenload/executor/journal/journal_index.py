"""The index of a journal: an SQLite file in WAL mode that maps keys to records of the segments.

It may be lost, as the segments have all that is in it. It notes up to which byte it covers each segment: on
opening the rest is read, or everything if the file is damaged.
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
# A damaged byte can turn a value into one of another type, which SQLite's own check may not mind.
OF_ANOTHER_TYPE = """
SELECT EXISTS (SELECT 1 FROM entry WHERE typeof(key) != 'text' OR typeof(segment) != 'integer'
                                      OR typeof(start) != 'integer' OR typeof(stop) != 'integer')
    OR EXISTS (SELECT 1 FROM segment WHERE typeof(stop) != 'integer')
"""


class Index:
    """A map from key to Entry, on disk. Raises sqlite3.Error if the file is damaged."""

    def __init__(self, path: Path):
        self._path = path
        # Several threads call, one at a time: the journal has a lock.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # A key with a damaged byte is another key, which nobody asks for: what had it is done again.
        self._db.text_factory = lambda key: str(key, "utf-8", "replace")
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            # Commits are not fsynced: after a power cut the rest is read from the segments, which are.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._check()
        except BaseException as error:
            self._db.close()
            if isinstance(error, UnicodeDecodeError):  # SQLite's own message quotes damaged bytes
                raise sqlite3.DatabaseError(str(error)) from None
            raise

    def _check(self) -> None:
        """Make the tables, or raise sqlite3.DatabaseError unless every key in them can be looked up."""
        (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()  # the order of the keys too
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        self._db.executescript(TABLES + "PRAGMA user_version = 1;")  # an error if it cannot be written
        if self._db.execute(OF_ANOTHER_TYPE).fetchone()[0]:
            raise sqlite3.DatabaseError("a value is of another type than its column")

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
        """Return the number of bytes of each segment that are covered."""
        return dict(self._db.execute("SELECT number, stop FROM segment"))

    def add(self, entries: Iterable[Entry], stops: dict[int, int]) -> None:
        """Store the latest entries of their keys; ``stops``: bytes by segment that are covered now."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", entries)
        self._db.executemany("INSERT OR REPLACE INTO segment VALUES (?, ?)", stops.items())
        self._db.execute("COMMIT")

    def drop(self, key: str) -> None:
        self._db.execute("DELETE FROM entry WHERE key = ?", (key,))

    def close(self) -> None:
        self._db.close()
