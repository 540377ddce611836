"""A stranger's trace file as bytes, in blocks: plain or compressed, whole or cut, of bounded length."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from evenload._closing import Closing
from evenload._optional import require
from evenload._private_files import plain_file
from evenload.errors import ConfigError, FormatError, quoted

MOST_BYTES = 64 << 30  # after decompression
MOST_EXPANSION = 200  # traces compress ten- to thirtyfold
FREE_BYTES = 64 << 20  # expansion does not count before
GZIP, BZIP2, XZ, ZSTD, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
STDIN = "-"
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)


class TraceFile(Closing):
    """A trace that is read once from its start: ``first`` is its beginning, ``is_cut`` whether it ends early.

    Raises ConfigError if it cannot be opened, FormatError for more bytes than any trace has.
    """

    def __init__(self, path: Path, n_first: int = 1 << 16) -> None:
        self.path = path
        self.is_cut = False
        self._n_bytes = 0
        try:
            self._raw: BinaryIO = sys.stdin.buffer if str(path) == STDIN else plain_file(path)
            with contextlib.ExitStack() as stack:
                stack.callback(self._raw.close)
                self._raw, magic = _peeked(self._raw)
                self._file = _expanded(self._raw, magic, path)
                stack.pop_all()
        except OSError as error:
            raise ConfigError(
                f"cannot read {quoted(str(path), 200)}: {error.strerror}", hint="name a trace file"
            ) from error
        self._decoder: codecs.IncrementalDecoder | None = None
        self.first = self._read(n_first)
        if self.first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes it
            self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
            self.first = self._decoder.decode(self.first).encode()
        self._n_given = 0

    def read(self, n_bytes: int) -> bytes:
        """At most ``n_bytes`` more; nothing at the end."""
        if self._n_given < len(self.first):
            piece = self.first[self._n_given : self._n_given + n_bytes]
            self._n_given += len(piece)
            return piece
        return self._read(n_bytes)

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def faults(self) -> list[str]:
        """A sentence if the file ends early."""
        return [f"{quoted(self.path.name)} ends early; what it has was read."] if self.is_cut else []

    def _read(self, n_bytes: int) -> bytes:
        if self.is_cut:
            return b""
        try:
            piece = self._file.read(n_bytes)
        except DAMAGED:
            self.is_cut = True
            return b""
        except Exception as error:
            if _is_of_zstd(error) or (isinstance(error, OSError) and error.errno is None):
                self.is_cut = True
                return b""
            if not isinstance(error, OSError):
                raise
            raise ConfigError(f"cannot read {quoted(str(self.path), 200)}: {error.strerror}") from error
        self._n_bytes += len(piece)
        expanded = self._file is not self._raw and self._n_bytes > FREE_BYTES and self._raw.seekable()
        if self._n_bytes > MOST_BYTES or (expanded and self._n_bytes > MOST_EXPANSION * self._raw.tell()):
            raise FormatError(
                f"{quoted(str(self.path), 200)} is longer than any trace: {self._n_bytes >> 20} MiB so far",
                hint="see that it is the file you mean; cut longer traces",
            )
        if self._decoder is not None and piece:
            return self._decoder.decode(piece).encode() or self._read(n_bytes)
        return piece


def _peeked(file: BinaryIO) -> tuple[BinaryIO, bytes]:
    """A file and its first bytes; one that cannot go back (a pipe) is buffered, so that they come again."""
    if file.seekable():
        magic = file.read(6)
        file.seek(0)
        return file, magic
    buffered: Any = io.BufferedReader(file)  # pyrefly: ignore
    return buffered, buffered.peek(6)[:6]


def _expanded(file: BinaryIO, magic: bytes, path: Path) -> Any:
    """The content of a file, by how it begins. Raises MissingExtra for zstd without its package."""
    if magic.startswith(GZIP):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(BZIP2):
        return bz2.BZ2File(file)
    if magic.startswith(XZ):
        return lzma.LZMAFile(file)
    if magic.startswith(ZSTD):
        zstandard = require("zstandard", extra="audit", why="a .zst file")
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    if magic.startswith(ZIP):
        with contextlib.suppress(*DAMAGED):
            whole = zipfile.ZipFile(file)
            members = [one for one in whole.infolist() if not one.is_dir()]
            if len(members) == 1:
                return whole.open(members[0])
        raise FormatError(
            f"{quoted(str(path), 200)} is no archive of one trace", hint="unpack it, and name the traces"
        )
    return file


def _is_of_zstd(error: Exception) -> bool:
    return type(error).__name__ == "ZstdError"
