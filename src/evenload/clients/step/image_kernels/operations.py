"""Convolutions and pooling of stacked clients as torch operations, computed by kernels of our own on a CPU.

    convolve, convolve_input_gradient, convolve_weight_gradient      ``gpu.llvm.conv.kernels``
    pool, pool_gradient                                              ``gpu.llvm.conv.pooling``

Images are [clients, samples, channels, height, width] in any order of memory; results have their samples
innermost, and images that come so are not copied. As operations of torch's registry they can be traced and
be part of a compiled graph.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evenload._optional import is_installed
from evenload._terminal import log_of
from evenload.errors import EvenloadError
from evenload.gpu.llvm.conv.geometry import Geometry, scratch_bytes
from evenload.gpu.llvm.conv.kernels import conv_program
from evenload.gpu.llvm.conv.pooling import pool_program

__all__ = ["KERNEL_DTYPES", "can_pool", "geometry_of", "is_worth_it", "samples_last"]

KERNEL_DTYPES = (torch.float32, torch.float64)
MOST_SCRATCH = 3 << 20  # bytes: a block of padded images stays near a core
LEAST_FILLED = 0.6  # of a vector's lanes, below which torch's own convolution is as fast
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


def is_worth_it(g: Geometry, samples: int, n_bytes: int) -> bool:
    """Can the kernels do it, and faster than torch?"""
    if not (has_kernels() and g.is_possible and samples and g.k_width <= WIDEST_KERNEL):
        return False
    lanes = _lanes(samples, n_bytes)
    filled = samples / (-(-samples // lanes) * lanes)
    is_fast = filled >= LEAST_FILLED and scratch_bytes(g, lanes, n_bytes) <= MOST_SCRATCH
    return is_fast and _is_ready(conv_program, g, lanes, n_bytes)


def can_pool(x: Tensor, size: int) -> bool:
    """Are there kernels for x [..., samples, channels, height, width] and windows ``size`` x ``size``?"""
    if not (has_kernels() and x.numel() and size <= min(LARGEST_WINDOW, *x.shape[-2:])):
        return False
    n_bytes = x.element_size()
    return _is_ready(pool_program, *x.shape[-2:], size, _lanes(x.shape[-4], n_bytes), n_bytes)


@functools.cache
def _is_ready(program: Callable[..., Any], *of: Any) -> bool:
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


def _lanes(samples: int, n_bytes: int) -> int:
    from evenload.gpu.llvm.field.floats import lanes_for

    return lanes_for(samples, n_bytes)


def samples_last(x: Tensor) -> Tensor:
    """The same images [..., samples, channels, height, width], their samples innermost in memory."""
    return x.movedim(-4, -1).contiguous().movedim(-1, -4)


_LIBRARY = torch.library.Library("evenload", "DEF")
_PADS = "int pad_height, int pad_width"
_LIBRARY.define(f"convolve(Tensor x, Tensor weight, Tensor bias, {_PADS}) -> Tensor")
_LIBRARY.define(
    f"convolve_input_gradient(Tensor grad, Tensor weight, int height, int width, {_PADS}) -> Tensor"
)
_LIBRARY.define(
    f"convolve_weight_gradient(Tensor x, Tensor grad, int k_height, int k_width, {_PADS}) -> (Tensor, Tensor)"
)
_LIBRARY.define("pool(Tensor x, int size) -> (Tensor, Tensor)")
_LIBRARY.define("pool_gradient(Tensor grad, Tensor places, int size, int height, int width) -> Tensor")


def _empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor [clients, samples, channels, height, width], the samples innermost."""
    clients, samples, *image = shape
    return like.new_empty((clients, *image, samples), dtype=dtype).movedim(-1, 1)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, pad_height: int, pad_width: int) -> Tensor:
    g = geometry_of(x, weight, (pad_height, pad_width))
    y = _empty((*x.shape[:2], g.c_out, g.out_height, g.out_width), x)
    x, weight, bias = samples_last(x), weight.contiguous(), bias.contiguous()
    program, scratch, sizes = _prepared(g, x)
    program.forward(*map(Tensor.data_ptr, (x, weight, bias, y, scratch)), *sizes)
    return y


def _convolve_input_gradient(
    grad: Tensor, weight: Tensor, height: int, width: int, pad_height: int, pad_width: int
) -> Tensor:
    dx = _empty((*grad.shape[:2], weight.shape[-3], height, width), grad)
    g = geometry_of(dx, weight, (pad_height, pad_width))
    grad, weight = samples_last(grad), weight.contiguous()
    program, scratch, sizes = _prepared(g, grad)
    program.input_gradient(*map(Tensor.data_ptr, (grad, weight, dx, scratch)), *sizes)
    return dx


def _convolve_weight_gradient(
    x: Tensor, grad: Tensor, k_height: int, k_width: int, pad_height: int, pad_width: int
) -> tuple[Tensor, Tensor]:
    dweight = x.new_empty((len(x), grad.shape[2], x.shape[2], k_height, k_width))
    dbias = x.new_empty(dweight.shape[:2])
    g = geometry_of(x, dweight, (pad_height, pad_width))
    x, grad = samples_last(x), samples_last(grad)
    program, scratch, sizes = _prepared(g, x)
    program.weight_gradient(*map(Tensor.data_ptr, (x, grad, dweight, dbias, scratch)), *sizes)
    return dweight, dbias


def _prepared(g: Geometry, x: Tensor):
    """The program, its scratch, and the numbers of clients and samples."""
    lanes = _lanes(x.shape[1], x.element_size())
    scratch = torch.empty(scratch_bytes(g, lanes, x.element_size()), dtype=torch.uint8)
    return conv_program(g, lanes, x.element_size()), scratch, x.shape[:2]


def _pool(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    largest, places = _pool_shapes(x, size)
    x = samples_last(x)
    clients, samples, channels, height, width = x.shape
    program = _pool_program(height, width, size, x)
    program.forward(*map(Tensor.data_ptr, (x, largest, places)), clients * channels, samples)
    return largest, places


def _pool_shapes(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:3], x.shape[3] // size, x.shape[4] // size)
    return _empty(shape, x), _empty(shape, x, torch.int32 if x.element_size() == 4 else torch.int64)


def _pool_program(height: int, width: int, size: int, x: Tensor):
    return pool_program(height, width, size, _lanes(x.shape[1], x.element_size()), x.element_size())


def _pool_gradient(grad: Tensor, places: Tensor, size: int, height: int, width: int) -> Tensor:
    dx = _pool_gradient_shape(grad, places, size, height, width)
    clients, samples, channels = grad.shape[:3]
    program = _pool_program(height, width, size, grad)
    grad, places = samples_last(grad), samples_last(places)
    program.backward(*map(Tensor.data_ptr, (grad, places, dx)), clients * channels, samples)
    return dx


def _pool_gradient_shape(grad: Tensor, places: Tensor, size: int, height: int, width: int) -> Tensor:
    return _empty((*grad.shape[:3], height, width), grad)


@torch.library.register_fake("evenload::convolve", lib=_LIBRARY)
def _(x: Tensor, weight: Tensor, bias: Tensor, pad_height: int, pad_width: int) -> Tensor:
    g = geometry_of(x, weight, (pad_height, pad_width))
    return _empty((*x.shape[:2], g.c_out, g.out_height, g.out_width), x)


@torch.library.register_fake("evenload::convolve_input_gradient", lib=_LIBRARY)
def _(grad: Tensor, weight: Tensor, height: int, width: int, pad_height: int, pad_width: int) -> Tensor:
    return _empty((*grad.shape[:2], weight.shape[-3], height, width), grad)


@torch.library.register_fake("evenload::convolve_weight_gradient", lib=_LIBRARY)
def _(x: Tensor, grad: Tensor, k_height: int, k_width: int, pad_height: int, pad_width: int):
    dweight = x.new_empty((len(x), grad.shape[2], x.shape[2], k_height, k_width))
    return dweight, x.new_empty(dweight.shape[:2])


torch.library.register_fake("evenload::pool", _pool_shapes, lib=_LIBRARY)
torch.library.register_fake("evenload::pool_gradient", _pool_gradient_shape, lib=_LIBRARY)
for _name, _fn in {
    "convolve": _convolve,
    "convolve_input_gradient": _convolve_input_gradient,
    "convolve_weight_gradient": _convolve_weight_gradient,
    "pool": _pool,
    "pool_gradient": _pool_gradient,
}.items():
    _LIBRARY.impl(_name, _fn, "CPU")
