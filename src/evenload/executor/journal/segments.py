"""Segments: append-only files of a journal's records, each with its own checksum.

    header | key | payload,  header | key | payload,  ...

A record proves by itself that it is whole and of this journal. So a record that was cut by a crash is
found, and all before and behind it are still good.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from evenload._private_files import OwnFolder, sync

MAGIC = b"\xe5EVJ"
HEADER = Struct("<4sIQ16s")  # magic, bytes of key, bytes of payload, checksum of all that and of both
MOST_KEY_BYTES = 4096
MOST_BYTES = 256 * 1024 * 1024  # a segment that has grown so long is followed by a new one
MOST_GATHERED = 64 * 1024  # payloads below are gathered and written together

Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """The place of a record: its segment, its first byte there, and the byte behind its last."""

    key: str
    segment: int
    start: int
    stop: int


class Segments:
    """The files ``segment-N`` of a folder, for the process that holds the journal's lock.

    ``salt`` goes into the checksums: a journal that is the payload of another is not taken for part of it.
    """

    def __init__(self, folder: OwnFolder, salt: bytes):
        self._folder = folder
        self._salt = salt
        self._readers: dict[int, int] = {}
        self._fd: int | None = None
        self._number = 0
        self._stop = 0
        # Ours only: a number that SQLite can hold, written as we write it.
        names = {name for name in folder.names() if name.startswith("segment-") and len(name) < 24}
        numbers = {int(name[8:]) for name in names if name[8:].isdecimal()}
        self.numbers = sorted(number for number in numbers if _name(number) in names)

    def size(self, number: int) -> int:
        return self._folder.facts(_name(number)).st_size

    def go_on(self, number: int, stop: int) -> None:
        """Continue this segment, all of whose ``stop`` bytes are good, with the next ``append``."""
        if stop < MOST_BYTES:
            self._fd = self._folder.open(_name(number), os.O_WRONLY | os.O_APPEND)
            self._number, self._stop = number, stop

    def append(self, records: Iterable[tuple[str, Buffer]]) -> list[Entry]:
        """Write ``records``; returns when the disk has them. Raises OSError: then none may be counted on."""
        if self._fd is None or self._stop >= MOST_BYTES:
            self._begin()
        assert self._fd is not None
        entries, small = [], bytearray()
        stop = self._stop
        for key, payload in records:
            start, name = stop, key.encode()
            payload = memoryview(payload).cast("B")
            stop = start + HEADER.size + len(name) + len(payload)
            head = HEADER.pack(MAGIC, len(name), len(payload), _checksum(self._salt, name, payload)) + name
            small += head
            if len(payload) < MOST_GATHERED:
                small += payload
            else:
                _write(self._fd, small)
                _write(self._fd, payload)
                small = bytearray()
            entries.append(Entry(key, self._number, start, stop))
        _write(self._fd, small)
        sync(self._fd)
        self._stop = stop
        return entries

    def read(self, entry: Entry) -> bytes | None:
        """Return the payload; None if the record is damaged, of another key, or missing."""
        try:
            fd = self._readers.get(entry.segment)
            if fd is None:
                fd = self._readers[entry.segment] = self._folder.open(_name(entry.segment), os.O_RDONLY)
            raw = _read(fd, entry.start, entry.stop - entry.start)
        except OSError:
            return None
        record = _record_at(self._salt, memoryview(raw), 0)
        if record is None or record.key != entry.key or record.stop != len(raw):
            return None
        return bytes(memoryview(raw)[HEADER.size + len(entry.key.encode()) :])

    def scan(self, number: int, start: int = 0) -> Iterator[Entry]:
        """Yield the good records from ``start`` on, in the order in which they were written."""
        with open(self._folder.open(_name(number), os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size <= start:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw, memoryview(raw) as view:
                while start >= 0:
                    record = _record_at(self._salt, view, start)
                    if record is None:
                        start = raw.find(MAGIC, start + 1)
                    else:
                        yield Entry(record.key, number, start, start + record.stop)
                        start += record.stop

    def remove(self) -> None:
        """Delete all segments."""
        self.close()
        for number in self.numbers:
            self._folder.unlink(_name(number))
        self.numbers = []

    def close(self) -> None:
        for fd in (*self._readers.values(), *(() if self._fd is None else (self._fd,))):
            os.close(fd)
        self._readers.clear()
        self._fd = None

    def _begin(self) -> None:
        """Begin a new segment, which gets its name when it is on disk."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        number = max(self.numbers, default=0) + 1
        fd = self._folder.open("segment.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            sync(fd)
            self._folder.rename("segment.new", _name(number))
            self._folder.sync()
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._number, self._stop = fd, number, 0
        self.numbers.append(number)


def _name(number: int) -> str:
    return f"segment-{number:06d}"


class _Record(NamedTuple):
    key: str
    stop: int


def _record_at(salt: bytes, view: memoryview, start: int) -> _Record | None:
    """Read the record at ``start``, its ``stop`` counted from there; None if it is not whole."""
    if len(view) - start < HEADER.size:
        return None
    magic, n_key, n_payload, checksum = HEADER.unpack_from(view, start)
    stop = HEADER.size + n_key + n_payload
    if magic != MAGIC or n_key > MOST_KEY_BYTES or start + stop > len(view):
        return None
    key = bytes(view[start + HEADER.size : start + HEADER.size + n_key])
    payload = view[start + HEADER.size + n_key : start + stop]
    try:
        return _Record(key.decode(), stop) if _checksum(salt, key, payload) == checksum else None
    except UnicodeDecodeError:
        return None
    finally:
        payload.release()


def _checksum(salt: bytes, key: bytes, payload: Buffer) -> bytes:
    digest = blake2b(digest_size=16, key=salt)
    digest.update(b"%d %d " % (len(key), len(payload)))
    digest.update(key)
    digest.update(payload)
    return digest.digest()


def _write(fd: int, piece: Buffer) -> None:
    view = memoryview(piece)
    while len(view):
        view = view[os.write(fd, view[: 1 << 30]) :]


def _read(fd: int, start: int, n: int) -> bytes:
    pieces = []
    while n > 0:
        piece = os.pread(fd, min(n, 1 << 30), start)
        if not piece:
            break
        pieces.append(piece)
        start, n = start + len(piece), n - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
