"""The container that .zkey, .wtns and .r1cs share: magic, version, then sections in any order.

Everything is little-endian: 4 bytes magic, u32 version, u32 number of sections; each section is u32 type, u64
length, payload. Sizes are checked against the file before anything of that size is allocated.
"""

import errno
import hashlib
import io
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from evenload._private_files import plain_file
from evenload.errors import FormatError, printable, quoted

_MAX_SECTIONS = 1000
Source = str | os.PathLike | bytes | BinaryIO


@dataclass(slots=True)
class Container:
    """An open file whose section table is sound. ``sections`` maps a type to (offset of payload, length)."""

    name: str
    file: BinaryIO
    sections: Mapping[int, tuple[int, int]]
    titles: Mapping[int, str]

    def fault(self, section: int, at: int, why: str, hint: str | None = None) -> FormatError:
        """An error that names the section and the byte of the file; ``at`` counts from the section's
        payload."""
        offset = self.sections[section][0] + at if section in self.sections else at
        title = self.titles.get(section, "unknown")
        return FormatError(f"{self.name}: section {section} ({title}) at byte {offset}: {why}", hint=hint)

    def length(self, section: int, expected: int | None = None, what: str = "") -> int:
        """The payload's length; raises FormatError if the section is missing or its length is not
        ``expected``."""
        if section not in self.sections:
            title = self.titles.get(section, "unknown")
            raise FormatError(f"{self.name}: section {section} ({title}) is missing")
        length = self.sections[section][1]
        if expected is not None and length != expected:
            raise self.fault(section, 0, f"holds {length} bytes, but {what} need {expected}")
        return length

    def read(self, section: int) -> bytes:
        offset, length = self.sections[section]
        self.file.seek(offset)
        content = self.file.read(length)
        if len(content) != length:
            raise self.fault(section, len(content), "the file became shorter while it was read")
        return content

    def rows(self, section: int, row_bytes: int, skip: int = 0) -> np.ndarray:
        """[n, row_bytes] uint8, a private copy of the payload from byte ``skip`` on."""
        offset, length = self.sections[section]
        content = bytearray(length - skip)
        self.file.seek(offset + skip)
        if self.file.readinto(content) != len(content):  # pyrefly: ignore
            raise self.fault(section, skip, "the file became shorter while it was read")
        return np.frombuffer(content, np.uint8).reshape(-1, row_bytes)

    def sha256(self) -> str:
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha256").hexdigest()  # pyrefly: ignore

    def close(self) -> None:
        self.file.close()


def open_container(
    source: Source, magic: bytes, max_version: int, titles: Mapping[int, str], name: str | None = None
) -> Container:
    """Check the header and the section table of a path, of bytes, or of a seekable binary file.

    Raises FormatError for another magic or version, a section that leaves the file, a known section that
    appears twice, or bytes after the last section. Unknown sections are skipped. OSError if the file cannot
    be read.
    """
    file: BinaryIO
    if isinstance(source, (str, os.PathLike)):
        name = name or printable(str(Path(source)))
        try:
            file = plain_file(Path(source))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise FormatError(f"{name}: at byte 0: {error.strerror}") from error
    elif isinstance(source, (bytes, bytearray)):
        file, name = io.BytesIO(source), name or "<bytes>"
    else:
        file, name = source, name or printable(str(getattr(source, "name", "<file>")))
    try:
        return _read_table(file, name or "<file>", magic, max_version, titles)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):  # it has no size, as in /proc, or its first byte cannot be read
            error.filename = error.filename or name
        raise


def _read_table(
    file: BinaryIO, name: str, magic: bytes, max_version: int, titles: Mapping[int, str]
) -> Container:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(12)
    if len(head) < 12 or head[:4] != magic:
        what = magic.decode()
        raise FormatError(
            f"{name}: not a .{what} file: begins with {quoted(head[:4])} at byte 0, not {quoted(magic)}"
        )
    version, n_sections = struct.unpack("<II", head[4:])
    if not 1 <= version <= max_version:
        raise FormatError(f"{name}: version {version} at byte 4; versions 1 to {max_version} are supported")
    if n_sections > _MAX_SECTIONS:
        raise FormatError(f"{name}: {n_sections} sections at byte 8; at most {_MAX_SECTIONS} are plausible")
    sections: dict[int, tuple[int, int]] = {}
    at = 12
    for k in range(n_sections):
        file.seek(at)
        head = file.read(12)
        if len(head) < 12:
            raise FormatError(
                f"{name}: ends at byte {size} inside the header of section number {k} (byte {at})"
            )
        kind, length = struct.unpack("<IQ", head)
        title = titles.get(kind, "unknown")
        if length > size - at - 12:
            raise FormatError(
                f"{name}: section {kind} ({title}) at byte {at + 12}: claims {length} bytes, "
                f"the file has {size - at - 12} left",
                hint="the file is truncated or damaged",
            )
        if kind in titles and kind in sections:
            raise FormatError(f"{name}: section {kind} ({title}) at byte {at + 12}: appears a second time")
        sections[kind] = (at + 12, length)
        at += 12 + length
    if at != size:
        raise FormatError(f"{name}: {size - at} bytes after the last section, at byte {at}")
    return Container(name, file, sections, titles)


def write_container(
    target: str | Path | BinaryIO, magic: bytes, version: int, sections: list[tuple[int, list]]
) -> None:
    """Write sections in the order given; each payload is a list of parts (bytes or buffers)."""
    if isinstance(target, (str, Path)):
        with open(target, "wb") as file:
            return write_container(file, magic, version, sections)
    target.write(magic + struct.pack("<II", version, len(sections)))
    for kind, parts in sections:
        target.write(struct.pack("<IQ", kind, sum(memoryview(part).nbytes for part in parts)))
        for part in parts:
            target.write(part)
