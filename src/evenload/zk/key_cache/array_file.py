"""A file of arrays that are used where they lie, mapped into memory: head, then each array on a cache line.

16 bytes magic, u64 length of the head, SHA-256 of the head, the head in JSON, the arrays. The head has the
digest of each small array; the large ones are not read here.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenload._private_files import open_own, whole_file

_MAGIC = b"evenload arrays\n"
_START = struct.Struct("<16sQ32s")
_LINE = 64
_SMALL_BYTES = 1 << 16
_MOST_HEAD_BYTES = 1 << 26


def write_arrays(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file whole or not at all, for this user alone; replaces what is there.

    facts  of anything that JSON can hold.  Raises OSError.
    """
    head, parts = _layout(facts, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with whole_file(path) as file:
        file.write(_START.pack(_MAGIC, len(head), hashlib.sha256(head).digest()) + head)
        for array in parts:
            file.write(bytes(-file.tell() % _LINE))
            file.write(array.reshape(-1).view(np.uint8).data)


def map_arrays(path: Path, what: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(facts, arrays) of the file, the arrays read-only; None if there is none or it is damaged.

    Raises ConfigError if others can have written it, OSError. ``what`` it holds, in words.
    """
    try:
        fd = open_own(path, what)
    except FileNotFoundError:
        return None
    try:
        memory = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except ValueError:  # an empty file
        return None
    finally:
        os.close(fd)
    try:
        return _read(memory)
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        return None


def _layout(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[bytes, list[np.ndarray]]:
    table, at = {}, 0
    for name, array in arrays.items():
        at += -at % _LINE
        digest = _digest(array.reshape(-1).view(np.uint8).data) if array.nbytes <= _SMALL_BYTES else ""
        table[name] = [array.dtype.str, list(array.shape), at, digest]
        at += array.nbytes
    head = json.dumps({"facts": dict(facts), "arrays": table, "n_bytes": at}).encode()
    head += b" " * (-(_START.size + len(head)) % _LINE)
    return head, list(arrays.values())


def _read(memory: mmap.mmap) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    magic, length, digest = _START.unpack_from(memory)
    head = memory[_START.size : _START.size + min(length, _MOST_HEAD_BYTES)]
    if magic != _MAGIC or hashlib.sha256(head).digest() != digest:
        return None
    known, start = json.loads(head), _START.size + length
    if len(memory) != start + known["n_bytes"]:
        return None
    arrays = {}
    for name, (dtype, shape, at, small) in known["arrays"].items():
        kind = np.dtype(dtype)
        n = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(memory, kind, n, start + at).reshape(shape)
        if small and _digest(memory[start + at : start + at + n * kind.itemsize]) != small:
            return None
    return known["facts"], arrays


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
