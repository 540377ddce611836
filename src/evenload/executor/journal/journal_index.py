"""The index of a journal: an SQLite file in WAL mode that maps keys to records of the segments.

It may be lost, as the segments have all that is in it. It notes up to which byte it covers each segment: on
opening the rest is read, or everything if the file is damaged or another journal's. Each row has a checksum,
so that one changed byte of a key does not make finished work look as if it had never been begun.
"""

import contextlib
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path

from evenload.executor.journal.segments import Entry

TABLES = (
    "CREATE TABLE entry (key TEXT PRIMARY KEY, segment INTEGER NOT NULL, start INTEGER NOT NULL, "
    "stop INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE segment (number INTEGER PRIMARY KEY, stop INTEGER NOT NULL, checksum INTEGER NOT NULL)",
)


class Index:
    """A map from key to Entry, on disk. ``salt``: the journal's, which goes into the checksums.

    Raises sqlite3.Error if the file is damaged, or another journal's; opening finds all damage there is.
    """

    def __init__(self, path: Path, salt: bytes):
        self._salt = zlib.crc32(salt)
        # Several threads call, one at a time: the journal has a lock.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            # No shared memory beside it: whoever cuts such a file ends the process.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
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
        """Make the tables, or raise sqlite3.DatabaseError unless every row is as it was written."""
        (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()  # the order of the keys too
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        found = {sql for (sql,) in self._db.execute("SELECT sql FROM sqlite_master")}
        for table in () if found else TABLES:
            self._db.execute(table)
        self._db.execute("PRAGMA user_version = 1")  # an error if nothing can be written
        if found and found != set(TABLES):
            raise sqlite3.DatabaseError("it has other tables")
        for table in ("entry", "segment"):
            for row in self._db.execute(f"SELECT * FROM {table}"):
                if self._checksum(row[:-1]) != row[-1]:
                    raise sqlite3.DatabaseError("a row has another checksum")

    def _checksum(self, row: tuple) -> int:
        return zlib.crc32(repr(row).encode(), self._salt)

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
        return None if row is None else Entry(*row[:-1])

    def known(self) -> dict[int, int]:
        """Return the number of bytes of each segment that are covered."""
        return dict(self._db.execute("SELECT number, stop FROM segment"))

    def add(self, entries: Iterable[Entry], stops: dict[int, int]) -> None:
        """Store the latest entries of their keys; ``stops``: bytes by segment that are covered now."""
        rows = ((*entry, self._checksum(tuple(entry))) for entry in entries)
        covered = ((*stop, self._checksum(stop)) for stop in stops.items())
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)", rows)
        self._db.executemany("INSERT OR REPLACE INTO segment VALUES (?, ?, ?)", covered)
        self._db.execute("COMMIT")

    def drop(self, key: str) -> None:
        self._db.execute("DELETE FROM entry WHERE key = ?", (key,))

    def close(self) -> None:
        self._db.close()
