"""Arrays that kernels take: uint64 rows of little-endian words, starting on a cache line."""

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["address", "empty", "from_integers", "to_integers", "zeros"]


def empty(n: int, row_bytes: int, dtype: type = np.uint64) -> np.ndarray:
    """[n, row_bytes / itemsize] on a 64-byte boundary, not filled; pages are not touched until written."""
    raw = np.empty(n * row_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * row_bytes].view(dtype).reshape(n, -1)


def zeros(n: int, row_bytes: int, dtype: type = np.uint64) -> np.ndarray:
    """Rows as of ``empty``, filled with zeros."""
    raw = np.zeros(n * row_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * row_bytes].view(dtype).reshape(n, -1)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def from_integers(values: Iterable[int], words: int = 4) -> np.ndarray:
    """[n, words] uint64 of non-negative integers below 2^(64 * words)."""
    content = b"".join(value.to_bytes(8 * words, "little") for value in values)
    rows = empty(len(content) // (8 * words), 8 * words)
    rows[:] = np.frombuffer(content, np.uint64).reshape(-1, words)
    return rows


def to_integers(rows: np.ndarray, words: int = 4) -> Sequence[int]:
    """Every group of ``words`` words of a uint64 array as an integer."""
    content, size = np.ascontiguousarray(rows).tobytes(), 8 * words
    return [int.from_bytes(content[k : k + size], "little") for k in range(0, len(content), size)]
