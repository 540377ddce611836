"""Files that only this user can have written: what is unpickled, run or believed comes from nowhere else."""

import os
import stat
from pathlib import Path

from evenload.errors import ConfigError

__all__ = ["open_own", "refuse_unless_own"]


def refuse_unless_own(path: Path, facts: os.stat_result, what: str) -> None:
    """Raise ConfigError unless ``path`` is a folder or plain file of this user's that no other may write.

    facts  of the open file, or of ``path.lstat()``: a link is refused
    what   it holds, in words: "results that are unpickled"
    """
    if os.name != "posix":
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        why = kinds.get(stat.S_IFMT(facts.st_mode), "a device")
    elif facts.st_uid != os.geteuid():
        why = f"another user's (number {facts.st_uid})"
    elif facts.st_mode & 0o022:
        why = f"open to others for writing (mode {stat.S_IMODE(facts.st_mode):04o})"
    else:
        return
    raise ConfigError(
        f"{path} holds {what}, and is {why}",
        hint=f"chmod go-w {path} if you trust what is in it, or name a folder of your own",
    )


def open_own(path: Path, what: str) -> int:
    """Open a file for reading if nobody else can have written it; follows no link and waits for no pipe.

    Returns its descriptor. Raises OSError, or ConfigError as ``refuse_unless_own``.
    """
    fd = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    try:
        refuse_unless_own(path, os.fstat(fd), what)
    except BaseException:
        os.close(fd)
        raise
    return fd
