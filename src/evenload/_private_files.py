"""Files that others may have put where we look: what is opened is a plain file, and ours where that counts.

open_plain, plain_file,  anybody's plain file: nothing waits for a pipe or device that lies in its place
read_plain
open_named, read_named,  what the command line names: also a pipe that the shell made for it, ``<(...)``
text_named, write_named
read_unpacked            a plain file that may be gzip, with a limit on what comes out
open_own, read_own       this user's own, through no link; and unless it is only looked at, nobody else
                         may write it: what is unpickled, run or believed comes from nowhere else
own_folder, write_own    make a folder and files like that
whole_file               a file that appears whole or not at all; ``sync``: once the disk has it
OwnFolder                a folder like that, opened once: its files are reached through it, not by their paths
"""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from evenload.errors import ConfigError, quoted, reason_of

DRAFT = ".tmp"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/self/fd/")
_MOST_EXPANSION = 200
_FREE_BYTES = 64 << 20  # expansion does not count before
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
    return _content(plain_file(path), path, most_bytes)


def open_named(path: str | os.PathLike) -> BinaryIO:
    """Open what the command line names: a plain file, or a pipe that this program was started with.

    ``<(...)`` of a shell and /dev/stdin are such pipes; one with a name of its own might have no writer, and
    is not waited for. Raises OSError as ``open_plain``.
    """
    if not str(path).startswith(_HANDED_OVER):
        return plain_file(Path(path))
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    facts = os.fstat(fd)
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISFIFO(facts.st_mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, f"it is {_kind(facts)}, neither a plain file nor a pipe", str(path))
    return open(fd, "rb")


def read_named(path: str | os.PathLike, most_bytes: int) -> bytes:
    """The content of what the command line names. Raises OSError as ``open_named``, and as ``read_plain``."""
    return _content(open_named(path), path, most_bytes)


def text_named(path: str | os.PathLike, most_bytes: int, hint: str) -> str:
    """The text, in UTF-8, of what the command line names. Raises ConfigError with ``hint``."""
    try:
        return read_named(path, most_bytes).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {quoted(str(path), 200)}: {reason_of(error)}", hint=hint) from error


def write_named(path: Path, text: str, option: str = "-o") -> None:
    """Write a text to what the command line names: a file appears whole or not at all.

    A device, and a pipe that somebody reads, are written into and stay what they are: ``>(...)`` of a shell,
    /dev/stdout. Raises ConfigError if it cannot be written; ``option`` is what names another place.
    """
    try:
        if str(path).startswith(_HANDED_OVER) or is_stream(path):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0))
            os.set_blocking(fd, True)  # it was opened so as not to wait for a reader
            target: Any = open(fd, "wb")  # noqa: SIM115
        else:
            target = whole_file(path, 0o644, is_durable=False)
        with target as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write {quoted(str(path), 200)}: {error.strerror}",
            hint=f"choose another place with {option}",
        ) from error


def is_stream(path: str | os.PathLike) -> bool:
    """Whether ``path``, or what it links to, is neither a regular file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def lines_within(file: BinaryIO, name: str, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of the file ``name`` with their ends. Raises OSError for a longer one."""
    number = 0
    while line := file.readline(most_bytes + 1):
        number += 1
        if len(line) > most_bytes:
            raise OSError(errno.EOVERFLOW, f"line {number} has more than {most_bytes:,} bytes", name)
        yield line


def read_unpacked(path: Path, most_bytes: int) -> bytes:
    """The content of a plain file, unpacked if it is gzip. Raises OSError as ``read_plain``.

    Text compresses ten- to thirtyfold: what unpacks to 200 times its size is not read to its end.
    """
    import gzip
    import zlib

    with plain_file(path) as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not is_packed:
            return _content(raw, path, most_bytes)
        most = min(most_bytes, max(_FREE_BYTES, _MOST_EXPANSION * os.fstat(raw.fileno()).st_size))
        try:
            unpacked: Any = gzip.GzipFile(fileobj=raw)
            return _content(unpacked, path, most)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EINVAL, f"it is a damaged gzip file: {error}", str(path)) from error


def read_own(path: Path, what: str, most_bytes: int, *, is_trusted: bool = True) -> bytes:
    """The content of a file. Raises OSError and ConfigError as ``open_own``, OSError if it is too long."""
    return _content(open(open_own(path, what, is_trusted=is_trusted), "rb"), path, most_bytes)


def write_own(path: Path, content: bytes) -> None:
    """Write a file that only this user may read or write, whole or not at all; replaces what is there.

    Raises OSError. Nothing that lies in its place is opened or followed.
    """
    with whole_file(path, is_durable=False) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o600, *, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file, which takes the place of ``path`` when the block ends; if it raises, nothing does.

    mode        who may use it, if the umask lets them: 0o600 this user alone, 0o644 all may read it
    is_durable  the disk has it first, so that not even a power cut leaves a part of it
    Raises OSError. Nothing that lies in its place is opened or followed. What a kill leaves of it is a hidden
    file whose name ends in ``DRAFT``.
    """
    draft = path.with_name(f".{path.name[:40]}.{os.urandom(6).hex()}{DRAFT}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if is_durable:
                sync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def sync(fd: int) -> None:
    """Return when the disk has what was written."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # there fsync leaves it in the drive's cache
    else:
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Return when the disk has the folder's list of names."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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


def open_own(path: Path, what: str, *, is_trusted: bool = True, at: int | None = None) -> int:
    """Open a plain file for reading if nobody else can have written it; follows no link, waits for no pipe.

    at  descriptor of the folder that it is in, where that is open
    Returns its descriptor. Raises OSError, or ConfigError as ``refuse_unless_own``.
    """
    fd = _open_own(path, what, is_trusted, at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EISDIR, "it is a folder, no plain file", str(path))
    return fd


def _open_own(path: Path, what: str, is_trusted: bool, at: int | None = None) -> int:
    """Open a file or folder of this user's, as ``open_own`` does."""
    name = path if at is None else path.name
    try:
        fd = os.open(name, _READ | getattr(os, "O_NOFOLLOW", 0), dir_fd=at)
    except OSError:
        with contextlib.suppress(OSError):  # a link or a socket cannot be opened; we can say that it is one
            facts = os.stat(name, dir_fd=at, follow_symlinks=False)
            refuse_unless_own(path, facts, what, is_trusted=is_trusted)
        raise
    try:
        refuse_unless_own(path, os.fstat(fd), what, is_trusted=is_trusted)
    except BaseException:
        os.close(fd)
        raise
    return fd


class OwnFolder:
    """A folder of this user's that no other may write, held open: whoever has one need not check it again.

    Its files are reached by name through the open folder, and through no link: nothing is done to what takes
    the place of its path meanwhile. ``path`` is for messages.

    what  it holds, in words, as for ``refuse_unless_own``
    Raises OSError, also for what is no folder, or ConfigError as ``refuse_unless_own``.
    """

    def __init__(self, path: Path, what: str):
        self.path, self._what = path, what
        self._fd = _open_own(path, what, True)
        if not stat.S_ISDIR(os.fstat(self._fd).st_mode):
            self.close()
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path))

    def names(self) -> list[str]:
        """Return the names of all that is in it."""
        return os.listdir(self._fd)

    def facts(self, name: str) -> os.stat_result:
        """Return what the disk says of the file, or of the link that lies in its place."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def check_files(self) -> None:
        """Raise ConfigError as ``refuse_unless_own`` if others may have written one of its files."""
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # whoever works in it renames drafts
                refuse_unless_own(self.path / name, self.facts(name), self._what)

    def open(self, name: str, flags: int) -> int:
        """Open a file; returns its descriptor. One that this makes is for this user alone."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return the content of a file. Raises as ``read_own``."""
        path = self.path / name
        return _content(open(open_own(path, self._what, at=self._fd), "rb"), path, most_bytes)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Return when the disk has the list of its names."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "OwnFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _content(file: BinaryIO, path: str | os.PathLike, most_bytes: int) -> bytes:
    with file:
        is_long = os.fstat(file.fileno()).st_size > most_bytes  # of a packed file, what lies on the disk
        content = b"" if is_long else file.read(most_bytes + 1)  # it may grow meanwhile
    if is_long or len(content) > most_bytes:
        raise OSError(errno.EOVERFLOW, f"it has more than {most_bytes:,} bytes", str(path))
    return content


def _kind(facts: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(facts.st_mode), "no file")
