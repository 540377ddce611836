"""Frames over pipes: how objects are sent between the executor and one worker.

    pack(object) ──► body + buffers ──► Outbox ──pipe──► Inbox ──► Frame ──► unpack ──► object

Each worker has its own pipe in each direction, so that a fault of one worker affects no other. Both ends
use the same classes: the worker's pipes block, the executor's do not.

Large buffers are put into an arena if both ends have one, and the frame says where; else they follow in the
frame.

A pipe may carry what nobody meant to send: a task that writes into descriptors it did not open, or forks.
So each frame proves its place in the stream and its contents by checksums, and lengths are believed only
after that. They find accidents; a task that forges them on purpose is not kept from anything.
"""

import mmap
import os
import pickle
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

from evenload.executor.transport.arena import ArenaPiece, Borrower, Lender, open_copy
from evenload.executor.transport.pickling import OUT_OF_BAND_BYTES

READ_BYTES = 256 * 1024
MOST_PIECES = 64  # buffers per system call; IOV_MAX is at least 1024 on Linux, 16 by POSIX
MOST_TABLE_BYTES = READ_BYTES // 2
MOST_BYTES = 1 << 46  # of a frame: more than any machine has memory
HEADER = Struct("<BBHIQQIII")
"""Kind, is the body the first piece, number of pieces, task, chunk, bytes of the body, and checksums: of the
table of pieces, of the body, and of the header up to there and the frame's number. Table, body and buffers
follow. Behind buffers the last sum stands again: to sum them takes long, and their owner may change them."""
SUM = Struct("<I")
N_SUMMED = HEADER.size - SUM.size
PIECE = Struct("<IQQ")  # slot, offset, bytes; slot 0: the bytes follow in the frame
COMMON = 1 << 31  # in a slot: a piece of the arena that all workers share

if TYPE_CHECKING:
    import ctypes

    Buffer = bytes | bytearray | memoryview | ctypes.Array | mmap.mmap
else:
    Buffer = Any


class ProtocolViolation(Exception):
    """An error for bytes that are no frame, or not the next one. ``frames``: the good ones before them."""

    def __init__(self, why: str, frames: "Sequence[Frame]" = ()):
        super().__init__(why)
        self.frames = frames


@dataclass(slots=True)
class Frame:
    """One message. ``kind`` is one of ``worker.protocol``; ``task`` and ``chunk`` are 0 for none."""

    kind: int
    task: int = 0
    chunk: int = 0
    body: Buffer = b""
    buffers: list[Any] | None = None
    """What ``pack`` returned, or pieces of the common arena; on arrival, any objects that hold the bytes."""
    is_lent: bool = True
    """False: buffers stay out of the arena, which a task can write to through the descriptors it has."""

    @property
    def n_bytes(self) -> int:
        return len(self.body) + (sum(map(_size, self.buffers)) if self.buffers else 0)


def unpack(frame: Frame) -> Any:
    """Return the object in ``frame``. Raises what its classes raise."""
    return pickle.loads(frame.body, buffers=frame.buffers or ())


def _size(buffer: Any) -> int:
    return buffer.n if isinstance(buffer, ArenaPiece) else memoryview(buffer).nbytes


class Outbox:
    """The writing end of a pipe for frames; bytes that the pipe does not take yet wait here.

    lender    the arena for large buffers, if there is one
    refused   bytes of large buffers that went through the pipe, as the arena had no room
    n_frames  frames that were queued
    """

    def __init__(self, fd: int, lender: Lender | None = None):
        self._fd = fd
        self._lender = lender
        self._pieces: deque[memoryview] = deque()
        self._small: list[Buffer] = []  # small frames behind all pieces, not yet put together
        self.n_frames = 0
        self.refused = 0

    def send(self, frame: Frame) -> bool:
        """Write, or queue behind earlier frames. Returns True if nothing waits. Raises BrokenPipeError."""
        self.add(frame)
        return self.flush()

    def close(self) -> None:
        """Release the arena and drop what waits."""
        self._lender = None
        self._pieces.clear()
        self._small.clear()

    def add(self, frame: Frame) -> None:
        """Queue a frame for the next ``flush``: many small frames are one write."""
        body, buffers = frame.body, frame.buffers or ()
        is_large = len(body) >= OUT_OF_BAND_BYTES
        if not buffers and not is_large:
            self._small.append(self._head(frame, 0, len(body), b"", zlib.crc32(body)))
            self._small.append(body)
            return
        self._close_small()
        inline: list[memoryview] = []
        entries: list[bytes] = []
        is_first = is_large and self._lend(memoryview(body), entries, None)
        for buffer in buffers:
            if isinstance(buffer, ArenaPiece):
                entries.append(PIECE.pack(*buffer))
            else:
                self._lend(memoryview(buffer).cast("B"), entries, inline, frame.is_lent)
        body = b"" if is_first else body
        table = b"".join(entries)
        head = self._head(frame, is_first, len(body), table, zlib.crc32(body))
        if len(body) <= READ_BYTES:
            self._pieces.append(memoryview(b"".join((head, table, body))))
        else:
            self._pieces.extend((memoryview(head + table), memoryview(body)))
        if inline:
            self._pieces.extend((*inline, memoryview(head[N_SUMMED:])))

    def _head(self, frame: Frame, is_first: bool | int, n_body: int, table: bytes, checksum: int) -> bytes:
        n_pieces, table_sum = len(table) // PIECE.size, zlib.crc32(table)
        head = HEADER.pack(
            frame.kind, is_first, n_pieces, frame.task, frame.chunk, n_body, table_sum, checksum, 0
        )[:N_SUMMED]
        self.n_frames += 1
        return head + SUM.pack(zlib.crc32(head, self.n_frames & 0xFFFFFFFF))

    def _lend(
        self, buffer: memoryview, entries: list[bytes], inline: list[memoryview] | None, may: bool = True
    ) -> bool:
        """Put ``buffer`` into the arena (returns True) if it ``may``, or else behind the frame's body."""
        piece = None
        if may and self._lender is not None and buffer.nbytes >= OUT_OF_BAND_BYTES:
            piece = self._lender.put(buffer)
            if piece is None:
                self.refused += buffer.nbytes
        if piece is not None:
            entries.append(PIECE.pack(*piece))
        elif inline is not None:
            entries.append(PIECE.pack(0, 0, buffer.nbytes))
            inline.append(buffer)
        return piece is not None

    def _close_small(self) -> None:
        if self._small:
            self._pieces.append(memoryview(b"".join(self._small)))
            self._small.clear()

    def flush(self) -> bool:
        """Write as much as the pipe takes. Returns True if nothing waits any more.

        Raises BrokenPipeError.
        """
        pieces = self._pieces
        self._close_small()
        while pieces:
            try:
                if len(pieces) == 1:
                    n_written = os.write(self._fd, pieces[0])
                else:
                    n_written = os.writev(self._fd, [pieces[i] for i in range(min(len(pieces), MOST_PIECES))])
            except BlockingIOError:
                return False
            while pieces and n_written >= len(pieces[0]):
                n_written -= len(pieces.popleft())
            if n_written:
                pieces[0] = pieces[0][n_written:]
        return True


class Inbox:
    """The reading end of a pipe for frames, which come in pieces of any size.

    borrower    the arena that the other end lends from
    common_fd   the arena that all workers share
    refused     bytes of large buffers that came through the pipe
    """

    def __init__(self, fd: int, borrower: Borrower | None = None, common_fd: int = -1):
        self._fd = fd
        self._borrower = borrower
        self._common_fd = common_fd
        self._view = memoryview(bytearray(READ_BYTES))
        self._start = self._stop = 0  # the part of the view that is read and not yet used
        self._large: Frame | None = None  # a frame larger than the view is read into its own buffers
        self._missing: list[memoryview] = []
        # What to check of it when it is whole.
        self._sums: tuple[Buffer, int, Buffer, bytes] = (b"", 0, b"", b"")
        self._n_frames = 0
        self.refused = 0

    def read(self) -> list[Frame] | None:
        """Read once and return the frames that are complete. Returns None if there is nothing to read yet.

        Raises EOFError when the other end is gone, and ProtocolViolation; then this end is of no more use.
        """
        try:
            if self._large is not None:
                return self._read_large()
            if self._start == self._stop:
                self._start = self._stop = 0
            elif self._start:
                self._view[: self._stop - self._start] = self._view[self._start : self._stop]
                self._stop -= self._start
                self._start = 0
            n_read = os.readv(self._fd, [self._view[self._stop :]])
        except BlockingIOError:
            return None
        if not n_read:
            raise EOFError
        self._stop += n_read
        return self._take_frames()

    @property
    def n_whole(self) -> int:
        """How many frames have come as a whole."""
        return self._n_frames - (self._large is not None)

    def close(self) -> None:
        """Release the arena. Views of its pieces stay valid."""
        self._borrower = None
        self._large = None

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        view, start, stop = self._view, self._start, self._stop
        while stop - start >= HEADER.size:
            head = HEADER.unpack_from(view, start)
            kind, is_first, n_pieces, task, chunk, n_body, table_sum, checksum, head_sum = head
            at = start + HEADER.size
            if zlib.crc32(view[start : start + N_SUMMED], (self._n_frames + 1) & 0xFFFFFFFF) != head_sum:
                raise ProtocolViolation("what it sent is not the next frame", frames)
            if not n_pieces and at + n_body <= stop:  # the common case
                start = at + n_body
                body = bytes(view[at:start])
                if zlib.crc32(body) != checksum:
                    raise ProtocolViolation("a frame was damaged", frames)
                self._n_frames += 1
                frames.append(Frame(kind, task, chunk, body))
                continue
            n_table = n_pieces * PIECE.size
            if n_table > MOST_TABLE_BYTES:
                raise ProtocolViolation("a frame says of itself what cannot be", frames)
            if stop < at + n_table:
                break
            if zlib.crc32(view[at : at + n_table]) != table_sum:
                raise ProtocolViolation("a frame was damaged", frames)
            pieces = [ArenaPiece(*PIECE.unpack_from(view, at + i * PIECE.size)) for i in range(n_pieces)]
            at += n_table
            last = bytearray(SUM.size if any(not piece.slot for piece in pieces) else 0)
            n_inline = n_body + sum(piece.n for piece in pieces if not piece.slot) + len(last)
            if at + n_inline > stop and at + n_inline - start <= READ_BYTES:
                break
            if (is_first and not pieces) or n_inline > MOST_BYTES:
                raise ProtocolViolation("a frame says of itself what cannot be", frames)
            buffers = [self._open(piece, frames) for piece in pieces]
            body: Buffer = _memory(n_body)
            inline = [buffer for buffer, piece in zip(buffers, pieces, strict=True) if not piece.slot]
            targets = [memoryview(part) for part in (body, *inline, last) if len(part)]
            sums = body, checksum, last, SUM.pack(head_sum)[: len(last)]
            frame = Frame(kind, task, chunk, buffers.pop(0) if is_first else body, buffers)
            self._n_frames += 1
            self.refused += sum(piece.n for piece in pieces if not piece.slot)
            start = self._fill(targets, at, stop)
            if targets:
                self._large, self._missing, self._sums = frame, targets, sums
                break
            if not _is_whole(*sums):
                raise ProtocolViolation("a frame was damaged", frames)
            frames.append(frame)
        self._start = start
        return frames

    def _open(self, piece: ArenaPiece, frames: list[Frame]) -> Any:
        if not piece.slot:
            return _memory(piece.n)
        if piece.slot & COMMON:
            if self._common_fd < 0:  # mapping it would give zeros
                raise ProtocolViolation("a frame names memory that is not there", frames)
            return open_copy(self._common_fd, piece)
        if self._borrower is None or not self._borrower.is_open_to(piece):
            raise ProtocolViolation("a frame names memory that it was not lent", frames)
        return self._borrower.open(piece)

    def _fill(self, targets: list[memoryview], at: int, stop: int) -> int:
        """Copy from the view into ``targets`` and remove those that are full. Returns the new position."""
        while targets and at < stop:
            n = min(stop - at, len(targets[0]))
            targets[0][:n] = self._view[at : at + n]
            at += n
            _advance(targets, n)
        return at

    def _read_large(self) -> list[Frame]:
        n_read = os.readv(self._fd, self._missing[:MOST_PIECES])
        if not n_read:
            raise EOFError
        _advance(self._missing, n_read)
        if self._missing:
            return []
        frame, self._large = self._large, None
        assert frame is not None
        if not _is_whole(*self._sums):
            raise ProtocolViolation("a frame was damaged")
        return [frame]


def _memory(n: int) -> "bytearray | mmap.mmap":
    """Memory for ``n`` bytes, which takes none before they come: a worker may announce any number.

    Raises MemoryError.
    """
    if n < READ_BYTES:
        return bytearray(n)
    try:
        return mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {n} bytes") from error


def _is_whole(body: Buffer, checksum: int, last: Buffer, expected: bytes) -> bool:
    return zlib.crc32(body) == checksum and last == expected


def _advance(targets: list[memoryview], n: int) -> None:
    while targets and n >= len(targets[0]):
        n -= len(targets.pop(0))
    if n:
        targets[0] = targets[0][n:]
