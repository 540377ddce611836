"""Products of small matrices added to weights: by a kernel of our own where there is one, else by torch.

torch's library of products knows some makers' processors only, and uses half of the vectors of others.
"""

import functools

import torch
from torch import Tensor

from evenload._terminal import log_of
from evenload.errors import EvenloadError
from evenload.gpu.llvm.products import ProductShape, product_program

__all__ = ["add_product"]

MOST_BYTES = 256 << 10  # of a client's right factor, which is read again for each tile of rows
DTYPES = (torch.float32, torch.float64)

log = log_of(__name__)


def add_product(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """weight [K, m, n] += left [K, m, depth] @ right [K, depth, n], all on the CPU and of one dtype."""
    program = None
    if torch.get_num_threads() == 1:  # torch shares a product out among its threads
        program = _program_for(
            weight.shape, weight.stride(), left.shape, left.stride(), right.stride(), weight.dtype
        )
    if program is None:
        weight.baddbmm_(left, right)
    else:
        program.add(left.data_ptr(), right.data_ptr(), weight.data_ptr(), len(weight))


@functools.cache
def _program_for(
    shape: tuple[int, ...],
    into: tuple[int, ...],
    factor: tuple[int, ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: torch.dtype,
):
    """The program for tensors of these shapes and strides; None if torch is as fast, or it cannot be had."""
    (_, rows, columns), depth = shape, factor[2]
    is_near = depth * columns * dtype.itemsize <= MOST_BYTES
    if dtype not in DTYPES or not (into[2] == right[2] == 1 and is_near and rows and columns):
        return None
    product = ProductShape(rows, columns, depth, (left[0], left[1], left[2]), right[:2], into[:2])  # pyrefly: ignore
    try:
        from evenload.gpu.llvm.field.floats import lanes_for

        return product_program(product, lanes_for(columns, dtype.itemsize), dtype.itemsize)
    except ImportError:  # without the kernels extra; MissingExtra is one
        return None
    except EvenloadError as error:
        log.warning(f"products of small matrices are left to torch, which is slower: {error}")
        return None
