"""Leaves from wherever they come, as rows: uint8 [n, width], C-contiguous."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from evenload.errors import ConfigError
from evenload.gpu.llvm.rows import empty
from evenload.merkle.scheme import DIGEST_BYTES, Scheme


def as_rows(leaves: Any, scheme: Scheme, width: int | None = None) -> np.ndarray:
    """``leaves`` as rows of equal width; ``width``: what it has to be.

    An array must be uint8 [n, width]; a list holds bytes of equal length. Raises ConfigError on anything
    else, and on rows that cannot be leaves of ``scheme``.
    """
    if isinstance(leaves, np.ndarray):
        rows = leaves
    elif isinstance(leaves, bytes | bytearray | memoryview | str) or not isinstance(leaves, Iterable):
        raise ConfigError(
            f"{type(leaves).__name__} is no set of leaves",
            hint="give a uint8 array [n, 32] or a list of bytes",
        )
    else:
        rows = _stacked(list(leaves))
    if rows.dtype != np.uint8 or rows.ndim != 2:
        raise ConfigError(
            f"leaves are {rows.dtype} {list(rows.shape)}, not uint8 [n, width]",
            hint="view other types as bytes: array.view(numpy.uint8).reshape(len(array), -1)",
        )
    if width is not None and len(rows) and rows.shape[1] != width:
        raise ConfigError(
            f"leaves of {rows.shape[1]} bytes after leaves of {width}", hint="give records of one length"
        )
    rows = np.ascontiguousarray(rows)
    if not scheme.hashes_leaves and len(rows):
        scheme.check_nodes(rows)
    return rows


def _stacked(records: list[Any]) -> np.ndarray:
    if not records:
        return np.empty((0, 32), np.uint8)
    for k, record in enumerate(records):
        if not isinstance(record, bytes | bytearray | memoryview):
            raise ConfigError(f"leaf {k} is a {type(record).__name__}", hint="leaves are bytes")
        if len(record) != len(records[0]):
            raise ConfigError(
                f"leaf {k} has {len(record)} bytes, leaf 0 has {len(records[0])}",
                hint="append_records takes records of different lengths",
            )
    return np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)


def new_nodes(n: int) -> np.ndarray:
    """[n, 32] uint8 that begin on a cache line, not filled; pages are not touched until written."""
    return empty(n, DIGEST_BYTES, np.uint8)
