"""Frames over pipes: how objects travel between the executor and one worker.

    pack(object) ──► body + buffers ──► Outbox ──pipe──► Inbox ──► Frame ──► unpack ──► object

Each worker has a pipe of its own in each direction, so that what happens to one worker touches no other.
The same classes serve both ends: the worker's pipes block, the executor's do not.

Large buffers (arrays, ``pickle.PickleBuffer``) are kept out of the pickle stream by protocol 5 and follow it
in the frame as they are. They are the seam for shared memory: only ``Frame.buffers`` has to travel otherwise.
"""

import os
import pickle
from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Any

__all__ = ["OUT_OF_BAND_BYTES", "Frame", "Inbox", "Outbox", "pack", "unpack"]

OUT_OF_BAND_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
MOST_BUFFERS = 4096  # in one frame; what is beyond travels inside the pickle
MOST_PIECES = 64  # buffers per system call; IOV_MAX is at least 1024 on Linux, 16 by POSIX
HEADER = Struct("<BxHIQQ")  # kind, number of buffers, task, chunk, bytes of body
LENGTH = Struct("<Q")

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Frame:
    """One message. ``kind`` is for both ends to agree on; ``task`` and ``chunk`` are 0 for none."""

    kind: int
    task: int = 0
    chunk: int = 0
    body: Buffer = b""
    buffers: list[Buffer] | None = None

    @property
    def n_bytes(self) -> int:
        return len(self.body) + (sum(map(len, self.buffers)) if self.buffers else 0)


def pack(obj: Any, *, by_name: bool = True) -> tuple[bytes, list[Buffer]]:
    """Pickle ``obj``; buffers of 64 KiB and more stay outside and are not copied.

    ``by_name``: functions and classes may go as their module's name and their own.

    What belongs to ``__main__`` (a script, a notebook) cannot be imported on the other side, and what plain
    pickle refuses (a lambda) may still be sent by value: both go through cloudpickle.
    Raises whatever cloudpickle raises if even that cannot.
    """
    buffers: list[Buffer] = []

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
            body = pickle.dumps(obj, protocol=5, buffer_callback=stays_inside)
        except Exception:
            pass  # cloudpickle below either can, or raises with a message of its own
        else:
            if b"__main__" not in body:
                return body, buffers
        buffers.clear()
    import cloudpickle

    return cloudpickle.dumps(obj, protocol=5, buffer_callback=stays_inside), buffers


def unpack(frame: Frame) -> Any:
    """The object in ``frame``. Raises whatever its classes raise."""
    return pickle.loads(frame.body, buffers=frame.buffers or ())


class Outbox:
    """Writes frames to a pipe; what the pipe does not take yet waits here."""

    def __init__(self, fd: int):
        self._fd = fd
        self._pieces: deque[memoryview] = deque()

    def send(self, frame: Frame) -> bool:
        """Write, or queue behind what waits. Returns True if nothing waits. Raises BrokenPipeError."""
        if not frame.buffers and not self._pieces and len(frame.body) <= READ_BYTES:
            return self._send_small(frame)
        buffers = frame.buffers or ()
        head = HEADER.pack(frame.kind, len(buffers), frame.task, frame.chunk, len(frame.body))
        lengths = b"".join(LENGTH.pack(len(buffer)) for buffer in buffers)
        if len(frame.body) <= READ_BYTES:
            self._pieces.append(memoryview(b"".join((head, lengths, frame.body))))
        else:
            self._pieces.extend((memoryview(head + lengths), memoryview(frame.body)))
        self._pieces.extend(memoryview(buffer).cast("B") for buffer in buffers)
        return self.flush()

    def _send_small(self, frame: Frame) -> bool:
        """The same for the common case: one piece, and nothing in its way."""
        body = frame.body
        whole = HEADER.pack(frame.kind, 0, frame.task, frame.chunk, len(body)) + body
        try:
            n_written = os.write(self._fd, whole)
        except BlockingIOError:
            n_written = 0
        if n_written == len(whole):
            return True
        self._pieces.append(memoryview(whole)[n_written:])
        return False

    def flush(self) -> bool:
        """Write what waits, as far as the pipe takes it. Returns True if nothing waits any more."""
        pieces = self._pieces
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
    """Puts frames together from what a pipe brings, in whatever pieces."""

    def __init__(self, fd: int):
        self._fd = fd
        self._view = memoryview(bytearray(READ_BYTES))
        self._start = self._stop = 0  # what is read and not yet used
        self._large: Frame | None = None  # a frame that does not fit the view: read straight to where it goes
        self._missing: list[memoryview] = []

    def read(self) -> list[Frame] | None:
        """The frames that one read completes, maybe none. Raises EOFError when the other end is gone.

        Returns None if the pipe does not block and there is nothing.
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

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        while self._stop - self._start >= HEADER.size:
            kind, n_buffers, task, chunk, n_body = HEADER.unpack_from(self._view, self._start)
            at = self._start + HEADER.size
            if not n_buffers and at + n_body <= self._stop:  # the common case
                frames.append(Frame(kind, task, chunk, bytes(self._view[at : at + n_body])))
                self._start = at + n_body
                continue
            n_lengths = n_buffers * LENGTH.size
            if at + n_lengths > READ_BYTES or self._stop < at + n_lengths:
                break
            lengths = [LENGTH.unpack_from(self._view, at + i * LENGTH.size)[0] for i in range(n_buffers)]
            at += n_lengths
            stop = at + n_body + sum(lengths)
            if stop <= self._stop:
                frame = Frame(kind, task, chunk, bytes(self._view[at : at + n_body]))
                frame.buffers = self._cut(at + n_body, lengths)
                frames.append(frame)
                self._start = stop
            elif stop - self._start <= READ_BYTES:
                break
            else:
                self._begin_large(
                    Frame(kind, task, chunk, bytearray(n_body), [bytearray(n) for n in lengths]), at
                )
                break
        return frames

    def _cut(self, at: int, lengths: list[int]) -> list[Buffer] | None:
        buffers: list[Buffer] = []
        for length in lengths:
            buffers.append(bytearray(self._view[at : at + length]))
            at += length
        return buffers or None

    def _begin_large(self, frame: Frame, at: int) -> None:
        self._large = frame
        self._missing = [memoryview(piece) for piece in (frame.body, *(frame.buffers or ())) if len(piece)]
        here = self._view[at : self._stop]
        self._start = self._stop = 0
        while len(here):
            n = min(len(here), len(self._missing[0]))
            self._missing[0][:n] = here[:n]
            here = here[n:]
            self._advance(n)

    def _read_large(self) -> list[Frame]:
        n_read = os.readv(self._fd, self._missing[:MOST_PIECES])
        if not n_read:
            raise EOFError
        self._advance(n_read)
        if self._missing:
            return []
        frame, self._large = self._large, None
        assert frame is not None
        return [frame]

    def _advance(self, n: int) -> None:
        while self._missing and n >= len(self._missing[0]):
            n -= len(self._missing.pop(0))
        if n:
            self._missing[0] = self._missing[0][n:]
