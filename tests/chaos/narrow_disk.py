"""A disk that is full, for the journal of one phase: really so, by a small file system or a limit."""

import ctypes
import errno
import os
import resource
import shutil
from pathlib import Path

from chaos.evidence import note

CLONE_NEWNS = 0x00020000
MS_PRIVATE_RECURSIVE = (1 << 18) | 16384
SIZE_BYTES = 640 * 1024
LIMIT_BYTES = 300_000


class NarrowDisk:
    """A context in which the journal's folder is too small; when it ends, there is room.

    how   "full": a tmpfs of its own, where this process may mount one; else, and for "limit", a limit on
          the size of files
    """

    def __init__(self, how: str, folder: Path, number: int):
        self.folder = folder / f"journal-{number}"
        self.folder.mkdir(exist_ok=True)
        self.kept, self.copying = (self.folder.with_suffix(end) for end in (".kept", ".copying"))
        self.number, self.how = number, how
        self.usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def __enter__(self) -> None:
        shutil.rmtree(self.copying, ignore_errors=True)
        if self.kept.exists():  # the driver was killed while it moved the journal
            self.kept.rename(self.folder / "journal")
        if self.how == "full" and not any(self.folder.iterdir()) and mounted(self.folder):
            (self.folder / "filler").write_bytes(bytes(SIZE_BYTES - 400_000))
            return
        self.how = "limit"
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, self.usual[1]))

    def __exit__(self, *_: object) -> None:
        """Say whether it was full; then move what is there to where there is room, or lift the limit."""
        if self.how == "full":
            note("fault", self.number, -1, f"disk {self.how}") if self.is_full() else None
            (self.folder / "filler").unlink()
            if (self.folder / "journal").exists():
                shutil.copytree(self.folder / "journal", self.copying)
                self.copying.rename(self.kept)
            libc().umount2(os.fsencode(self.folder), 2)
            if self.kept.exists():
                self.kept.rename(self.folder / "journal")
            return
        if any(path.stat().st_size >= LIMIT_BYTES - 80_000 for path in self.folder.rglob("segment*")):
            note("fault", self.number, -1, "disk limit")
        resource.setrlimit(resource.RLIMIT_FSIZE, self.usual)

    def is_full(self) -> bool:
        try:
            (self.folder / "probe").write_bytes(bytes(80_000))
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            (self.folder / "probe").unlink(missing_ok=True)
        return False


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def own_mounts() -> None:
    """Let what this process mounts be seen by itself and its children only, as far as it may."""
    libc().unshare(CLONE_NEWNS)
    libc().mount(b"none", b"/", None, MS_PRIVATE_RECURSIVE, None)


def mounted(folder: Path) -> bool:
    """Mount a small file system there."""
    is_own = os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt")
    size = f"size={SIZE_BYTES}".encode()
    return is_own and not libc().mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, size)
