"""Frames over pipes: how objects are sent between the executor and one worker.

    pack(object) ──► body + buffers ──► Outbox ──pipe──► Inbox ──► Frame ──► unpack ──► object

Each worker has its own pipe in each direction, so that a fault of one worker affects no other. Both ends
use the same classes: the worker's pipes block, the executor's do not.

Protocol 5 keeps large buffers (of arrays, tensors, bytes; ``pickle.PickleBuffer``) out of the pickle stream.
They are put into an arena if both ends have one, and the frame says where; else they follow in the frame.
"""

import copyreg
import io
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

from evenload.executor.transport.arena import Borrower, Lender, Piece, open_copy
from evenload.executor.transport.tensors import reducers

__all__ = ["COMMON", "OUT_OF_BAND_BYTES", "Frame", "Inbox", "Outbox", "mark_large", "pack", "unpack"]

OUT_OF_BAND_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
MOST_BUFFERS = 4096  # in one frame; more of them go into the pickle
MOST_PIECES = 64  # buffers per system call; IOV_MAX is at least 1024 on Linux, 16 by POSIX
HEADER = Struct("<BBHIQQ")  # kind, is the body the first piece, number of pieces, task, chunk, bytes of body
PIECE = Struct("<IQQ")  # slot, offset, bytes; slot 0: the bytes follow in the frame
COMMON = 1 << 31  # in a slot: a piece of the arena that all workers share
MOST_MARKED = 256  # values in a message that are checked one by one

if TYPE_CHECKING:
    import ctypes
    import mmap

    Buffer = bytes | bytearray | memoryview | ctypes.Array | mmap.mmap
else:
    Buffer = Any


@dataclass(slots=True)
class Frame:
    """One message. ``kind`` is one of ``worker.protocol``; ``task`` and ``chunk`` are 0 for none."""

    kind: int
    task: int = 0
    chunk: int = 0
    body: Buffer = b""
    buffers: list[Any] | None = None
    """What ``pack`` returned, or pieces of the common arena; on arrival, any objects that hold the bytes."""

    @property
    def n_bytes(self) -> int:
        return len(self.body) + (sum(map(_size, self.buffers)) if self.buffers else 0)


def pack(obj: Any, *, by_name: bool = True) -> tuple[bytes, list[memoryview]]:
    """Pickle ``obj``; returns the bytes, and buffers of 64 KiB and more, which are not copied.

    ``by_name``: functions and classes may be pickled as the name of their module and their own.

    Objects of ``__main__`` (a script, a notebook) cannot be imported by the other process, and plain pickle
    refuses some (a lambda): cloudpickle sends both by value. Raises what cloudpickle raises if it cannot.
    """
    buffers: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < OUT_OF_BAND_BYTES or len(buffers) == MOST_BUFFERS:
            return True
        buffers.append(raw)
        return False

    if by_name:
        try:
            body = _dumps(obj, stays_inside)
        except Exception:
            pass  # cloudpickle below can do it, or raises with its own message
        else:
            if b"__main__" not in body:
                return body, buffers
        buffers.clear()
    return _dumps_by_value(obj, stays_inside), buffers


def _dumps(obj: Any, stays_inside: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    if "numpy" not in sys.modules:
        return pickle.dumps(obj, protocol=5, buffer_callback=stays_inside)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=stays_inside)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers()}
    pickler.dump(obj)
    return file.getvalue()


def _dumps_by_value(obj: Any, stays_inside: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    import cloudpickle

    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file, 5, buffer_callback=stays_inside)
    pickler.dispatch_table = {**copyreg.dispatch_table, **pickler.dispatch_table, **_reducers()}
    pickler.dump(obj)
    return file.getvalue()


def _reducers() -> dict[type, Callable[[Any], Any]]:
    table = reducers()
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ascontiguousarray"):
        table[numpy.ndarray] = _reduce_array
    return table


def _reduce_array(array: Any) -> Any:
    """Reduce as numpy does, but copy an array with gaps first: numpy would copy it into the pickle."""
    if array.nbytes >= OUT_OF_BAND_BYTES and not array.flags.forc and not array.dtype.hasobject:
        array = sys.modules["numpy"].ascontiguousarray(array)
    return array.__reduce_ex__(5)


class _OutOfBand:
    """Large bytes that pickle as an out-of-band buffer."""

    def __init__(self, value: bytes | bytearray):
        self.value = value

    def __reduce__(self) -> tuple:
        return type(self.value), (pickle.PickleBuffer(self.value),)


def mark_large(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values for ``pack``, with large bytes among them marked to be sent as buffers."""
    if len(values) > MOST_MARKED or not any(
        type(value) in (bytes, bytearray) and len(value) >= OUT_OF_BAND_BYTES for value in values
    ):
        return values
    return [
        _OutOfBand(value) if type(value) in (bytes, bytearray) and len(value) >= OUT_OF_BAND_BYTES else value
        for value in values
    ]


def unpack(frame: Frame) -> Any:
    """Return the object in ``frame``. Raises what its classes raise."""
    return pickle.loads(frame.body, buffers=frame.buffers or ())


def _size(buffer: Any) -> int:
    return buffer.n if isinstance(buffer, Piece) else memoryview(buffer).nbytes


class Outbox:
    """The writing end of a pipe for frames; bytes that the pipe does not take yet wait here.

    lender    the arena for large buffers, if there is one
    refused   bytes of large buffers that went through the pipe, as the arena had no room
    """

    def __init__(self, fd: int, lender: Lender | None = None):
        self._fd = fd
        self._lender = lender
        self._pieces: deque[memoryview] = deque()
        self._small: list[Buffer] = []  # small frames behind all pieces, not yet put together
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
            head = HEADER.pack(frame.kind, 0, 0, frame.task, frame.chunk, len(body))
            self._small.append(head)
            self._small.append(body)
            return
        self._close_small()
        inline: list[memoryview] = []
        entries: list[bytes] = []
        is_first = is_large and self._lend(memoryview(body), entries, None)
        for buffer in buffers:
            if isinstance(buffer, Piece):
                entries.append(PIECE.pack(*buffer))
            else:
                self._lend(memoryview(buffer).cast("B"), entries, inline)
        n_body = 0 if is_first else len(body)
        head = HEADER.pack(frame.kind, is_first, len(entries), frame.task, frame.chunk, n_body)
        if n_body <= READ_BYTES:
            self._pieces.append(memoryview(b"".join((head, *entries, memoryview(body)[:n_body]))))
        else:
            self._pieces.extend((memoryview(b"".join((head, *entries))), memoryview(body)))
        self._pieces.extend(inline)

    def _lend(self, buffer: memoryview, entries: list[bytes], inline: list[memoryview] | None) -> bool:
        """Put ``buffer`` into the arena (returns True), or else behind the frame's body."""
        piece = None
        if self._lender is not None and buffer.nbytes >= OUT_OF_BAND_BYTES:
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
        self.refused = 0

    def read(self) -> list[Frame] | None:
        """Read once and return the frames that are complete. Raises EOFError when the other end is gone.

        Returns None if the pipe does not block and has nothing.
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

    def close(self) -> None:
        """Release the arena. Views of its pieces stay valid."""
        self._borrower = None
        self._large = None

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        view, start, stop = self._view, self._start, self._stop
        while stop - start >= HEADER.size:
            kind, is_first, n_pieces, task, chunk, n_body = HEADER.unpack_from(view, start)
            at = start + HEADER.size
            if not n_pieces and at + n_body <= stop:  # the common case
                start = at + n_body
                frames.append(Frame(kind, task, chunk, bytes(view[at:start])))
                continue
            n_table = n_pieces * PIECE.size
            if stop < at + n_table:
                break
            pieces = [Piece(*PIECE.unpack_from(view, at + i * PIECE.size)) for i in range(n_pieces)]
            at += n_table
            n_inline = n_body + sum(piece.n for piece in pieces if not piece.slot)
            if at + n_inline > stop and at + n_inline - start <= READ_BYTES:
                break
            buffers = [self._open(piece) for piece in pieces]
            body: Buffer = bytearray(n_body)
            inline = [buffer for buffer, piece in zip(buffers, pieces, strict=True) if not piece.slot]
            targets = [memoryview(part) for part in (body, *inline) if len(part)]
            frame = Frame(kind, task, chunk, buffers.pop(0) if is_first else body, buffers)
            self.refused += sum(piece.n for piece in pieces if not piece.slot)
            start = self._fill(targets, at, stop)
            if targets:
                self._large, self._missing = frame, targets
                break
            frames.append(frame)
        self._start = start
        return frames

    def _open(self, piece: Piece) -> Any:
        if not piece.slot:
            return bytearray(piece.n)
        if piece.slot & COMMON:
            return open_copy(self._common_fd, piece)
        assert self._borrower is not None
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
        return [frame]


def _advance(targets: list[memoryview], n: int) -> None:
    while targets and n >= len(targets[0]):
        n -= len(targets.pop(0))
    if n:
        targets[0] = targets[0][n:]
