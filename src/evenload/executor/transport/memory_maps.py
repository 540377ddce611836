"""Pickling of arrays that lie in the memory map of a file: the file travels by its name, not its contents.

    array ──► file, inode, offset, shape, strides, dtype ──► the same bytes of the same file

As with joblib, a worker that writes into such an array writes into the file, and nothing is copied, however
large the file is. Copied like any other array are those of a file that is mapped for the caller alone (mode
"c"), as its changes are in no file, and those of a file that has no name any more.
"""

import contextlib
import mmap
import os
import sys
import warnings
from typing import Any

from evenload.errors import quoted

GONE = " (deleted)"
COPY = "send a copy, numpy.array(...), or keep the file where all workers see it"


class MemoryMaps:
    """The memory maps of one message, with the names that their files have now."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[str, int] | None] = {}

    def reduce(self, array: Any) -> tuple | None:
        """Reduce ``array`` to its place in a file; None if it lies in none that another process may share."""
        base = None if array.base is None else _map_of(array)
        if base is None or base.mode == "c" or array.dtype.hasobject or not array.nbytes:
            return None
        key = id(base.base)  # alive while the message is made: the array holds it
        if key not in self._files:
            self._files[key] = _file_of(base)
        file = self._files[key]
        if file is not None:
            return _open, (*file, *_place(array, base))
        if array.flags.writeable:
            warnings.warn(
                f"a memory map's file {quoted(base.filename)} has no name any more: workers get a copy of the"
                " array, and the file has nothing of what they write; keep the file until the run is over",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


def _place(array: Any, base: Any) -> tuple:
    """Return the arguments of ``_open`` after the file."""
    start = low = high = array.__array_interface__["data"][0]
    for n, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, (n - 1) * stride)
        high += max(0, (n - 1) * stride)
    offset = base.offset + low - base.__array_interface__["data"][0]
    shown = array.shape, array.strides, array.dtype, array.flags.writeable, isinstance(array, type(base))
    return offset, high + array.itemsize - low, start - low, *shown


def _open(
    path: str, inode: int, offset: int, n_bytes: int, first: int, shape: Any, strides: Any, dtype: Any,
    writable: bool, is_map: bool,
) -> Any:  # fmt: skip
    """Map a range of a file and return the array that lies there.

    inode     number of the file in its file system: another file of the same name is refused
    offset    bytes from the begin of the file to the lowest byte of the array
    n_bytes   from there to the end of the highest one
    first     bytes from ``offset`` to element 0; more than 0 where a stride is negative
    writable  whether the array may be written to, and with it the file
    is_map    whether the array is a ``numpy.memmap``
    Raises OSError if the file is not there, is another one, or was cut short.
    """
    import numpy
    from numpy.lib.stride_tricks import as_strided

    try:
        status = os.stat(path)
    except OSError as error:
        raise OSError(f"a worker cannot map {quoted(path)}: {error.strerror}; {COPY}") from error
    if status.st_ino != inode or status.st_size < offset + n_bytes:
        raise OSError(
            f"{quoted(path)} is another file than the one that was mapped, or was cut short; {COPY}"
        )
    mode = "r+" if writable else "r"
    whole = numpy.memmap(path, numpy.uint8, mode, offset=offset, shape=(n_bytes,))
    element = whole[first : first + dtype.itemsize].view(dtype)
    array = as_strided(element, shape, strides, subok=True, writeable=writable)
    return array if is_map else numpy.asarray(array)


def _map_of(array: Any) -> Any:
    """Return the ``numpy.memmap`` that was made of a file and that ``array`` shows a part of, or None."""
    memmap = sys.modules["numpy"].memmap
    while array is not None:
        base = getattr(array, "base", None)
        if isinstance(base, mmap.mmap):
            is_named = isinstance(array, memmap) and array.filename is not None
            return array if is_named else None
        array = base
    return None


def _file_of(base: Any) -> tuple[str, int] | None:
    """Return name and inode of the file of a ``numpy.memmap``; None if it has no name any more."""
    # The name that it was opened by may be another file's by now; the system knows better.
    is_linux = sys.platform == "linux"
    path = _mapped_path(base.__array_interface__["data"][0]) if is_linux else os.fspath(base.filename)
    with contextlib.suppress(OSError):
        return None if path is None else (path, os.stat(path).st_ino)
    return None


def _mapped_path(address: int) -> str | None:
    """Return the name of the file that the system has mapped at ``address``."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as rows:
        for row in rows:
            start, _, rest = row.partition("-")
            if int(start, 16) <= address < int(rest.partition(" ")[0], 16):
                path = row.rstrip("\n").split(maxsplit=5)[5:]
                return path[0].replace("\\012", "\n") if path and not path[0].endswith(GONE) else None
    return None
