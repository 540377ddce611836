"""Results of stages that run folders and jobs share: a folder that any number of runs use at once.

    reads/<identity>/<digest>.json     which reads results of a stage have depended on
    results/ab/<key>.json              outputs of one result; the key is of all that made it
    results/ab/<key>.<output>.file     its files, hard links of those in run folders
    size                               bytes of all results, and when they were counted

Below its limit it is kept by taking away what was not used for the longest time.

Everything gets its name only when it is whole, and is checked when it is used. So a run may be killed at any
time, and what another one takes away meanwhile is a result that is not there. Nothing here is unpickled.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from evenload._private_files import DRAFT, own_folder, read_own, write_own
from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.reuse.read_digests import result_key
from evenload.pipeline.store.ledger import LedgerEntry

DEFAULT_LIMIT_BYTES = 50 << 30
_MOST_ENTRY_BYTES = 1 << 20
_MOST_READ_SETS = 16  # of one stage, that are looked for
_SETTLED_NS = 2_000_000_000
_WHAT = "results that are believed"
_GOAL = 0.9  # of the limit, so that the next result does not evict again
_SURE_S = 86_400.0  # how long a count of bytes is believed
_MOST_NOTED = 60  # characters
_ABANDONED_S = 3600.0  # a file that is in no result after that is of a run that was killed


class ResultCache:
    """A folder of results that runs share. ``faults``: why nothing more is put into it, one sentence each.

    Used by two threads of a run: one looks up, one stores.
    """

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES):
        """Open the cache in ``folder``, or begin one. Raises ConfigError if others may write to it."""
        self.faults: list[str] = []
        self._folder, self._limit_bytes = folder.expanduser().resolve(), limit_bytes
        self._n_new_bytes = 0
        self._read_sets: dict[str, tuple[int, list[tuple[str, ...]]]] = {}
        try:
            for one in (self._folder, self._folder / "reads", self._folder / "results"):
                own_folder(one, _WHAT)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be a cache: {error.strerror}", hint="name a folder of your own with --cache"
            ) from error
        evict(self._folder, limit_bytes)

    def find(
        self, identity: str, digests_of: Callable[[Sequence[str]], Mapping[str, str] | None]
    ) -> LedgerEntry | None:
        """Return the result of a stage for an item; None if nobody has it..

        digests_of  gives the digest of each read of this item, or None if one cannot be compared
        """
        for names in self._sets_of(identity):
            reads = digests_of(names)
            if reads is not None and (found := self._read(identity, reads)) is not None:
                return found
        return None

    def take(self, found: LedgerEntry, places: Mapping[str, str], run_folder: Path) -> LedgerEntry | None:
        """Link the files of a result into a run folder, each at its place; None if one is gone or damaged."""
        key = _key_of(found)
        for name, facts in found.files.items():
            source = self._file(key, f".{name}.file")
            try:
                if not _is_whole(source, facts):
                    self.drop(found)
                    return None
                link_file(source, run_folder / places[name])
            except FileNotFoundError:
                return None
        with contextlib.suppress(OSError):
            os.utime(self._file(key, ".json"))
        files = {name: facts[:2] for name, facts in found.files.items()}
        outputs = {name: places.get(name, value) for name, value in found.outputs.items()}
        return replace(found, outputs=outputs, files=files)

    def drop(self, found: LedgerEntry) -> None:
        """Take a result away."""
        with contextlib.suppress(OSError):
            self._file(_key_of(found), ".json").unlink()

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
            self._keep(entry, run_folder)
        except OSError as error:
            self.faults.append(f"the cache {self._folder} takes no more: {error.strerror or error}")

    def _keep(self, entry: LedgerEntry, run_folder: Path) -> None:
        key = _key_of(entry)
        self._add_read_set(entry.identity, tuple(sorted(entry.reads or ())))
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

    def _read(self, identity: str, reads: Mapping[str, str]) -> LedgerEntry | None:
        content = _read_own(self._file(result_key(identity, reads), ".json"))
        check, _, body = content.partition(b"\n")
        if not content or check != digest_of(body).encode():
            return None
        try:
            return LedgerEntry(identity, reads, **json.loads(body))
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


def _key_of(entry: LedgerEntry) -> str:
    assert entry.reads is not None
    return result_key(entry.identity, entry.reads)


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


class CachedSize(NamedTuple):
    """The size of one result: ``used_s``, when it was last used; None if its entry was never written."""

    key: str
    n_bytes: int
    used_s: float | None
    changed_s: float


def to_evict(sizes: Sequence[CachedSize], limit_bytes: int, now_s: float) -> list[str]:
    """Return the keys of results that are to go: abandoned, or the least recently used if it is full."""
    gone = [one.key for one in sizes if one.used_s is None and one.changed_s < now_s - _ABANDONED_S]
    whole = sorted((one for one in sizes if one.used_s is not None), key=lambda one: one.used_s or 0.0)
    n_bytes = sum(one.n_bytes for one in whole)
    if n_bytes > limit_bytes:
        for one in whole:
            if n_bytes <= _GOAL * limit_bytes:
                break
            gone.append(one.key)
            n_bytes -= one.n_bytes
    return gone


def evict(folder: Path, limit_bytes: int, n_new_bytes: int = 0) -> bool:
    """Bring the cache below its limit, unless another run is just at it; returns whether it did look.

    n_new_bytes  put into it since the caller looked last
    All files are looked at only if what was noted the last time, and what came since, may be too much; and
    once a day, as a run that is killed notes nothing. Raises no OSError.
    """
    with contextlib.suppress(OSError), _locked(folder / "lock"):
        note, now_s = folder / "size", time.time()
        n_bytes, looked_s = _noted(note)
        n_bytes += n_new_bytes
        if n_bytes > limit_bytes or not 0 <= now_s - looked_s < _SURE_S:
            _sweep(folder, now_s)
            n_bytes, looked_s = _evict(folder / "results", limit_bytes, now_s), now_s
        elif not n_new_bytes:
            return True
        write_own(note, f"{n_bytes} {int(looked_s)}".encode())  # rounded down: not in the future
        return True
    return False


def _sweep(folder: Path, now_s: float) -> None:
    """Take away what runs that were killed had begun to write."""
    for draft in (*folder.glob(f"*{DRAFT}"), *folder.glob(f"*/*/*{DRAFT}")):
        with contextlib.suppress(OSError):
            if draft.lstat().st_ctime < now_s - _ABANDONED_S:
                draft.unlink(missing_ok=True)


def _evict(folder: Path, limit_bytes: int, now_s: float) -> int:
    """Take away what is too much; returns the bytes that are left."""
    sizes, files = _sizes(folder)
    gone = set(to_evict(sizes, limit_bytes, now_s))
    for key in gone:
        for path in sorted(files[key], key=lambda path: path.suffix != ".json"):  # its entry first
            path.unlink(missing_ok=True)
    return sum(one.n_bytes for one in sizes if one.key not in gone)


def _noted(path: Path) -> tuple[int, float]:
    """Return the bytes of the cache, and when they were counted; long ago if nobody has."""
    try:
        n_bytes, looked_s = map(int, path.read_text()[:_MOST_NOTED].split())
    except (OSError, ValueError):
        return 0, -math.inf
    return n_bytes, looked_s


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Enclose what one run does at a time. Raises BlockingIOError while another does it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _sizes(folder: Path) -> tuple[list[CachedSize], dict[str, list[Path]]]:
    """Return the size of each result, and its files."""
    found: defaultdict[str, dict[Path, os.stat_result]] = defaultdict(dict)
    for part in folder.iterdir():
        for one in os.scandir(part):
            if not one.name.endswith(DRAFT):  # of a run that is at it
                with contextlib.suppress(OSError):
                    found[one.name.partition(".")[0]][Path(one.path)] = one.stat(follow_symlinks=False)
    sizes = []
    for key, files in found.items():
        n_bytes = sum(max(one.st_size, 512 * one.st_blocks) for one in files.values())
        used_s = next((one.st_mtime for path, one in files.items() if path.name == f"{key}.json"), None)
        sizes.append(CachedSize(key, n_bytes, used_s, max(one.st_ctime for one in files.values())))
    return sizes, {key: list(files) for key, files in found.items()}
