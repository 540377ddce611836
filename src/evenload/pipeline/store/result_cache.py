"""Results of stages that run folders and jobs share: a folder that any number of runs use at once.

    reads/<identity>/<digest>.json     which reads results of a stage have depended on
    results/ab/<key>.json              outputs of one result; the key is of all that made it
    results/ab/<key>.<output>.file     its files, hard links of those in run folders

Everything gets its name only when it is whole, and is checked when it is used. So a run may be killed at any
time, and what another one takes away meanwhile is a result that is not there. Nothing here is unpickled.
"""

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import DRAFT, own_folder, read_own, write_own
from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.reuse.read_digests import result_key
from evenload.pipeline.store.cache_eviction import evict
from evenload.pipeline.store.ledger import LedgerEntry

DEFAULT_LIMIT_BYTES = 50 << 30
_MOST_ENTRY_BYTES = 1 << 20
_MOST_READ_SETS = 16  # of one stage, that are looked for
_SETTLED_NS = 2_000_000_000
_WHAT = "results that are believed"


@dataclass(frozen=True, slots=True)
class SharedResult:
    """A result that is in the cache. ``files``: output -> bytes, digest, time of change, inode."""

    key: str
    identity: str
    reads: Mapping[str, str]
    outputs: dict[str, Any]
    files: dict[str, list]
    seconds: float
    device: str


class ResultCache:
    """A folder of results that runs share. ``faults``: why nothing more is put into it, one sentence each.

    Used by two threads of a run: one looks up, one stores.
    """

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES):
        self.faults: list[str] = []
        self._folder, self._limit_bytes = folder, limit_bytes
        self._n_new_bytes = 0
        self._read_sets: dict[str, tuple[int, list[tuple[str, ...]]]] = {}

    @classmethod
    def open(cls, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> "ResultCache":
        """Open the cache in ``folder``, or begin one. Raises ConfigError if others may write to it."""
        folder = folder.expanduser().resolve()
        try:
            for one in (folder, folder / "reads", folder / "results"):
                own_folder(one, _WHAT)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be a cache: {error.strerror}", hint="name a folder of your own with --cache"
            ) from error
        cache = cls(folder, limit_bytes)
        evict(folder, limit_bytes)
        return cache

    def find(
        self, identity: str, digests_of: Callable[[Sequence[str]], Mapping[str, str] | None]
    ) -> SharedResult | None:
        """Return the result of a stage for an item; None if nobody has it.

        digests_of  gives the digest of each read of this item, or None if one cannot be compared
        """
        for names in self._sets_of(identity):
            reads = digests_of(names)
            if reads is not None and (found := self._read(identity, reads)) is not None:
                return found
        return None

    def take(self, found: SharedResult, places: Mapping[str, str], run_folder: Path) -> LedgerEntry | None:
        """Link the files of a result into a run folder, each at its place; None if one is gone or damaged."""
        for name, facts in found.files.items():
            source = self._file(found.key, f".{name}.file")
            try:
                if not _is_whole(source, facts):
                    self.drop(found.key)
                    return None
                link_file(source, run_folder / places[name])
            except FileNotFoundError:
                return None
        with contextlib.suppress(OSError):
            os.utime(self._file(found.key, ".json"))
        files = {name: facts[:2] for name, facts in found.files.items()}
        outputs = {name: places.get(name, value) for name, value in found.outputs.items()}
        return LedgerEntry(found.identity, found.reads, outputs, files, None, found.seconds, found.device)

    def drop(self, key: str) -> None:
        """Take a result away."""
        with contextlib.suppress(OSError):
            self._file(key, ".json").unlink()

    def keep(self, entry: LedgerEntry, run_folder: Path, private: Sequence[str] = ()) -> None:
        """Store a result, if it can be of use elsewhere; an error of the disk only ends the storing.

        private  texts that no output may hold: paths of the run, which are another's elsewhere
        """
        if entry.error is not None or entry.reads is None or self.faults:
            return
        texts = [
            value
            for name, value in entry.outputs.items()
            if isinstance(value, str) and name not in entry.files
        ]
        if any(one in text for text in texts for one in private):
            return
        try:
            self._keep(entry, entry.reads, run_folder)
        except OSError as error:
            self.faults.append(f"the cache {self._folder} takes no more: {error.strerror or error}")

    def _keep(self, entry: LedgerEntry, reads: Mapping[str, str], run_folder: Path) -> None:
        key = result_key(entry.identity, reads)
        self._add_read_set(entry.identity, tuple(sorted(reads)))
        path, files = self._file(key, ".json"), {}
        path.parent.mkdir(mode=0o700, exist_ok=True)
        for name, (n_bytes, digest, *_) in entry.files.items():
            source, target = run_folder / str(entry.outputs[name]), self._file(key, f".{name}.file")
            link_file(source, target)
            status = target.stat()
            if status.st_size != n_bytes:
                return
            files[name] = [n_bytes, digest, status.st_mtime_ns, status.st_ino]
            self._n_new_bytes += n_bytes
        body = json_text(
            {"outputs": entry.outputs, "files": files, "seconds": entry.seconds, "device": entry.device},
            allow_nan=True,
        ).encode("utf-8", "backslashreplace")
        if len(body) < _MOST_ENTRY_BYTES - 100:
            write_own(path, digest_of(body).encode() + b"\n" + body)
            self._n_new_bytes += 4096
        if self._n_new_bytes > self._limit_bytes // 20:
            self._evict()

    def close(self) -> None:
        """Take away what is beyond the limit."""
        if self._n_new_bytes:
            self._evict()

    def _evict(self) -> None:
        if evict(self._folder, self._limit_bytes, self._n_new_bytes):
            self._n_new_bytes = 0

    def _file(self, key: str, suffix: str) -> Path:
        return self._folder / "results" / key[:2] / f"{key}{suffix}"

    def _read(self, identity: str, reads: Mapping[str, str]) -> SharedResult | None:
        key = result_key(identity, reads)
        content = _read_own(self._file(key, ".json"))
        check, _, body = content.partition(b"\n")
        if not content or check != digest_of(body).encode():
            return None
        try:
            return SharedResult(key, identity, reads, **json.loads(body))
        except (ValueError, TypeError):
            return None

    def _sets_of(self, identity: str) -> list[tuple[str, ...]]:
        """Return the names of reads that results of this stage have depended on."""
        folder = self._folder / "reads" / identity
        try:
            changed_ns = folder.stat().st_mtime_ns
        except OSError:
            return []
        known = self._read_sets.get(identity)
        if known is None or known[0] != changed_ns:
            found = []
            for path in sorted(folder.glob("*.json"))[:_MOST_READ_SETS]:
                with contextlib.suppress(ValueError):
                    names = json.loads(_read_own(path))
                    if isinstance(names, list) and all(isinstance(name, str) for name in names):
                        found.append(tuple(names))
            known = changed_ns, found
            if changed_ns < time.time_ns() - _SETTLED_NS:  # another run may add one at the same time
                self._read_sets[identity] = known
        return known[1]

    def _add_read_set(self, identity: str, names: tuple[str, ...]) -> None:
        known = self._read_sets.get(identity)
        if known is not None and names in known[1]:
            return
        content = json_text(names).encode("utf-8", "backslashreplace")
        path = self._folder / "reads" / identity / f"{digest_of(content)}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            write_own(path, content)


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name, in place of what has it; copy it where links cannot be made.

    Raises FileNotFoundError if there is no ``source``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{os.urandom(6).hex()}{DRAFT}")
    try:
        os.link(source, draft, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, draft)
    draft.replace(target)
    draft.unlink(missing_ok=True)  # a name of the same file is not replaced, and both stay


def _is_whole(path: Path, facts: Sequence[Any]) -> bool:
    """Return whether a file is what was stored; one with the same time and inode is not read again."""
    n_bytes, digest, *was = facts
    status = path.lstat()
    if [status.st_size, status.st_mtime_ns, status.st_ino] == [n_bytes, *was]:
        return True
    return status.st_size == n_bytes and digest_of(path.read_bytes()) == digest


def _read_own(path: Path) -> bytes:
    """Return what a small file of this user's holds; b"" if there is none that can be believed."""
    try:
        return read_own(path, _WHAT, _MOST_ENTRY_BYTES)
    except (OSError, ConfigError):
        return b""
