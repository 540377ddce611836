"""How images of stacked clients lie in memory, and which kernels that is for.

    samples    a vector holds one place of many samples: for full batches, whatever the channels
    channels   a vector holds many channels of one place: for batches that do not fill a vector

Images are [clients, samples, channels, height, width] in torch's eyes; only their strides differ.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from evenload._optional import is_installed
from evenload._terminal import log_of
from evenload.errors import EvenloadError
from evenload.gpu.llvm.conv.geometry import Geometry, channel_scratch_bytes, scratch_bytes
from evenload.gpu.llvm.conv.programs import channel_program, conv_program, pool_program

Layout = Literal["samples", "channels"]

KERNEL_DTYPES = (torch.float32, torch.float64)
MOST_SCRATCH = 3 << 20  # bytes: a block of padded images stays near a core
MOST_WEIGHTS = 1 << 20  # bytes: a client's weights stay near it, too
LEAST_FILLED = 0.6  # of a vector's lanes, below which torch's own convolution is as fast
WORTH_TURNING = 1.25  # times less work: what another order of memory than the next layer's should gain
FEW_CHANNELS = 4  # of pictures as they come: their gradient is not needed
# Rows of taps and windows are written out in full: larger ones would take seconds to compile.
WIDEST_KERNEL = 32
LARGEST_WINDOW = 8

log = log_of(__name__)


@functools.cache
def has_kernels() -> bool:
    return sys.byteorder == "little" and is_installed("llvmlite")


def geometry_of(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Geometry:
    """The geometry of x [..., channels, height, width] and weight [..., out, in, k_height, k_width]."""
    (height, width), (k_height, k_width) = x.shape[-2:], weight.shape[-2:]
    return Geometry(x.shape[-3], weight.shape[-4], height, width, k_height, k_width, *padding)


def layout_for(g: Geometry, samples: int, n_bytes: int) -> Layout:
    """The order of memory in which less of the vectors stays empty, forward and backward."""
    widest, lanes = _widest_lanes(n_bytes), lanes_of(samples, n_bytes)
    n_products = 2 if g.c_in <= FEW_CHANNELS else 3
    by_samples = n_products * widest / lanes * _work(samples, lanes)
    by_channels = 2 * _work(g.c_out, widest) + (n_products - 2) * _work(g.c_in, widest)
    is_near = scratch_bytes(g, lanes, n_bytes) <= MOST_SCRATCH
    return "samples" if is_near and by_samples < WORTH_TURNING * by_channels else "channels"


def _work(n: int, lanes: int) -> float:
    """Numbers in the vectors that hold ``n``, for each that counts."""
    return -(-n // lanes) * lanes / n


def usable_layout(g: Geometry, samples: int, n_bytes: int) -> Layout | None:
    """The order of memory for kernels that can do it faster than torch; None if there are none."""
    if not (has_kernels() and g.is_possible and samples and g.k_width <= WIDEST_KERNEL):
        return None
    layout = layout_for(g, samples, n_bytes)
    if layout == "samples":
        lanes = lanes_of(samples, n_bytes)
        is_fast = _work(samples, lanes) * LEAST_FILLED <= 1
        return layout if is_fast and is_ready(conv_program, g, lanes, n_bytes) else None
    lanes = _widest_lanes(n_bytes)
    is_near = g.c_in * g.c_out * g.taps * n_bytes <= MOST_WEIGHTS
    is_near = is_near and channel_scratch_bytes(g, lanes, n_bytes) <= MOST_SCRATCH
    is_fast = is_near and _work(g.c_out, lanes) * LEAST_FILLED <= 1
    return layout if is_fast and is_ready(channel_program, g, lanes, n_bytes) else None


def can_pool(x: Tensor, size: int) -> bool:
    """Are there kernels for x [..., samples, channels, height, width] and windows ``size`` x ``size``?"""
    if not (has_kernels() and x.numel() and size <= min(LARGEST_WINDOW, *x.shape[-2:])):
        return False
    n_bytes = x.element_size()
    return is_ready(pool_program, *x.shape[-2:], size, lanes_of(x.shape[-4], n_bytes), n_bytes)


@functools.cache
def is_ready(program: Callable[..., Any], *of: Any) -> bool:
    """Can this program be had? Not if its cache folder is open to others: then the step is slower."""
    try:
        program(*of)
    except EvenloadError as error:
        _warn(f"convolutions and pooling are left to torch, which is slower: {error}")
        return False
    return True


@functools.cache
def _warn(text: str) -> None:
    """Log a warning, once for each text."""
    log.warning(text)


def lanes_of(n: int, n_bytes: int) -> int:
    """Numbers in a vector along which ``n`` lie."""
    from evenload.gpu.llvm.field.floats import lanes_for

    return lanes_for(n, n_bytes)


def _widest_lanes(n_bytes: int) -> int:
    return lanes_of(1 << 20, n_bytes)


def laid_out(x: Tensor, layout: Layout) -> Tensor:
    """Images [..., samples, channels, height, width] in the order of memory that ``layout`` says."""
    innermost = -4 if layout == "samples" else -3
    return x.movedim(innermost, -1).contiguous().movedim(-1, innermost)


def layout_of(x: Tensor) -> Layout:
    """The order in which images [clients, samples, channels, height, width] lie; "samples" for any other."""
    is_channels = (
        x.shape[-3] > 1 and x.movedim(-3, -1).is_contiguous() and not x.movedim(-4, -1).is_contiguous()
    )
    return "channels" if is_channels else "samples"


def empty_images(
    shape: tuple[int, ...], like: Tensor, layout: Layout, dtype: torch.dtype | None = None
) -> Tensor:
    """An empty tensor [clients, samples, channels, height, width] in this order of memory."""
    clients, samples, channels, *sides = shape
    if layout == "samples":
        return like.new_empty((clients, channels, *sides, samples), dtype=dtype).movedim(-1, 1)
    return like.new_empty((clients, samples, *sides, channels), dtype=dtype).movedim(-1, 2)


def prepared(g: Geometry, x: Tensor, layout: Layout):
    """The program, its scratch, and the numbers of clients and samples."""
    n_bytes = x.element_size()
    if layout == "samples":
        lanes = lanes_of(x.shape[1], n_bytes)
        program, size = conv_program(g, lanes, n_bytes), scratch_bytes(g, lanes, n_bytes)
    else:
        lanes = _widest_lanes(n_bytes)
        program, size = channel_program(g, lanes, n_bytes), channel_scratch_bytes(g, lanes, n_bytes)
    return program, torch.empty(size, dtype=torch.uint8), x.shape[:2]
