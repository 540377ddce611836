"""Keep a cache of results below its limit: those that were not used for the longest time go first."""

import contextlib
import fcntl
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evenload._private_files import DRAFT, write_own

_GOAL = 0.9  # of the limit, so that the next result does not evict again
_SURE_S = 86_400.0  # how long a count of bytes is believed
_MOST_NOTED = 60  # characters
_ABANDONED_S = 3600.0  # a file that is in no result after that is of a run that was killed


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
