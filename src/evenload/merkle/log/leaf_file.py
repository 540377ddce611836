"""The file of a log's leaves: only ever appended to, and on disk before a leaf is acknowledged.

    evenload-log-1 SALT ORIGIN\\n | frame | frame | ...
    frame: magic | number of leaves | bytes of them | digest of the frame before | digest of this one |
           lengths (uint16, big-endian) | leaves

A frame is good only behind the very frames it was written behind. What a crash can leave is a part of one
frame at the end, of which nobody was told: it is cut off. Damage in front of a good frame is none of that,
and refused, and so is damage of the first line: the first frame says which one it was written behind. Salt
and magic are this file's own, so that no leaf can be taken for a frame.
"""

import fcntl
import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

import numpy as np

from evenload._private_files import open_plain, sync, sync_folder
from evenload._terminal import log_of
from evenload.errors import ConfigError, EvenloadError, FormatError, printable, quoted
from evenload.merkle.log.keys import is_key_name
from evenload.merkle.log.tiles import MOST_ENTRY_BYTES

FORMAT = b"evenload-log-1"
MOST_HEAD_BYTES = 8192
HEADER = Struct("<8sIQ32s32s")
MOST_FRAME_BYTES = 16 << 20  # leaves of one append that have more go into several frames
MOST_FRAME_LEAVES = 1 << 20
log = log_of(__name__)


class LeafFile:
    """The leaves of a log, in the order in which they were appended. Call ``load`` first.

    origin  the log's name
    n_cut   bytes at the end that a crash left, which belong to no leaf that was acknowledged
    """

    def __init__(self, path: Path, fd: int, *, is_writable: bool):
        self.path, self._fd, self._is_writable = path, fd, is_writable
        self.n_cut = 0
        head, end, _ = os.pread(fd, MOST_HEAD_BYTES, 0).partition(b"\n")
        parts = head.split(b" ", 2)
        self.origin = parts[-1].decode("utf-8", "replace")
        if not end or len(parts) != 3 or parts[0] != FORMAT or not is_key_name(self.origin):
            raise FormatError(
                f"{printable(str(path))} holds no leaves of a log", hint="name the log's folder"
            )
        self._seed = hashlib.sha256(head).digest()
        self._digest = self._seed  # of the last good frame
        self._stop = len(head) + 1  # where it ends
        self._starts, self._lengths = array("q"), array("H")
        self._failure: str | None = None

    @classmethod
    def create(cls, path: Path, origin: str) -> None:
        """Write a file without leaves, unless there is one. Raises OSError, and ConfigError for no origin."""
        if not is_key_name(origin):  # no key could ever sign it
            raise ConfigError(
                f"{quoted(origin)} is no origin",
                hint="write it like a URL without https://, with no space or + in it: example.com/log",
            )
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".leaves.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(b"%s %s %s\n" % (FORMAT, os.urandom(16).hex().encode(), origin.encode()))
                file.flush()
                sync(file.fileno())
            os.link(draft, path)  # unlike a rename, it never replaces what another process has just made
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
        sync_folder(path.parent)

    @classmethod
    def open(cls, path: Path, *, is_writable: bool) -> "LeafFile":
        """Open a file that is there. Raises OSError, FormatError, ConfigError if another process has it."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW) if is_writable else open_plain(path)
        try:
            if is_writable:
                _lock(fd, path)
            return cls(path, fd, is_writable=is_writable)
        except BaseException:
            os.close(fd)
            raise

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def is_open(self) -> bool:
        """Whether ``close`` was not called yet."""
        return self._fd >= 0

    def __getitem__(self, index: int) -> bytes:
        return os.pread(self._fd, self._lengths[index], self._starts[index])

    def load(self) -> Iterator[list[bytes]]:
        """Yield the leaves behind those that are known, a list for each frame, and cut off what a crash left.

        Raises FormatError if acknowledged leaves are damaged.
        """
        while True:
            while (frame := self._frame_at(self._stop, self._digest)) is not None:
                yield self._take(*frame)
            size = os.fstat(self._fd).st_size
            self.n_cut = max(0, size - self._stop)
            try:
                self._refuse_damage(size)
                break
            except FormatError:  # unless another process has just written the frame, and more behind it
                if self._is_writable or self._frame_at(self._stop, self._digest) is None:
                    raise
        if self.n_cut and self._is_writable:
            log.warning("%s: %d bytes of no acknowledged leaf are cut off", self.path, self.n_cut)
            os.ftruncate(self._fd, self._stop)
            sync(self._fd)

    def append(self, leaves: Sequence[bytes]) -> None:
        """Write leaves; returns when the disk has them all.

        Raises EvenloadError if the disk is full or fails; then a part of the leaves may be there, and nothing
        more can be appended before the log is opened again.
        """
        if self._failure is not None:
            raise self._unwritable()
        for some in _by_frame(leaves):
            lengths, content = np.fromiter(map(len, some), ">u2", len(some)).tobytes(), b"".join(some)
            digest = self._digest_of(self._digest, lengths, content)
            head = HEADER.pack(self._seed[:8], len(some), len(content), self._digest, digest)
            try:
                _write_at(self._fd, head + lengths + content, self._stop)
                sync(self._fd)
            except OSError as error:
                self._failure = error.strerror or "it failed"
                raise self._unwritable() from error
            self._take(lengths, content, digest)

    def close(self) -> None:
        """Close the file, for others to append to."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self, lengths: bytes, content: bytes, digest: bytes) -> list[bytes]:
        """The leaves of the frame behind the last good one, which it becomes."""
        sizes = np.frombuffer(lengths, ">u2")
        ends = np.cumsum(sizes, dtype=np.int64)
        first = self._stop + HEADER.size + len(lengths)
        self._starts.frombytes((first + ends - sizes).astype(np.int64).tobytes())
        self._lengths.frombytes(sizes.astype(np.uint16).tobytes())
        self._digest, self._stop = digest, first + len(content)
        stops = ends.tolist()
        return [content[a:b] for a, b in zip([0, *stops], stops, strict=False)]

    def _frame_at(self, start: int, before: bytes | None) -> tuple[bytes, bytes, bytes] | None:
        """(lengths, leaves, digest) of a whole frame; ``before``: of the frame before it, None for any."""
        head = os.pread(self._fd, HEADER.size, start)
        if len(head) < HEADER.size:
            return None
        magic, n, n_bytes, previous, digest = HEADER.unpack(head)
        if magic != self._seed[:8] or before not in (None, previous):
            return None
        if not 0 < n <= MOST_FRAME_LEAVES or n_bytes > MOST_FRAME_BYTES + MOST_ENTRY_BYTES:
            return None
        body = os.pread(self._fd, 2 * n + n_bytes, start + HEADER.size)
        lengths, content = body[: 2 * n], body[2 * n :]
        if len(body) < 2 * n + n_bytes or digest != self._digest_of(previous, lengths, content):
            return None
        return lengths, content, digest

    def _digest_of(self, before: bytes, lengths: bytes, content: bytes) -> bytes:
        digest = hashlib.sha256(self._seed + before + len(lengths).to_bytes(8, "little"))
        digest.update(lengths)
        digest.update(content)
        return digest.digest()

    def _refuse_damage(self, size: int) -> None:
        """Raise FormatError unless all behind the last good frame can be one frame that was cut."""
        most = HEADER.size + 2 * MOST_FRAME_LEAVES + MOST_FRAME_BYTES + MOST_ENTRY_BYTES
        is_damaged = size - self._stop > most or (not self._starts and self._has_another_head())
        rest = b"" if is_damaged else os.pread(self._fd, most, self._stop)
        at = rest.find(self._seed[:8], 1)
        while at >= 0 and not is_damaged:
            is_damaged = self._frame_at(self._stop + at, None) is not None
            at = rest.find(self._seed[:8], at + 1)
        if is_damaged:
            raise FormatError(
                f"{printable(str(self.path))} is damaged at byte {self._stop}, with leaves behind it",
                hint="restore it from a copy: these leaves were acknowledged",
            )

    def _has_another_head(self) -> bool:
        """Whether a whole frame stands first that was written behind another first line than this one."""
        head = os.pread(self._fd, HEADER.size, self._stop)
        if len(head) < HEADER.size:
            return False
        own, self._seed = self._seed, HEADER.unpack(head)[3]
        try:
            return self._seed != own and self._frame_at(self._stop, self._seed) is not None
        finally:
            self._seed = own

    def _unwritable(self) -> EvenloadError:
        return EvenloadError(
            f"{printable(str(self.path))} cannot be written: {self._failure}",
            hint="make room on its disk and open the log again: what was acknowledged is there",
        )


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"another process has the log {printable(str(path.parent))} open for appending",
            hint="wait for it to end, or only read: is_writable=False",
        ) from None


def _by_frame(leaves: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut leaves into pieces that fit frames."""
    start = n_bytes = 0
    for k, leaf in enumerate(leaves):
        if k > start and (n_bytes + len(leaf) > MOST_FRAME_BYTES or k - start >= MOST_FRAME_LEAVES):
            yield leaves[start:k]
            start, n_bytes = k, 0
        n_bytes += len(leaf)
    if start < len(leaves):
        yield leaves[start:]


def _write_at(fd: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while len(view):
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n
