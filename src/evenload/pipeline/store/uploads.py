"""The files of a run folder on their way to a store, while the run goes on and after it.

uploads.offer("outputs/edit/r7.png")     returns at once; the store is never waited for
uploads.finish()                         puts what is missing, and says what the store has then

What is offered is a hint: where the store is slow or down it is dropped, and found again in the end, as all
that counts is on disk. A file is put whole or not at all, and noted in the run folder's record once it is
there.
"""

import contextlib
import hashlib
import json
import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from evenload._closing import Closing
from evenload._private_files import DRAFT, plain_file, read_own, write_own
from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.pipeline.job.remote_files import RemoteFolder, is_worth_another_try
from evenload.pipeline.stages.server_pace import pause_s

DIGESTS = "SHA256SUMS"
RECORDS = (
    *("config.yaml", "plan.json", "events.jsonl"),
    *("results.jsonl", "openai_batch.jsonl", "summary.json", "report.html", "trace.json"),
)
_MOST_WAITING = 40_000  # files
_MOST_FAILED = 3  # in a row; then the store is taken to be down
_REST_S = 300.0
_LOOK_S = 0.1
RECORD = "uploads.jsonl"
_SCHEMA = 1
_WHAT = "addresses that results are copied to"
_MOST_RECORD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SendLimits:
    """The patience with a store. ``timeout_s``: for one try of one file; ``retries``: further tries."""

    timeout_s: float = 900.0
    retries: int = 4


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """The outcome of copying a run: a store has ``n_files`` of it, ``n_new`` of them since this session.

    ``n_left`` are missing; ``why``: what the store said last of one that failed.
    """

    to: str
    n_files: int
    n_new: int
    n_left: int
    why: str = ""


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
    """The record, ``uploads.jsonl``, of what a store has of a run; each file is noted once it is there.

    Used by several threads.
    """

    def __init__(self, folder: Path, to: Destination):
        """Open the record, or begin one: what is known of another address is forgotten.

        Raises ConfigError if others may write the record, OSError if it cannot be written.
        """
        self._path, self._lock = folder / RECORD, threading.Lock()
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


class Uploads(Closing):
    """The threads that put a run folder's files into a store. A context: leaving it ends them.

    folder  of the run
    tell    is called with a sentence when the store is taken to be down
    clock   seconds
    """

    def __init__(
        self,
        store: RemoteFolder,
        folder: Path,
        to: Destination,
        limits: SendLimits,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Begin or go on with the record in ``folder``. Raises ConfigError, OSError as ``UploadRecord``."""
        self.tell: Callable[[str], None] = lambda text: None
        self.folder, self._store, self._to, self._limits, self._clock = folder, store, to, limits, clock
        self._record = UploadRecord(folder, to)
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        self._changed = threading.Condition()  # of what follows
        self._todo: dict[str, None] = {}  # in the order of their turn
        self._busy: set[str] = set()
        self._hanging: set[str] = set()
        self._n_new = self._n_failed = 0
        self._rests_until = float("-inf")
        self._why = ""  # what the store said last

    def offer(self, relative: str) -> None:
        """Have a file copied, if there is room to remember it and its stage is asked for."""
        if self._is_wanted(relative) and len(self._todo) < _MOST_WAITING:
            self._hand_over([relative])

    def finish(self, watch: Callable[[int, int], None] = lambda n_left, n_files: None) -> UploadOutcome:
        """Put what is missing, and return what the store has then.

        watch  is called now and then with how many files are left, of how many; may raise to end it
        """
        with self._changed:  # it is taken to be there again
            self._n_failed, self._rests_until = 0, float("-inf")
        files = list(self._files())
        listed = self._store.sizes()
        if listed is not None:
            self._record.believe(listed)
        missing = [one for one in files if not self._is_there(one)]
        self._hand_over(missing)
        while n_left := len(self._todo) + len(self._busy):
            watch(min(n_left, len(missing)), len(missing))
            with self._changed:
                self._changed.wait_for(lambda: not (self._todo or self._busy), _LOOK_S)
        watch(0, len(missing))
        outcome = self.outcome(files)
        sums = (f"{digest}  {path}\n" for path, digest in self._record.digests(files).items())
        if outcome.n_left or self._send_text("".join(sums), DIGESTS):
            return outcome
        return replace(outcome, n_left=1, why=self._why)

    def outcome(self, files: list[str] | None = None) -> UploadOutcome:
        """Return what the store has by now of ``files``, or of all."""
        files = list(self._files()) if files is None else files
        n_there = sum(map(self._is_there, files))
        n_left = len(files) - n_there
        return UploadOutcome(self._to.url, n_there, self._n_new, n_left, self._why if n_left else "")

    def close(self) -> None:
        """End the threads. What is being put is not waited for: it is there whole, or not at all."""
        self._is_over.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._record.close()

    def _is_there(self, relative: str) -> bool:
        """Return whether the store has this file as it is now; also if the file is gone."""
        try:
            return self._record.has(relative, (self.folder / relative).stat())
        except OSError:
            return True

    def _hand_over(self, files: list[str]) -> None:
        with self._changed:
            if self._is_over.is_set():
                return
            self._todo.update(dict.fromkeys(files))
            while len(self._threads) < max(1, self._store.n_at_once):
                self._threads.append(threading.Thread(target=self._work, name="evenload-upload", daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def _work(self) -> None:
        while (relative := self._next()) is not None:
            try:
                self._send(relative)
            finally:
                with self._changed:
                    self._busy.discard(relative)
                    self._changed.notify_all()

    def _next(self) -> str | None:
        """The file whose turn it is, once there is one that no other thread puts; None at the end."""
        with self._changed:
            while not self._is_over.is_set():
                found = next((one for one in self._todo if one not in self._busy), None)
                if found is not None:
                    del self._todo[found]
                    self._busy.add(found)
                    return found
                self._changed.wait()
        return None

    def _send(self, relative: str) -> None:
        """Put a file, unless it is there, or the store is down."""
        source = self.folder / relative
        with contextlib.suppress(OSError):  # it was taken away meanwhile
            before = source.stat()
            is_resting = self._is_over.is_set() or self._clock() < self._rests_until
            if self._record.has(relative, before) or is_resting or relative in self._hanging:
                return
            with plain_file(source) as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # pyrefly: ignore
            if not self._record.has_content(relative, sha256):
                if not self._put(source, relative):
                    return
                with self._changed:
                    self._n_new += 1
            if _facts(source.stat()) == _facts(before):
                self._record.add(relative, before, sha256)

    def _send_text(self, text: str, relative: str) -> bool:
        """Put a file with this content, which is not in the run folder; returns whether it is there."""
        content = text.encode("utf-8", "surrogateescape")
        sha256 = hashlib.sha256(content).hexdigest()
        if self._record.has_content(relative, sha256):
            return True
        with tempfile.NamedTemporaryFile(prefix="evenload-upload-") as file:
            file.write(content)
            file.flush()
            if not self._put(Path(file.name), relative):
                return False
            self._record.add(relative, os.fstat(file.fileno()), sha256)
            return True

    def _put(self, source: Path, relative: str) -> bool:
        self._record.forget(relative)
        n_tries = 0
        while (fault := self._attempt(source, relative)) is not None:
            n_tries += 1
            is_last = n_tries > self._limits.retries or relative in self._hanging
            if is_last or not is_worth_another_try(fault):
                break
            if self._is_over.wait(pause_s(n_tries - 1, None, random.random())):
                break
        if fault is None:
            with self._changed:
                self._n_failed = 0
        elif not self._is_over.is_set():
            self._note(fault)
        return fault is None

    def _attempt(self, source: Path, relative: str) -> BaseException | None:
        """Try once; returns what was raised. One that hangs is left behind, and its file alone."""
        found: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def put() -> None:
            try:
                self._store.put(source, relative)
            except BaseException as error:
                found.put(error)
            else:
                found.put(None)

        end_s = self._clock() + self._limits.timeout_s
        threading.Thread(target=put, daemon=True, name="evenload-put").start()
        while not self._is_over.is_set() and self._clock() < end_s:
            with contextlib.suppress(queue.Empty):
                return found.get(timeout=_LOOK_S)
        self._hanging.add(relative)
        return TimeoutError(f"a file took longer than {self._limits.timeout_s:g} s")

    def _note(self, fault: BaseException) -> None:
        """A file failed for good; after some in a row the store is left alone for a while."""
        with self._changed:
            self._why = self._store.error(fault)
            self._n_failed += 1
            is_down = self._n_failed == _MOST_FAILED
            if is_down:
                self._rests_until = self._clock() + _REST_S
                self._n_failed = 0
        if is_down:
            self.tell(self._why)

    def _is_wanted(self, relative: str) -> bool:
        stages = self._to.stages
        if not relative.startswith("outputs/"):
            return relative in RECORDS
        return stages is None or relative.split("/")[1] in stages

    def _files(self) -> Iterator[str]:
        """Yield what the store should have: records and the stages' files. No link is followed."""
        for name in RECORDS:
            if (self.folder / name).is_file() and not (self.folder / name).is_symlink():
                yield name
        for at, folders, names in os.walk(self.folder / "outputs"):
            folders.sort()
            for name in sorted(names):
                path = Path(at, name)
                relative = path.relative_to(self.folder).as_posix()
                if not name.endswith(DRAFT) and self._is_wanted(relative) and not path.is_symlink():
                    yield relative


def _facts(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


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
        text = read_own(folder / RECORD, _WHAT, _MOST_RECORD_BYTES).decode("utf-8", "replace")
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
