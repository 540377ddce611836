"""A worker's own folder for files that it has only for a while. What killed workers left is swept."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["ScratchFolder"]

_PREFIX = "evenload-site-"


class ScratchFolder:
    """A new folder, private to this user, in the machine's folder for temporary files.

    Its lock is held while the process lives: one whose lock is free is swept by whoever comes next.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(folder: Path) -> None:
    """Remove scratch folders of this user whose process has ended."""
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, in use, or swept by somebody else meanwhile
            if left.lstat().st_uid != os.getuid():
                continue
            lock = os.open(left / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
