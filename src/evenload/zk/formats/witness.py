"""The .wtns format: the value of every wire of a circuit, plain (not Montgomery) integers below r."""

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from evenload.errors import FormatError, quoted
from evenload.gpu.field import FR
from evenload.gpu.llvm.rows import rows_not_below
from evenload.zk.formats.container import Source, open_container, write_container

TITLES = {1: "header", 2: "values"}


def read_witness(
    source: Source, name: str | None = None, accept: Callable[[int], None] | None = None
) -> np.ndarray:
    """[n, 4] uint64 little-endian words, every value below r, the first one 1.

    accept  called with the number of values before they are read, and may raise: a file of another size than
            wanted is not worth the memory

    Raises FormatError naming section and byte if the file is damaged, of another field, or a value is not
    canonical.
    """
    box = open_container(source, b"wtns", 2, TITLES, name)
    try:
        if box.length(1) != 40:
            raise box.fault(1, 0, f"holds {box.length(1)} bytes, a header over BN254 has 40")
        header = box.read(1)
        n8, n = struct.unpack_from("<I", header)[0], struct.unpack_from("<I", header, 36)[0]
        if n8 != 32 or int.from_bytes(header[4:36], "little") != FR.modulus:
            raise box.fault(
                1, 0, "the field is not BN254's Fr", hint="only circuits over bn128 are supported"
            )
        box.length(2, 32 * n, f"{n} values")
        if accept:
            accept(n)
        if not n:
            raise box.fault(2, 0, "holds no value, but wire 0 must be 1")
        values = box.rows(2, 32).view(np.uint64)
        check_witness(values, lambda k, why: box.fault(2, 32 * k, f"value {k} {why}"))
        return values
    finally:
        box.close()


def check_witness(values: np.ndarray, fault=lambda k, why: FormatError(f"witness value {k} {why}")) -> None:
    """Raise ``fault(position, why)`` unless every row of [n, 4] uint64 is below r and the first is 1."""
    bad = rows_not_below(values, FR.modulus)
    if len(bad):
        raise fault(int(bad[0]), "is not below r")
    if values[0].tolist() != [1, 0, 0, 0]:
        raise fault(0, "is not 1, as the constant wire must be")


def witness_from_integers(values: Iterable[int]) -> np.ndarray:
    """[n, 4] uint64 from integers. Raises FormatError if one is negative or not below r, or the first is not
    1."""
    content = bytearray()
    for k, value in enumerate(values):
        if not 0 <= value < FR.modulus:
            raise FormatError(f"witness value {k} is {quoted(value)}, not in [0, r)")
        content += value.to_bytes(32, "little")
    rows = np.frombuffer(bytes(content), np.uint64).reshape(-1, 4)
    if not len(rows):
        raise FormatError("a witness holds at least the constant wire")
    check_witness(rows)
    return rows


def write_witness(target: str | Path | BinaryIO, values: np.ndarray) -> None:
    """Write [n, 4] uint64 as .wtns, version 2."""
    prime = FR.modulus.to_bytes(32, "little")
    header = struct.pack("<I", 32) + prime + struct.pack("<I", len(values))
    body = np.ascontiguousarray(values, np.uint64).tobytes()
    return write_container(target, b"wtns", 2, [(1, [header]), (2, [body])])
