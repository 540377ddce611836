"""A stranger's trace file as bytes, in blocks: plain or gzip, cut or damaged, never more than asked for."""

import codecs
import contextlib
import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

from evenload._private_files import plain_file
from evenload.errors import ConfigError, FormatError, quoted

__all__ = ["MOST_BYTES", "TraceFile"]

MOST_BYTES = 64 << 30  # after decompression
MOST_EXPANSION = 200  # traces compress ten- to thirtyfold
FREE_BYTES = 64 << 20  # expansion does not count before
GZIP = b"\x1f\x8b"


class TraceFile:
    """A trace that is read once from its start: ``first`` is its beginning, ``is_cut`` whether it ends early.

    Raises ConfigError if it cannot be opened, FormatError for more bytes than any trace has.
    """

    def __init__(self, path: Path, n_first: int = 1 << 16) -> None:
        self.path = path
        self.is_cut = False
        self._n_bytes = 0
        try:
            self._raw: BinaryIO = plain_file(path)
            with contextlib.ExitStack() as stack:
                stack.callback(self._raw.close)
                is_gzip = self._raw.read(2) == GZIP
                self._raw.seek(0)
                stack.pop_all()
        except OSError as error:
            raise ConfigError(
                f"cannot read {quoted(str(path), 200)}: {error.strerror}", hint="name a trace file"
            ) from error
        self._file = gzip.GzipFile(fileobj=self._raw) if is_gzip else self._raw
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

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def faults(self) -> list[str]:
        """A sentence if the file ends early."""
        return [f"{quoted(self.path.name)} ends early; what it has was read."] if self.is_cut else []

    def _read(self, n_bytes: int) -> bytes:
        if self.is_cut:
            return b""
        try:
            piece = self._file.read(n_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.is_cut = True
            return b""
        except OSError as error:
            raise ConfigError(f"cannot read {quoted(str(self.path), 200)}: {error.strerror}") from error
        self._n_bytes += len(piece)
        expanded = self._file is not self._raw and self._n_bytes > FREE_BYTES
        if self._n_bytes > MOST_BYTES or (expanded and self._n_bytes > MOST_EXPANSION * self._raw.tell()):
            raise FormatError(
                f"{quoted(str(self.path), 200)} is longer than any trace: {self._n_bytes >> 20} MiB so far",
                hint="see that it is the file you mean; cut longer traces",
            )
        if self._decoder is not None and piece:
            return self._decoder.decode(piece).encode() or self._read(n_bytes)
        return piece
