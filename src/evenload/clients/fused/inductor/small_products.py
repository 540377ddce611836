"""Products of many clients' small matrices: by a kernel of our own where there is one, else by torch.

torch's library of products knows some makers' processors only, and uses half of the vectors of others.
"""

import functools

import torch
from torch import Tensor

from evenload._terminal import log_of
from evenload.errors import EvenloadError
from evenload.gpu.llvm.products import ProductShape, panel_bytes, product_program
from evenload.gpu.llvm.program import Program

MOST_BYTES = 256 << 10  # of the columns of a right factor that are read again for each tile of rows
DTYPES = (torch.float32, torch.float64)
ALL_ALIVE = 0

log = log_of(__name__)

Steps = tuple[int, ...]


def add_product(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """weight [K, m, n] += left [K, m, depth] @ right [K, depth, n], all on the CPU and of one dtype."""
    program = None
    if torch.get_num_threads() == 1:  # torch shares a product out among its threads
        program = program_for(
            weight.shape, left.shape[2], weight.stride(), left.stride(), right.stride(), weight.dtype
        )
    if program is None:
        weight.baddbmm_(left, right)
    else:
        program.multiply(left.data_ptr(), right.data_ptr(), weight.data_ptr(), len(weight), ALL_ALIVE)


@functools.cache
def program_for(
    shape: tuple[int, ...],
    depth: int,
    into: Steps,
    left: Steps,
    right: Steps,
    dtype: torch.dtype,
    adds: bool = True,
) -> Program | None:
    """The program for a product [K, rows, columns] = ``shape`` of factors with these strides.

    None if torch is as fast, or it cannot be had.
    """
    _, rows, columns = shape
    is_turned = right[2] != 1
    is_usable = dtype in DTYPES and into[2] == 1 and 1 in right[1:] and rows and columns and depth
    if not is_usable:
        return None
    steps = (right[0], right[2] if is_turned else right[1])
    product = ProductShape(rows, columns, depth, left, steps, into[:2], is_turned, adds)  # pyrefly: ignore
    try:
        from evenload.gpu.llvm.field.floats import lanes_for

        lanes = lanes_for(columns, dtype.itemsize)
        if panel_bytes(product, lanes, dtype.itemsize) > MOST_BYTES:
            return None
        return product_program(product, lanes, dtype.itemsize)
    except ImportError:  # without the kernels extra; MissingExtra is one
        return None
    except EvenloadError as error:
        log.warning(f"products of small matrices are left to torch, which is slower: {error}")
        return None
