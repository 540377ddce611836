"""The private cache of object files: machine code is trusted only where nobody else can write.

A directory and files of this user, made with modes 0700 and 0600. What others may write to is refused, never
repaired behind the user's back.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from evenload._private_files import own_folder, read_own, whole_file, write_own
from evenload._terminal import log_of
from evenload._user_folders import user_folder
from evenload.errors import ConfigError

WHAT = "machine code"
MOST_BYTES = 1 << 28
MOST_REMEMBERED, MOST_REMEMBERED_BYTES = 1000, 1 << 16
_MAGIC = b"evenload object 1\n"
log = log_of(__name__)


def cache_directory() -> Path:
    """``EVENLOAD_KERNEL_CACHE``, else ``$XDG_CACHE_HOME/evenload/kernels``, else
    ``~/.cache/evenload/kernels``."""
    chosen = os.environ.get("EVENLOAD_KERNEL_CACHE")
    if chosen:
        return Path(chosen)
    return user_folder("XDG_CACHE_HOME", ".cache") / "kernels"


def kept(name: str, key: str, compile_it: Callable[[], bytes]) -> tuple[bytes, bool]:
    """(code, was it there): the object ``name`` of ``key`` from the cache, else ``compile_it()``, then kept.

    Of several processes that miss the same object one compiles, and the others wait for it.
    Raises ConfigError if the cache is not private to this user.
    """
    folder = _private_directory()
    if folder is None:
        return compile_it(), False
    path = folder / f"{name}-{key[:32]}.o"
    code = _read_object(path, key)
    if code is not None:
        return code, True
    with alone(path):
        code = _read_object(path, key)  # another process may have been first
        if code is not None:
            return code, True
        code = compile_it()
        _write_object(path, key, code)
    return code, False


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
        _remove_oldest(folder)
        return made
    except (OSError, ConfigError):
        return make()


def _remove_oldest(folder: Path) -> None:
    """Keep what is remembered of one kind to a thousand files."""
    names = os.listdir(folder)
    if len(names) > MOST_REMEMBERED:
        oldest = sorted(names, key=lambda name: (folder / name).lstat().st_mtime_ns)
        for name in oldest[: len(names) - MOST_REMEMBERED // 2]:
            with contextlib.suppress(FileNotFoundError):  # another process did the same
                os.unlink(folder / name)


def sealed(key: str, code: bytes) -> bytes:
    """What a file holds: a head that tells whether the code is whole and of this ``key``, then the code."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest() + code


def unsealed(key: str, content: bytes) -> bytes | None:
    """The code in ``content``, or None if it is damaged or of another key."""
    code = content[len(_MAGIC) + 32 :]
    return code if content == sealed(key, code) else None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of one object; without locks of files (Windows) two processes may compile the same."""
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
        with contextlib.suppress(OSError):  # who comes later makes a new one, and finds the object first
            os.unlink(path.with_suffix(".lock"))
        os.close(handle)


def _private_directory() -> Path | None:
    """The cache directory, or None where none can be made (a home that cannot be written): kernels are
    compiled each time then. Raises ConfigError if there is one and it is open to others."""
    path = cache_directory()
    try:
        return own_folder(path, WHAT)
    except OSError as error:
        log.warning("kernels are compiled anew each time: no cache directory (%s)", error)
        return None


def _read_object(path: Path, key: str) -> bytes | None:
    """The code, or None if there is none, or a full disk or a crash cut it short.

    Raises ConfigError if others can have written it.
    """
    try:
        content = read_own(path, WHAT, MOST_BYTES)
    except FileNotFoundError:
        return None
    return unsealed(key, content)


def _write_object(path: Path, key: str, code: bytes) -> None:
    """Whole or not at all. A disk that is full costs the next process a compilation, and this one nothing."""
    try:
        with whole_file(path) as file:
            file.write(sealed(key, code))
    except OSError as error:
        log.warning("kernels are compiled anew next time: %s", error)
