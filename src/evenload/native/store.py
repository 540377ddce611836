"""The private cache of object files: machine code is trusted only where nobody else can write.

A directory and files of this user, made with modes 0700 and 0600. What others may write to is refused, never
repaired behind the user's back.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from evenload._private_files import own_folder, read_own, write_own
from evenload._terminal import log_of
from evenload._user_folders import user_cache
from evenload.errors import ConfigError

T = TypeVar("T")
WHAT = "machine code"
MOST_BYTES = 1 << 28
MOST_REMEMBERED, MOST_REMEMBERED_BYTES = 1000, 1 << 16
_MAGIC = b"evenload object 1\n"
log = log_of(__name__)


def cache_directory() -> Path:
    """``EVENLOAD_KERNEL_CACHE``, else ``$XDG_CACHE_HOME/evenload/kernels``, else
    ``~/.cache/evenload/kernels``."""
    chosen = os.environ.get("EVENLOAD_KERNEL_CACHE")
    return Path(chosen) if chosen else user_cache() / "kernels"


def kept(name: str, key: str, compile_it: Callable[[], bytes]) -> tuple[bytes, bool]:
    """(code, was it there): the object ``name`` of ``key`` from the cache, else ``compile_it()``, then kept.

    Raises ConfigError if the cache is not private to this user.
    """

    def find(path: Path) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return unsealed(key, read_own(path, WHAT, MOST_BYTES))

    path = place_of(f"{name}-{key[:32]}.o", WHAT)
    return kept_at(path, find, compile_it, lambda path, code: write_own(path, sealed(key, code)))


def place_of(name: str, what: str) -> Path | None:
    """The path of an entry of the cache; None where there is no place for one, which is logged.

    Raises ConfigError if others may write there: then nothing in it is trusted. ``what`` it holds, in words.
    """
    path = cache_directory() / name
    try:
        own_folder(cache_directory(), what)
        own_folder(path.parent, what)
    except OSError as error:
        log.warning("there is no cache directory to keep %s in, now or for later: %s", what, error)
        return None
    return path


def kept_at(
    path: Path | None,
    find: Callable[[Path], T | None],
    make: Callable[[], T],
    keep: Callable[[Path, T], None],
) -> tuple[T, bool]:
    """(entry, was it there): what ``find(path)`` gives, else ``make()``, then kept by ``keep(path, made)``.

    Of several processes that miss the same entry one makes it, and the others wait for it. A disk that is
    full costs the next process the making, and this one nothing.
    """
    if path is None:
        return make(), False
    found = find(path)
    if found is not None:
        return found, True
    with _alone(path):
        found = find(path)  # another process may have been first
        if found is not None:
            return found, True
        made = make()
        try:
            keep(path, made)
        except OSError as error:
            log.warning("%s cannot be kept for the next process: %s", path.name, error)
    return made, False


def remembered(kind: str, facts: str, make: Callable[[], str]) -> str:
    """``make()``, a short text that only ``facts`` decide, or what it was when they were the same before.

    Kept in a folder ``kind`` of the cache; where that is not possible, or others may write there, it is made
    each time.
    """
    try:
        folder = own_folder(own_folder(cache_directory(), WHAT) / kind, WHAT)
        path = folder / hashlib.sha256(facts.encode()).hexdigest()[:40]
        with contextlib.suppress(FileNotFoundError):
            content = unsealed(facts, read_own(path, WHAT, MOST_REMEMBERED_BYTES))
            if content is not None:
                return content.decode()
        made = make()
        write_own(path, sealed(facts, made.encode()))
        if len(os.listdir(folder)) > MOST_REMEMBERED:
            remove_oldest(folder.glob("*"), MOST_REMEMBERED // 2, lambda facts: 1)
        return made
    except (OSError, ConfigError):
        return make()


def remove_oldest(files: Iterable[Path], most: int, cost_of: Callable[[os.stat_result], int]) -> None:
    """Remove those files that were not used for longest until the rest cost ``most``, or less."""
    entries = []
    for path in files:
        with contextlib.suppress(OSError):  # another process removed it
            facts = path.lstat()
            entries.append((facts.st_mtime_ns, cost_of(facts), path))
    total = sum(cost for _, cost, _ in entries)
    for _, cost, path in sorted(entries):
        if total <= most:
            return
        path.unlink(missing_ok=True)  # a process that has it mapped keeps it
        total -= cost


def sealed(key: str, code: bytes) -> bytes:
    """What a file holds: a head that tells whether the code is whole and of this ``key``, then the code."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest() + code


def unsealed(key: str, content: bytes) -> bytes | None:
    """The code in ``content``, or None if it is damaged or of another key."""
    code = content[len(_MAGIC) + 32 :]
    return code if content == sealed(key, code) else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of one entry; without locks of files (Windows) two processes may make the same."""
    try:
        import fcntl

        handle = os.open(
            path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):  # who comes later makes a new one, and finds the entry first
            os.unlink(path.with_suffix(".lock"))
        os.close(handle)
