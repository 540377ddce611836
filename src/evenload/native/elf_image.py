"""Object files for x86-64, put into memory without LLVM, whose library loads longer than a small proof takes.

Only what LLVM emits for kernels that call nothing and keep nothing: code and constants, and 64-bit addresses
to be filled in. ``image_of`` gives None for everything else, which LLVM loads then.
"""

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HEAD, _SECTION, _SYMBOL, _RELOCATION = (
    struct.Struct(form) for form in ("<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ", "<QQq")
)
_ELF64_LITTLE, _RELOCATABLE, _X86_64 = b"\x7fELF\x02\x01\x01", 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _RELATIVE = 2, 4, 8, 9  # types of sections
_WRITABLE, _ALLOCATED = 1, 2  # their flags
_ADDRESS_64 = 1  # R_X86_64_64: symbol + addend
_DEFINED_BELOW = 0xFF00  # indices of sections from here on have another meaning


@dataclass(frozen=True, slots=True)
class ElfImage:
    """Machine code in executable memory, and the addresses of its symbols; good for as long as it lives."""

    symbols: Mapping[str, int]
    _memory: Any

    def get_function_address(self, name: str) -> int:
        """The address of the symbol ``name``, or 0, as LLVM's engine answers."""
        return self.symbols.get(name, 0)


@dataclass(frozen=True, slots=True)
class _Section:
    """A row of the section table that counts, with the place it gets in memory."""

    kind: int
    flags: int
    offset: int
    size: int
    link: int
    target: int
    place: int


def image_of(code: bytes) -> ElfImage | None:
    """The object ``code``, ready to run; None if it is not of the plain kind or this machine is not x86-64.

    ``code`` is trusted: it runs.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        sections, n_bytes = _sections(code)
        symbols = _symbols(code, sections)
        return _image(code, sections, n_bytes, symbols)
    except (_Unlike, struct.error, OSError, ValueError, IndexError, OverflowError):
        return None


class _Unlike(Exception):
    """This is no object of the plain kind."""


def _sections(code: bytes) -> tuple[list[_Section], int]:
    head = _HEAD.unpack_from(code)
    if not head[0].startswith(_ELF64_LITTLE) or head[1:3] != (_RELOCATABLE, _X86_64):
        raise _Unlike
    found, end = [], 0
    for k in range(head[12]):
        _, kind, flags, _, offset, size, link, target, align, _ = _SECTION.unpack_from(code, head[6] + 64 * k)
        place = 0
        if flags & _ALLOCATED and size:
            if flags & _WRITABLE or kind == _NO_BITS or offset + size > len(code):
                raise _Unlike
            place = -(-end // max(align, 1)) * max(align, 1)
            end = place + size
        found.append(_Section(kind, flags, offset, size, link, target, place))
    return found, end


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[str, int | None]]:
    """(name, place in memory) of each symbol; None for one that has no place."""
    (table,) = [section for section in sections if section.kind == _SYMBOLS] or [None]
    if table is None:
        raise _Unlike
    names, found = sections[table.link].offset, list[tuple[str, int | None]]()
    for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, _, _, section, value, _ = _SYMBOL.unpack_from(code, at)
        text = code[names + name : code.index(b"\0", names + name)].decode()
        is_placed = 0 < section < _DEFINED_BELOW and sections[section].flags & _ALLOCATED
        found.append((text, sections[section].place + value if is_placed else None))
    return found


def _image(
    code: bytes, sections: list[_Section], n_bytes: int, symbols: list[tuple[str, int | None]]
) -> ElfImage:
    memory = mmap.mmap(-1, max(n_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for one in sections:
        if one.flags & _ALLOCATED and one.size:
            memory[one.place : one.place + one.size] = code[one.offset : one.offset + one.size]
    for one in sections:
        if one.kind in (_RELOCATIONS, _RELATIVE) and sections[one.target].flags & _ALLOCATED:
            _relocate(code, one, sections[one.target], symbols, memory, start)
    if ctypes.CDLL(None, use_errno=True).mprotect(
        ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), mmap.PROT_READ | mmap.PROT_EXEC
    ):
        raise OSError(ctypes.get_errno(), "executable memory is refused")
    return ElfImage({name: start + place for name, place in symbols if name and place is not None}, memory)


def _relocate(
    code: bytes,
    table: _Section,
    target: _Section,
    symbols: list[tuple[str, int | None]],
    memory: mmap.mmap,
    start: int,
) -> None:
    """Fill in the addresses that ``table`` asks for. Raises _Unlike for another kind or an unknown symbol."""
    if table.kind == _RELATIVE:
        raise _Unlike
    for at in range(table.offset, table.offset + table.size, _RELOCATION.size):
        offset, info, addend = _RELOCATION.unpack_from(code, at)
        place = symbols[info >> 32][1]
        if info & 0xFFFFFFFF != _ADDRESS_64 or place is None or offset + 8 > target.size:
            raise _Unlike
        struct.pack_into("<q", memory, target.place + offset, start + place + addend)
