"""The record of which files of a run are in a store already: ``uploads.jsonl`` in the run folder."""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from evenload._private_files import read_own, write_own
from evenload.errors import ConfigError
from evenload.events import json_text

NAME = "uploads.jsonl"
_SCHEMA = 1
_WHAT = "addresses that results are copied to"
_MOST_BYTES = 1 << 30


class Destination(NamedTuple):
    """The place that the results of a run are copied to. ``stages``: whose files; None for all."""

    url: str
    stages: tuple[str, ...] | None = None


class _Sent(NamedTuple):
    n_bytes: int
    sha256: str
    mtime_ns: int
    inode: int


_UNKNOWN = _Sent(-1, "", 0, 0)


class UploadRecord:
    """A record of what a store has of a run folder; each file is noted once it is there.

    Used by several threads.
    """

    def __init__(self, folder: Path, to: Destination):
        """Open the record, or begin one: what is known of another address is forgotten.

        Raises ConfigError if others may write the record, OSError if it cannot be written.
        """
        self._path, self._lock = folder / NAME, threading.Lock()
        self._sent: dict[str, _Sent] = {}
        rows = _rows(folder)
        if rows and _destination(rows[0]) == to:
            self._sent = {path: sent for row in rows[1:] for path, sent in _sent_in(row)}
        head = {"schema": _SCHEMA, "to": to.url, "stages": None if to.stages is None else list(to.stages)}
        known = [_row(path, sent) for path, sent in self._sent.items()]
        write_own(self._path, "".join(json_text(row) + "\n" for row in [head, *known]).encode())
        self._file: IO[str] = self._path.open("a", encoding="utf-8")

    def has(self, path: str, facts: os.stat_result) -> bool:
        """Return whether the store has the file, of which ``facts`` is what the disk says now."""
        sent = self._sent.get(path)
        return sent is not None and sent[0] == facts.st_size and sent[2:] == (facts.st_mtime_ns, facts.st_ino)

    def has_content(self, path: str, sha256: str) -> bool:
        """Return whether the store has this content of the file."""
        return path in self._sent and self._sent[path].sha256 == sha256

    def believe(self, sizes: Mapping[str, int]) -> None:
        """Forget what the store does not list any more, or with another size."""
        with self._lock:
            kept = {path: sent for path, sent in self._sent.items() if sizes.get(path) == sent.n_bytes}
            self._sent = kept

    def add(self, path: str, facts: os.stat_result, sha256: str) -> None:
        """The store has the file now."""
        self._note(path, _Sent(facts.st_size, sha256, facts.st_mtime_ns, facts.st_ino))

    def forget(self, path: str) -> None:
        """A put of the file begins: nobody knows what the store has until it is answered."""
        if path in self._sent:
            self._note(path, _UNKNOWN)

    def _note(self, path: str, sent: _Sent) -> None:
        with self._lock:
            self._sent[path] = sent
            if not self._file.closed:
                self._file.write(json_text(_row(path, sent)) + "\n")
                self._file.flush()

    def digests(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each of these files that the store has."""
        return {path: self._sent[path].sha256 for path in paths if path in self._sent}

    def close(self) -> None:
        with self._lock:
            self._file.close()


def last_destination(folder: Path) -> Destination | None:
    """Return where the results in a run folder were copied to last; None if nowhere.

    Raises ConfigError if others may have written that down.
    """
    rows = _rows(folder)
    return _destination(rows[0]) if rows else None


def _row(path: str, sent: _Sent) -> dict[str, Any]:
    return {"path": path, **sent._asdict()}


def _rows(folder: Path) -> list[Any]:
    """Return the rows of the record; a line that was cut by a kill, or is none of ours, ends it."""
    rows: list[Any] = []
    try:
        text = read_own(folder / NAME, _WHAT, _MOST_BYTES).decode("utf-8", "replace")
        rows.extend(json.loads(line) for line in text.split("\n") if line)  # what came before a fault is kept
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError):
        pass
    return rows


def _destination(row: Any) -> Destination | None:
    if not isinstance(row, dict) or row.get("schema") != _SCHEMA or not isinstance(row.get("to"), str):
        return None
    stages = row.get("stages")
    if stages is not None and not (isinstance(stages, list) and all(isinstance(one, str) for one in stages)):
        return None
    return Destination(row["to"], None if stages is None else tuple(stages))


def _sent_in(row: Any) -> list[tuple[str, _Sent]]:
    try:
        path, sent = row["path"], _Sent(*(row[name] for name in _Sent._fields))
    except (TypeError, KeyError):
        return []
    kinds = (int, str, int, int)
    is_sound = isinstance(path, str) and all(isinstance(a, b) for a, b in zip(sent, kinds, strict=True))
    return [(path, sent)] if is_sound else []
