"""Convolutions and pooling of stacked clients as torch operations, computed by kernels of our own on a CPU.

    convolve, convolve_input_gradient, convolve_weight_gradient      ``gpu.llvm.conv``
    pool, pool_gradient                                              ``gpu.llvm.conv.pooling``

Images are [clients, samples, channels, height, width] in any order of memory; results come in the order that
``layout`` names, and images that come so are not copied. As operations of torch's registry they can be traced
and be part of a compiled graph.
"""

import torch
from torch import Tensor

from evenload.clients.step.image_kernels.layout import (
    Layout,
    empty_images,
    geometry_of,
    laid_out,
    lanes_of,
    layout_for,
    prepared,
)
from evenload.gpu.llvm.conv.geometry import Geometry
from evenload.gpu.llvm.conv.programs import pool_program

__all__: list[str] = []

_LIBRARY = torch.library.Library("evenload", "DEF")
_PADS = "int pad_height, int pad_width"
_LIBRARY.define(f"convolve(Tensor x, Tensor weight, Tensor bias, {_PADS}) -> Tensor")
_LIBRARY.define(
    f"convolve_input_gradient(Tensor grad, Tensor weight, int height, int width, {_PADS}) -> Tensor"
)
_LIBRARY.define(
    f"convolve_weight_gradient(Tensor x, Tensor grad, int k_height, int k_width, {_PADS}) -> (Tensor, Tensor)"
)
_LIBRARY.define("pool(Tensor x, int size, bool is_channels) -> (Tensor, Tensor)")
_LIBRARY.define(
    "pool_gradient(Tensor grad, Tensor places, int size, int height, int width, bool is_channels) -> Tensor"
)


def _layout(g: Geometry, x: Tensor) -> Layout:
    return layout_for(g, x.shape[1], x.element_size())


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, pad_height: int, pad_width: int) -> Tensor:
    g = geometry_of(x, weight, (pad_height, pad_width))
    layout = _layout(g, x)
    y = empty_images((*x.shape[:2], g.c_out, g.out_height, g.out_width), x, layout)
    x, weight, bias = laid_out(x, layout), weight.contiguous(), bias.contiguous()
    program, scratch, sizes = prepared(g, x, layout)
    program.forward(*map(Tensor.data_ptr, (x, weight, bias, y, scratch)), *sizes)
    return y


def _convolve_input_gradient(
    grad: Tensor, weight: Tensor, height: int, width: int, pad_height: int, pad_width: int
) -> Tensor:
    dx, g, layout = _input_gradient_shape(grad, weight, height, width, pad_height, pad_width)
    grad, weight = laid_out(grad, layout), weight.contiguous()
    program, scratch, sizes = prepared(g, grad, layout)
    program.input_gradient(*map(Tensor.data_ptr, (grad, weight, dx, scratch)), *sizes)
    return dx


def _input_gradient_shape(
    grad: Tensor, weight: Tensor, height: int, width: int, pad_height: int, pad_width: int
) -> tuple[Tensor, Geometry, Layout]:
    c_out, c_in, k_height, k_width = weight.shape[-4:]
    g = Geometry(c_in, c_out, height, width, k_height, k_width, pad_height, pad_width)
    layout = _layout(g, grad)
    return empty_images((*grad.shape[:2], c_in, height, width), grad, layout), g, layout


def _convolve_weight_gradient(
    x: Tensor, grad: Tensor, k_height: int, k_width: int, pad_height: int, pad_width: int
) -> tuple[Tensor, Tensor]:
    dweight = x.new_empty((len(x), grad.shape[2], x.shape[2], k_height, k_width))
    dbias = x.new_empty(dweight.shape[:2])
    g = geometry_of(x, dweight, (pad_height, pad_width))
    layout = _layout(g, x)
    x, grad = laid_out(x, layout), laid_out(grad, layout)
    program, scratch, sizes = prepared(g, x, layout)
    program.weight_gradient(*map(Tensor.data_ptr, (x, grad, dweight, dbias, scratch)), *sizes)
    return dweight, dbias


def _pool(x: Tensor, size: int, is_channels: bool) -> tuple[Tensor, Tensor]:
    layout = _named(is_channels)
    largest, places = _pool_shapes(x, size, is_channels)
    x = laid_out(x, layout)
    program, sizes = _pool_program(x, size, layout)
    program.forward(*map(Tensor.data_ptr, (x, largest, places)), *sizes)
    return largest, places


def _named(is_channels: bool) -> Layout:
    return "channels" if is_channels else "samples"


def _pool_shapes(x: Tensor, size: int, is_channels: bool) -> tuple[Tensor, Tensor]:
    shape, layout = (*x.shape[:3], x.shape[3] // size, x.shape[4] // size), _named(is_channels)
    whole = torch.int32 if x.element_size() == 4 else torch.int64
    return empty_images(shape, x, layout), empty_images(shape, x, layout, whole)


def _pool_program(x: Tensor, size: int, layout: Layout):
    """The program for x as it is, and its planes and how many numbers lie at each place of one."""
    clients, samples, channels, height, width = x.shape
    planes, innermost = (channels, samples) if layout == "samples" else (samples, channels)
    n_bytes = x.element_size()
    program = pool_program(height, width, size, lanes_of(innermost, n_bytes), n_bytes)
    return program, (clients * planes, innermost)


def _pool_gradient(
    grad: Tensor, places: Tensor, size: int, height: int, width: int, is_channels: bool
) -> Tensor:
    layout = _named(is_channels)
    dx = _pool_gradient_shape(grad, places, size, height, width, is_channels)
    program, sizes = _pool_program(dx, size, layout)
    grad, places = laid_out(grad, layout), laid_out(places, layout)
    program.backward(*map(Tensor.data_ptr, (grad, places, dx)), *sizes)
    return dx


def _pool_gradient_shape(
    grad: Tensor, places: Tensor, size: int, height: int, width: int, is_channels: bool
) -> Tensor:
    return empty_images((*grad.shape[:3], height, width), grad, _named(is_channels))


@torch.library.register_fake("evenload::convolve", lib=_LIBRARY)
def _(x: Tensor, weight: Tensor, bias: Tensor, pad_height: int, pad_width: int) -> Tensor:
    g = geometry_of(x, weight, (pad_height, pad_width))
    return empty_images((*x.shape[:2], g.c_out, g.out_height, g.out_width), x, _layout(g, x))


@torch.library.register_fake("evenload::convolve_input_gradient", lib=_LIBRARY)
def _(grad: Tensor, weight: Tensor, height: int, width: int, pad_height: int, pad_width: int) -> Tensor:
    return _input_gradient_shape(grad, weight, height, width, pad_height, pad_width)[0]


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
