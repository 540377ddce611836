"""Files that others may have put where we look: what is opened is a plain file, and ours where that counts.

open_plain, plain_file,  anybody's plain file: nothing waits for a pipe or device that lies in its place
read_plain
open_own, read_own       this user's own, through no link; and unless it is only looked at, nobody else
                         may write it: what is unpickled, run or believed comes from nowhere else
own_folder, write_own    make a folder and files like that
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from evenload.errors import ConfigError

__all__ = [
    "open_own",
    "open_plain",
    "own_folder",
    "plain_file",
    "read_own",
    "read_plain",
    "refuse_unless_own",
    "write_own",
]

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: Path) -> int:
    """Open a plain file for reading; returns its descriptor.

    Raises OSError, also for what is no plain file: it is neither waited for nor read.
    """
    fd = os.open(path, _READ)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, f"it is {_kind(facts)}, no plain file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def plain_file(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raises OSError as ``open_plain``."""
    return open(open_plain(path), "rb")


def read_plain(path: Path, most_bytes: int) -> bytes:
    """The content of a plain file. Raises OSError as ``open_plain``, and for more than ``most_bytes``."""
    return _content(open_plain(path), path, most_bytes)


def read_own(path: Path, what: str, most_bytes: int, *, is_trusted: bool = True) -> bytes:
    """The content of a file. Raises OSError and ConfigError as ``open_own``, OSError if it is too long."""
    return _content(open_own(path, what, is_trusted=is_trusted), path, most_bytes)


def write_own(path: Path, content: bytes) -> None:
    """Write a file that only this user may read or write, whole or not at all; replaces what is there.

    Raises OSError. Nothing that lies in its place is opened or followed.
    """
    import tempfile

    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def own_folder(path: Path, what: str) -> Path:
    """Make the folder ``path`` for this user alone, if there is none; returns it.

    Raises OSError, and ConfigError as ``refuse_unless_own`` for one that is there.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_unless_own(path, path.lstat(), what)
    return path


def refuse_unless_own(path: Path, facts: os.stat_result, what: str, *, is_trusted: bool = True) -> None:
    """Raise ConfigError unless ``path`` is a folder or plain file of this user's that no other may write.

    facts  of the open file, or of ``path.lstat()``: a link is refused
    what   it holds, in words: "results that are unpickled"
    is_trusted  False for what is only shown: others may write it, as they may files of a shared group
    """
    if os.name != "posix":
        return
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        why = _kind(facts)
    elif facts.st_uid != os.geteuid():
        why = f"another user's (number {facts.st_uid})"
    elif is_trusted and facts.st_mode & 0o022:
        why = f"open to others for writing (mode {stat.S_IMODE(facts.st_mode):04o})"
    else:
        return
    trusts = f"chmod go-w {path} if you trust what is in it, or " if why.startswith("open") else ""
    raise ConfigError(f"{path} holds {what}, and is {why}", hint=f"{trusts}name a folder of your own")


def open_own(path: Path, what: str, *, is_trusted: bool = True) -> int:
    """Open a plain file for reading if nobody else can have written it; follows no link, waits for no pipe.

    Returns its descriptor. Raises OSError, or ConfigError as ``refuse_unless_own``.
    """
    try:
        fd = os.open(path, _READ | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        with contextlib.suppress(OSError):  # a link or a socket cannot be opened; we can say that it is one
            refuse_unless_own(path, path.lstat(), what, is_trusted=is_trusted)
        raise
    try:
        facts = os.fstat(fd)
        refuse_unless_own(path, facts, what, is_trusted=is_trusted)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EISDIR, f"it is {_kind(facts)}, no plain file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _content(fd: int, path: Path, most_bytes: int) -> bytes:
    with open(fd, "rb") as file:
        is_long = os.fstat(fd).st_size > most_bytes
        content = b"" if is_long else file.read(most_bytes + 1)  # it may grow meanwhile
    if is_long or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content


def _kind(facts: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(facts.st_mode), "no file")
