"""Arrays that kernels take: uint64 rows of little-endian words, starting on a cache line."""

from collections.abc import Iterable, Sequence

import numpy as np


def empty(n: int, row_bytes: int, dtype: type = np.uint64) -> np.ndarray:
    """[n, row_bytes / itemsize] on a 64-byte boundary, not filled; pages are not touched until written."""
    return _rows(np.empty(n * row_bytes + 64, np.uint8), n, row_bytes, dtype)


def zeros(n: int, row_bytes: int) -> np.ndarray:
    """Rows as of ``empty``, filled with zeros."""
    return _rows(np.zeros(n * row_bytes + 64, np.uint8), n, row_bytes, np.uint64)


def _rows(raw: np.ndarray, n: int, row_bytes: int, dtype: type) -> np.ndarray:
    start = -raw.ctypes.data % 64
    return raw[start : start + n * row_bytes].view(dtype).reshape(n, row_bytes // np.dtype(dtype).itemsize)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of [n, words] uint64 where kernels may read it."""
    out = empty(len(array), 8 * array.shape[1])
    out[:] = array
    return out


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def from_integers(values: Iterable[int], words: int = 4) -> np.ndarray:
    """[n, words] uint64 of non-negative integers below 2^(64 * words)."""
    content = b"".join(value.to_bytes(8 * words, "little") for value in values)
    rows = empty(len(content) // (8 * words), 8 * words)
    rows[:] = np.frombuffer(content, np.uint64).reshape(-1, words)
    return rows


def rows_not_below(words: np.ndarray, modulus: int) -> np.ndarray:
    """Positions of the rows of [n, 4] uint64 (little-endian words) that are not below ``modulus``."""
    suspects = np.flatnonzero(words[:, 3] >= np.uint64(modulus >> 192))
    values = (int.from_bytes(words[k].tobytes(), "little") for k in suspects)
    return suspects[[value >= modulus for value in values]] if len(suspects) else suspects


def to_integers(rows: np.ndarray, words: int = 4) -> Sequence[int]:
    """Every group of ``words`` words of a uint64 array as an integer."""
    content, size = np.ascontiguousarray(rows).tobytes(), 8 * words
    return [int.from_bytes(content[k : k + size], "little") for k in range(0, len(content), size)]
