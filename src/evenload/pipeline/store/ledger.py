"""Keep each item's result of each stage on disk, so that a run can go on from wherever it ended.

    ledger = Ledger.open(run_folder)
    ledger.find(stage, strand) -> LedgerEntry | None       what an earlier run has left, whatever its job was
    ledger.fault_of(entry)                                 "" if its files are there, whole and unchanged
    ledger.keep([...])                                     returns when the disk has them

    commits = GroupCommit(ledger, wake)                    while the run goes on: one wait for the disk serves
    commits.put(results)                                   all that came since; returns at once
    commits.taken()                                        those that the disk has by now, in their order

An entry says what made it: the stage's identity, and a digest of each thing that it read. Whether that is
still what would be computed is not decided here.
"""

import errno
import hashlib
import json
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from evenload._private_files import read_plain
from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.executor.journal.journal import BUSY_HINT, KEEP_HINT, OTHER_HINT, Journal
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.dispatch.strand import ItemFailure, StageTask, Strand

FOLDER = "journal"
_FINGERPRINT = {"results": "2"}  # each entry says what made it
_IDENTITY = "made-of:"
_EARLIER = "results of an earlier version, which do not say what made them"
_OTHER_HINT = "--fresh does everything again, -o FOLDER keeps both"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One result in the ledger: outputs and the files among them, or the error with which the item ended.

    identity  digest of what made it beside what it read
    reads     what the stage has read for it, with a digest of each; None if that cannot be compared
    files     output -> bytes, digest; once it is written also time of change and inode
    seconds   that it took, on ``device``
    """

    identity: str
    reads: Mapping[str, str] | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list] = field(default_factory=dict)
    error: ItemFailure | None = None
    seconds: float = 0.0
    device: str = ""

    def to_bytes(self) -> bytes:
        row = {"identity": self.identity, "reads": self.reads, "outputs": self.outputs, "files": self.files}
        row |= {"seconds": round(self.seconds, 6), "device": self.device}
        if self.error is not None:
            row["error"] = self.error.to_json() | {"traceback": self.error.traceback}
        return json_text(row, separators=(",", ":"), allow_nan=True).encode("utf-8", "backslashreplace")

    @classmethod
    def from_bytes(cls, payload: bytes) -> "LedgerEntry | None":
        """Read an entry; None for one that was taken back, or that another version has written."""
        try:
            row = json.loads(payload)
            error = row.pop("error", None)
            return cls(**row, error=ItemFailure(**error) if error else None)
        except (ValueError, TypeError, AttributeError):
            return None


class Ledger:
    """The finished results of a run, on disk. ``folder``: of the run."""

    def __init__(self, folder: Path, journal: Journal):
        self.folder = folder
        self._journal = journal
        self._known = frozenset(journal.keys())
        self._said: set[str] = set()

    @classmethod
    def open(cls, run_folder: Path, *, is_fresh: bool = False) -> "Ledger":
        """Open the ledger of a run folder, or begin one; with ``is_fresh`` without what it holds.

        Raises ConfigError if an earlier version made its results, if it is not known any more what did, or if
        another process works in the folder.
        """
        try:
            journal = Journal.open(
                run_folder / FOLDER, _FINGERPRINT, is_fresh=is_fresh, tell=lambda _: _EARLIER
            )
        except ConfigError as error:
            if error.hint == BUSY_HINT:
                who = error.message.partition(" is in use")[2]
                raise ConfigError(
                    f"a run is under way in {run_folder}{who}",
                    hint="wait for it to end, or name another folder with -o",
                ) from None
            if error.hint not in (OTHER_HINT, KEEP_HINT):
                raise
            said = f"{run_folder} holds {_EARLIER}" if error.hint == KEEP_HINT else error.message
            raise ConfigError(said, hint=_OTHER_HINT) from error
        return cls(run_folder, journal)

    @property
    def is_empty(self) -> bool:
        """Whether it had nothing when it was opened."""
        return not self._known

    def find(self, stage: str, strand: Strand) -> LedgerEntry | None:
        """Return the result that an earlier run has kept last for this stage and item. Errors count too.

        Only entries from before the ledger was opened are looked up, so that nobody waits for a writer.
        """
        key = key_of(stage, strand)
        payload = self._journal.done(key) if key in self._known else None
        return LedgerEntry.from_bytes(payload) if payload is not None else None

    def facts_of(self, identity: str) -> dict[str, str] | None:
        """Return what a stage's identity stood for; None if nobody knows."""
        key = _IDENTITY + identity
        payload = self._journal.done(key) if key in self._known else None
        try:
            return json.loads(payload) if payload is not None else None
        except ValueError:
            return None

    def fault_of(self, entry: LedgerEntry) -> str:
        """Say which file of an entry is not what was written; "" if all are.

        A file with the time of change and the inode that it had is not read again.
        """
        for name, (n_bytes, digest, *was) in entry.files.items():
            relative = str(entry.outputs.get(name))
            try:
                status = (self.folder / relative).stat()
                if was and [status.st_size, status.st_mtime_ns, status.st_ino] == [n_bytes, *was]:
                    continue
                content = read_plain(self.folder / relative, n_bytes)
            except OSError as error:
                is_longer = error.errno == errno.EFBIG
                said = "is not what was written" if is_longer else f"cannot be read ({error.strerror})"
                return f"{relative} {said}"
            if len(content) != n_bytes or digest_of(content) != digest:
                return f"{relative} is not what was written"
        return ""

    def keep(self, results: Iterable[tuple[str, Strand, LedgerEntry]]) -> None:
        """Write results; returns when they are on disk. Raises EvenloadError if the disk is full."""
        self._journal.record_many(
            [(key_of(stage, strand), self._timed(entry).to_bytes()) for stage, strand, entry in results]
        )

    def keep_facts(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Write what identities stand for, by their digests, so that a later run can say what has changed."""
        new = {
            _IDENTITY + digest: one for digest, one in facts.items() if _IDENTITY + digest not in self._known
        }
        if new:
            self._journal.record_many([(key, json_text(one).encode()) for key, one in new.items()])

    def forget(self, stages: Iterable[str]) -> None:
        """Take all results of these stages back, so that no later run finds them either."""
        begins = tuple(f"{stage}/" for stage in stages)
        self._journal.record_many(
            [(key, b"null") for key in self._known if begins and key.startswith(begins)]
        )

    def close(self) -> None:
        self._journal.close()

    def _timed(self, entry: LedgerEntry) -> LedgerEntry:
        """Note the times of the entry's files, which the workers have written."""
        files = {}
        for name, (n_bytes, digest, *_) in entry.files.items():
            try:
                status = (self.folder / str(entry.outputs[name])).stat()
            except OSError:
                return entry
            files[name] = [n_bytes, digest, status.st_mtime_ns, status.st_ino]
        return replace(entry, files=files) if files else entry


def key_of(stage: str, strand: Strand) -> str:
    """Return the key of a result: short, and valid whatever the item's id holds."""
    name = hashlib.blake2b(strand.item.id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{stage}/{strand.sample}/{name}"


class StageResult(NamedTuple):
    """A result of one stage for one item, on its way to disk."""

    task: StageTask
    stage: str
    strand: Strand
    kept: LedgerEntry


class GroupCommit:
    """A thread that writes results to disk together. ``pending``: results that are on their way, in the
    order in which they were put.

    ``wake`` is called from a thread when something was committed; ``taken`` raises what the disk says.
    ``share`` is called there with each result that the disk has.
    """

    def __init__(
        self, ledger: Ledger, wake: Callable[[], None], share: Callable[[LedgerEntry], None] | None = None
    ):
        self._ledger, self._wake, self._share = ledger, wake, share
        self._todo: queue.SimpleQueue[StageResult] = queue.SimpleQueue()
        self._there: queue.SimpleQueue[Sequence[StageResult]] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "evenload-commit")
        self._fault: Exception | None = None
        self.pending: deque[StageResult] = deque()

    def put(self, results: Sequence[StageResult]) -> None:
        self.pending += results
        for result in results:
            self._todo.put(result)
        if results:
            self._thread.submit(self._commit)

    def taken(self) -> list[StageResult]:
        """What is committed and was not taken yet."""
        results: list[StageResult] = []
        while not self._there.empty():
            results += self._there.get()
        for _ in results:
            self.pending.popleft()
        if self._fault is not None and not results:
            raise self._fault
        return results

    def close(self) -> None:
        """Returns when all that was put is committed, or cannot be."""
        self._thread.shutdown()

    def _commit(self) -> None:
        """Write all that waits by now, of later calls, too."""
        results = []
        while not self._todo.empty():
            results.append(self._todo.get())
        if self._fault is not None or not results:
            return
        try:
            self._ledger.keep((result.stage, result.strand, result.kept) for result in results)
            self._there.put(results)
        except Exception as error:
            self._fault = error
        self._wake()
        if self._share is not None and self._fault is None:
            for result in results:
                self._share(result.kept)
