"""The SHA-256 of a file, which a file that was not changed since is not read for again."""

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import BinaryIO

from evenload._private_files import plain_file
from evenload.native import store

__all__ = ["file_digest"]

SETTLED_S = 2.0  # file systems keep times in steps; a file changed within one step looks unchanged


def file_digest(path: Path) -> str:
    """The SHA-256 of what ``path`` holds, in hex.

    Whoever changes a file changes its time of change (``st_ctime``), which no program can set: a file of the
    same device, number, size and times as one that was read before has its digest. A file that was changed in
    the last two seconds is always read.
    Raises OSError, also for what is no plain file.
    """
    with plain_file(path) as file:
        before = os.fstat(file.fileno())
        is_settled = 0 < before.st_ctime < time.time() - SETTLED_S and before.st_ino != 0

        def read() -> str:
            file.seek(0)
            digest = _sha256(file)
            if _facts(os.fstat(file.fileno())) != _facts(before):
                raise OSError(errno.EBUSY, "it was changed while it was read", str(path))
            return digest

        if os.name != "posix" or not is_settled:
            return read()
        return store.remembered("digests", _facts(before), read)


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _facts(facts: os.stat_result) -> str:
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return repr([getattr(facts, name) for name in names])
