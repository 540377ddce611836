"""The journal of a run: results are on disk before they are delivered, so that a run can be resumed.

    journal = Journal.open(folder, fingerprint)        of what makes the results: a function, a version, ...
    journal.done(key) -> payload | None                None: it has to be done (again)
    journal.record(key, payload)                       returns when the disk has it
    journal.close()

**How durable.** When ``record`` returns, the payload has been written to a segment and fsynced: it survives
the end of the program, and of the machine if its disk keeps what it acknowledges. One fsync serves all
threads that record at that time, and all entries of one ``record_many``. An entry that was being written at a
crash is there as a whole or not at all. Every payload is checked when it is read; a damaged one counts as not
done.
"""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from evenload._closing import Closing
from evenload._private_files import OwnFolder, sync, sync_folder
from evenload.errors import NO_ROOM, ConfigError, EvenloadError, UnknownName, folder_hint, quoted, reason_of
from evenload.executor.journal.journal_index import Index
from evenload.executor.journal.segments import MOST_KEY_BYTES, Buffer, Entry, Segments

FORMAT = "1"
MOST_FACTS_BYTES = 1 << 28
WHAT = "results that are unpickled"
OTHER_HINT = "on_change='rerun' forgets it and does everything again; or name another journal"
BUSY_HINT = "wait for it to end, or name another journal"
KEEP_HINT = "on_change='keep' takes its results all the same, 'rerun' does all again; or name another journal"
ON_CHANGE = ("refuse", "rerun", "keep")


class Journal(Closing):
    """A folder of finished results; ``open`` makes one. May be used by several threads of one process.

    path        the folder
    n_damaged   entries that were found damaged and have to be done again
    """

    def __init__(self, folder: OwnFolder, lock_fd: int, segments: Segments, index: Index):
        self.path = folder.path
        self.n_damaged = 0
        self._folder, self._lock_fd = folder, lock_fd
        self._segments = segments
        self._index = index
        self._lock = threading.Lock()  # for segments and index
        self._turn = threading.Lock()  # for the entries that wait to be written
        self._waiting: list[tuple[str, Buffer]] = []
        self._n_waiting = self._n_written = 0
        self._failure: OSError | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        fingerprint: str | Mapping[str, str],
        *,
        on_change: str = "refuse",
        is_fresh: bool = False,
        parts: Mapping[str, str] | None = None,
        tell: Callable[[Mapping[str, str] | None], str] = lambda was: "",
    ) -> "Journal":
        """Open the journal in the folder ``path``, or begin one there.

        fingerprint  of all that determines a payload: a text, or named texts ("function": "3f2a…")
        on_change    if the journal has another fingerprint: "refuse" it, "rerun" everything and delete its
                     entries, or "keep" them, under this fingerprint from now on
        is_fresh     delete its entries, whatever it is of
        parts        named texts that the fingerprint stands for, which the journal keeps for ``tell``
        tell         says how these differ from the parts that are given to it; None: the journal has none
        Raises ConfigError if it is refused, is in use by another process, if ``path`` is no journal, or is a
        link, another user's, or writable for others; EvenloadError if it cannot be read or written.
        """
        if on_change not in ON_CHANGE:
            raise UnknownName("on_change", str(on_change), ON_CHANGE)
        path = Path(path)
        named = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else dict(fingerprint)
        try:
            with contextlib.ExitStack() as undone:
                folder = undone.enter_context(_open_folder(path))
                lock_fd = _lock(folder)
                undone.callback(os.close, lock_fd)
                if is_fresh:
                    _empty(folder)
                salt = _salt(folder, named, on_change, parts, tell)
                journal = cls(folder, lock_fd, *_load(folder, salt))
                undone.pop_all()
                return journal
        except (OSError, sqlite3.OperationalError) as error:
            raise _unopened(path, error) from error

    @staticmethod
    def discard(path: Path) -> None:
        """Delete the journal in the folder ``path``, unless another process has it, or may not be touched."""
        try:
            with OwnFolder(path, WHAT) as folder:
                folder.facts("journal.json")
                lock_fd = _lock(folder)
                try:
                    _empty(folder)
                    folder.unlink("lock")
                    os.rmdir(path)
                finally:
                    os.close(lock_fd)
        except (ConfigError, OSError):
            return

    def done(self, key: str) -> bytes | None:
        """Return the payload recorded last; None if there is none, or if it is damaged.

        Raises EvenloadError, as do ``keys`` and ``len``, if the index cannot be read.
        """
        with self._reading():
            entry = self._index.get(key)
            if entry is None:
                return None
            payload = self._segments.read(entry)
            if payload is None:
                self.n_damaged += 1
                with contextlib.suppress(sqlite3.Error):  # the disk may be full
                    self._index.drop(key)
            return payload

    def record(self, key: str, payload: Buffer) -> None:
        """Store ``payload`` in place of an earlier one of this key. Returns when it is on disk.

        Raises EvenloadError if the disk is full or fails: then nothing more can be recorded, and what was
        recorded before is safe. ConfigError on a key that is empty or has more than 4096 bytes.
        """
        self.record_many([(key, payload)])

    def record_many(self, entries: Iterable[tuple[str, Buffer]]) -> None:
        """Store several payloads at once, which is much faster than one after the other; see ``record``."""
        entries = list(entries)
        for key, _ in entries:
            if not 0 < len(key.encode()) <= MOST_KEY_BYTES:
                raise ConfigError(f"the key {quoted(key[:50])} has none or more than {MOST_KEY_BYTES} bytes")
        with self._turn:
            self._waiting += entries
            self._n_waiting += len(entries)
            mine = self._n_waiting
        with self._lock:  # the first thread here writes for all that wait
            if self._n_written < mine:
                self._write()

    def keys(self) -> list[str]:
        """Return all keys that have an entry, in no order."""
        with self._reading():
            return self._index.keys()

    def __len__(self) -> int:
        with self._reading():
            return len(self._index)

    def close(self) -> None:
        """Close the files. What was recorded stays."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._index.close()
                self._segments.close()
                os.close(self._lock_fd)
                self._folder.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise EvenloadError(
                    f"the index of the journal {self.path} cannot be read: {reason_of(error)}",
                    hint="run again: it is made anew, and what is done is not done again",
                ) from error

    def _write(self) -> None:
        if self._is_closed:
            raise EvenloadError(f"the journal {self.path} is closed")
        if self._failure is not None:  # after a failed write the content of the file is unknown
            raise self._unwritable(self._failure)
        with self._turn:
            batch, self._waiting = self._waiting, []
            stop = self._n_waiting
        try:
            written = self._segments.append(batch)
            self._index.add(written, {written[-1].segment: written[-1].stop})
        except (OSError, sqlite3.Error) as error:
            # Not the error itself: its frames hold what was to be kept, and the run that wanted it.
            self._failure = (
                OSError(*error.args[:2]) if isinstance(error, OSError) else OSError(0, reason_of(error))
            )
            raise self._unwritable(self._failure) from error
        self._n_written = stop

    def _unwritable(self, error: OSError) -> EvenloadError:
        return EvenloadError(
            f"the journal {self.path} cannot be written: {error.strerror}",
            hint="make room on its disk and run again: what is done is not done again",
        )


def _unopened(path: Path, error: OSError | sqlite3.OperationalError) -> EvenloadError:
    is_full = getattr(error, "errno", NO_ROOM[0]) in NO_ROOM
    return EvenloadError(
        f"the journal {path} cannot be opened: {getattr(error, 'strerror', None) or error}",
        hint="make room there" if is_full else folder_hint("choose a folder that you own"),
    )


def _open_folder(path: Path) -> OwnFolder:
    """Open the folder of a journal, or make one. Raises ConfigError for a folder of other things.

    Also if anybody else may have written to it: unpickling runs what is in it.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
        sync_folder(path.absolute().parent)
    except FileExistsError:
        if path.exists() and not path.is_dir():
            raise ConfigError(
                f"{path} is a file, and a journal is a folder", hint="name another path"
            ) from None
        if not path.is_symlink() and not os.listdir(path) and path.stat().st_uid == os.geteuid():
            path.chmod(0o700)
    with contextlib.ExitStack() as undone:
        folder = undone.enter_context(OwnFolder(path, WHAT))
        names = folder.names()
        if names and not {"lock", "journal.json"} & set(names):
            raise ConfigError(
                f"{path} has files that are no journal", hint="name a new folder for the journal"
            )
        folder.check_files()
        undone.pop_all()
    return folder


def _lock(folder: OwnFolder) -> int:
    """Lock the journal for this process; the system releases the lock when the process ends."""
    fd = folder.open("lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino != folder.facts("lock").st_ino:  # the journal was deleted meanwhile
            raise FileNotFoundError(errno.ENOENT, "it was deleted by another process", str(folder.path))
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        who = os.read(fd, 20).decode(errors="replace").strip()
        os.close(fd)
        raise ConfigError(
            f"the journal {folder.path} is in use{f' by process {who}' if who else ''}",
            hint=BUSY_HINT,
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _salt(
    folder: OwnFolder,
    named: Mapping[str, str],
    on_change: str,
    parts: Mapping[str, str] | None,
    tell: Callable[[Mapping[str, str] | None], str],
) -> bytes:
    """Return the salt of the journal, which is of what ``named`` says from now on.

    Raises ConfigError if it was made by something else and that is refused.
    """
    facts: Any = None
    salt, was, form = b"", None, None
    try:
        facts = json.loads(folder.read("journal.json", MOST_FACTS_BYTES))
        known, form = dict[str, str](facts["fingerprint"]), facts["format"]
        if facts.get("checksum") not in (None, _checksum(facts["salt"], known)):
            raise ValueError("it is not as it was written")
        salt = bytes.fromhex(facts["salt"])
        blake2b(key=salt)
        was = known
    except ConfigError:
        raise
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        pass
    if was == named and form == FORMAT:
        return salt
    if on_change == "rerun" or not Segments(folder, b"").numbers:
        _empty(folder)
        salt = os.urandom(8)
    elif on_change != "keep" or was is None or form != FORMAT:
        raise _of_no_use(folder.path, was, form, named, tell, facts)
    _write_facts(folder, salt, named, parts)
    return salt


def _of_no_use(
    path: Path,
    was: Mapping[str, str] | None,
    form: Any,
    named: Mapping[str, str],
    tell: Callable[[Mapping[str, str] | None], str],
    facts: Any,
) -> ConfigError:
    hint = OTHER_HINT
    if was is None:
        why = "its journal.json is damaged or gone, so nobody knows what made its results"
    elif form != FORMAT:
        why = f"it has format {form}, this version reads {FORMAT}"
    else:
        changed = [name for name in {**was, **named} if was.get(name) != named.get(name)]
        why = f"another {' and another '.join(changed)} made its results"
        said = tell(_parts_of(facts))
        why, hint = f"{why}: {said}" if said else why, KEEP_HINT if said else hint
    return ConfigError(f"the journal {path} is of no use here: {why}", hint=hint)


def _parts_of(facts: Any) -> dict[str, str] | None:
    """Return the parts of a journal's fingerprint; None if it has none, or what are no parts."""
    parts = facts.get("parts")
    is_known = isinstance(parts, dict) and all(isinstance(text, str) for text in parts.values())
    return parts if is_known else None


def _checksum(salt: Any, named: Mapping[str, str]) -> int:
    """Compute the checksum of journal.json. ``salt``: as it stands there, if it is one."""
    return zlib.crc32(json.dumps([salt, sorted(named.items())]).encode())


def _write_facts(
    folder: OwnFolder, salt: bytes, named: Mapping[str, str], parts: Mapping[str, str] | None
) -> None:
    draft = folder.open("journal.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(draft, "w", encoding="utf-8") as file:
        facts = {"format": FORMAT, "salt": salt.hex(), "fingerprint": dict(named)}
        facts |= {} if parts is None else {"parts": dict(parts)}
        json.dump(facts | {"checksum": _checksum(salt.hex(), named)}, file, indent=1)
        file.flush()
        sync(file.fileno())
    folder.rename("journal.json.new", "journal.json")
    folder.sync()


def _empty(folder: OwnFolder) -> None:
    """Delete all entries. journal.json is last, so that a program killed before sees the change again."""
    Segments(folder, b"").remove()
    Index.remove(folder.path / "index.sqlite")
    with contextlib.suppress(FileNotFoundError):
        folder.unlink("journal.json")
    folder.sync()


def _kept_index(path: Path, salt: bytes, segments: Segments) -> tuple[Index, dict[int, int]]:
    """Open an index that may stay. Raises sqlite3.Error, with nothing left open, for one that must go."""
    index = Index(path, salt)
    try:
        known = index.known()
        if any(n not in segments.numbers or stop > segments.size(n) for n, stop in known.items()):
            raise sqlite3.DatabaseError("it knows more than there is")
    except BaseException:
        index.close()
        raise
    return index, known


def _load(folder: OwnFolder, salt: bytes) -> tuple[Segments, Index]:
    """Open the segments, and an index that is brought up to date with them."""
    path = folder.path / "index.sqlite"
    with contextlib.ExitStack() as undone:
        segments = undone.enter_context(contextlib.closing(Segments(folder, salt)))
        try:
            index, known = _kept_index(path, salt, segments)
        except sqlite3.Error:
            Index.remove(path)
            index, known = Index(path, salt), {}
        undone.enter_context(contextlib.closing(index))
        for number in segments.numbers:
            start, size = known.get(number, 0), segments.size(number)
            found: list[Entry] = list(segments.scan(number, start)) if size > start else []
            stop = found[-1].stop if found else start
            if found:
                index.add(found, {number: stop})
            if number == segments.numbers[-1] and stop == size:
                segments.go_on(number, stop)
        undone.pop_all()
    return segments, index
