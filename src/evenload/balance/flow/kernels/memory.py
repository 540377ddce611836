"""One block of memory for all arrays of a router, so that its kernel takes one argument for them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 8  # words of 8 bytes in a cache line: where each array begins
SCRATCH_ROWS = 11  # per thread: 4 of int64, 3 of float64, and 4 for twice as many of int32


def lay_out(
    shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
) -> tuple[NDArray[np.int64], dict[str, NDArray]]:
    """A block of zeros, and arrays cut from it by name.

    The block begins with a table: word i is the start of array i, and one more word is the end of the last.
    """
    sizes = [-(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 8) for shape, dtype in shapes.values()]
    where = [-(-(len(sizes) + 1) // LINE) * LINE]
    for size in sizes:
        where.append(where[-1] + -(-size // LINE) * LINE)
    block = np.zeros(where[-1], np.int64)
    block[: len(where)] = where
    arrays = {}
    for at, (name, (shape, dtype)) in zip(where, shapes.items(), strict=False):
        n = int(np.prod(shape))
        arrays[name] = block[at:].view(dtype)[:n].reshape(shape)
    return block, arrays


def scratch_shape(n_parts: int, n_gpus: int, n_rows: int) -> tuple[int, int, int]:
    """[threads, rows, words] of the kernel's scratch, for so many GPUs, and rows of one layer."""
    return n_parts, SCRATCH_ROWS, -(-max(n_gpus + 2, n_rows) // LINE) * LINE
