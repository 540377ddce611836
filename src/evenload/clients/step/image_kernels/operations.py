"""Convolutions, pooling and dropout of stacked clients as torch operations, by kernels of our own on a CPU.

    convolve, convolve_input_gradient, convolve_weight_gradient      ``gpu.llvm.conv``
    pool, pool_gradient                                              ``gpu.llvm.conv.pooling``
    kept                                                             ``gpu.llvm.keyed_places``

Images are [clients, samples, channels, height, width] in any order of memory; results come in the order that
``layout`` names, and images that come so are not copied. As operations of torch's registry they can be traced
and be part of a compiled graph. The functions at the end differentiate them: for one client, under vmap for
all at once.
"""

import math

import torch
from torch import Tensor

from evenload.clients.step.image_kernels.layout import (
    KERNEL_DTYPES,
    Layout,
    can_pool,
    empty_images,
    geometry_of,
    has_kernels,
    is_ready,
    laid_out,
    lanes_of,
    layout_for,
    layout_of,
    prepared,
    usable_layout,
)
from evenload.clients.step.vmap_rules import FirstDerivative, clients_first
from evenload.gpu.llvm.conv.geometry import Geometry
from evenload.gpu.llvm.conv.programs import pool_program
from evenload.gpu.llvm.keyed_places import kept_program

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
_LIBRARY.define("kept(Tensor keys, int salt, int n, int threshold, ScalarType dtype) -> Tensor")


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


def _kept(keys: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
    keys, out = keys.contiguous(), _kept_shape(keys, salt, n, threshold, dtype)
    kept_program(dtype.itemsize).kept(keys.data_ptr(), out.data_ptr(), len(keys), n, salt, threshold)
    return out


def _kept_shape(keys: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
    return keys.new_empty((len(keys), n), dtype=dtype)


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
torch.library.register_fake("evenload::kept", _kept_shape, lib=_LIBRARY)
for _name, _fn in {
    "convolve": _convolve,
    "convolve_input_gradient": _convolve_input_gradient,
    "convolve_weight_gradient": _convolve_weight_gradient,
    "pool": _pool,
    "pool_gradient": _pool_gradient,
    "kept": _kept,
}.items():
    _LIBRARY.impl(_name, _fn, "CPU")


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor | None:
    """The convolution of stride and dilation 1; None if the kernels cannot do it, or not faster than torch.

    x [samples, channels, height, width], weight [out, channels, k_height, k_width], bias [out]
    """
    if x.dim() != 4 or x.shape[1] != weight.shape[1]:  # torch says what is wrong
        return None
    if not (x.device.type == "cpu" and x.dtype == weight.dtype in KERNEL_DTYPES):
        return None
    layout = usable_layout(geometry_of(x, weight, padding), len(x), x.element_size())
    if layout is None:
        return None
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return KernelConvolution.apply(laid_out(x, layout), weight, bias, padding)


class KernelConvolution(torch.autograd.Function):
    """A convolution [samples, channels, height, width] of one client; under vmap those of all."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
        return torch.ops.evenload.convolve(x[None], weight[None], bias[None], *padding)[0]

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyrefly: ignore
        x, weight = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _InputGradient.apply(grad, weight, tuple(x.shape[-2:]), ctx.padding)
        dweight, dbias = _WeightGradient.apply(x, grad, tuple(weight.shape[-2:]), ctx.padding)  # pyrefly: ignore
        return dx, dweight, dbias, None

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, padding = args
        return torch.ops.evenload.convolve(*clients_first(tensors, in_dims, info.batch_size), *padding), 0


class _InputGradient(FirstDerivative):
    """The gradient of a convolution's inputs."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, size: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        return torch.ops.evenload.convolve_input_gradient(grad[None], weight[None], *size, *padding)[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, size, padding = args
        parts = clients_first(tensors, in_dims, info.batch_size)
        return torch.ops.evenload.convolve_input_gradient(*parts, *size, *padding), 0


class _WeightGradient(FirstDerivative):
    """The gradients of a convolution's weights and biases."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, size: tuple[int, int], padding: tuple[int, int]):
        of_weight, of_bias = torch.ops.evenload.convolve_weight_gradient(x[None], grad[None], *size, *padding)
        return of_weight[0], of_bias[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, size, padding = args
        parts = clients_first(tensors, in_dims, info.batch_size)
        return torch.ops.evenload.convolve_weight_gradient(*parts, *size, *padding), (0, 0)


def max_pool(x: Tensor, size: int) -> Tensor | None:
    """The largest numbers of windows ``size`` x ``size`` without overlap; None if kernels cannot do it.

    x [samples, channels, height, width], or [channels, height, width]
    """
    if x.device.type != "cpu" or x.dtype not in KERNEL_DTYPES or x.dim() not in (3, 4):
        return None
    images = x if x.dim() == 4 else x[None]
    if not can_pool(images, size):
        return None
    found = KernelMaxPool.apply(images, size)[0]
    return found if x.dim() == 4 else found[0]


class KernelMaxPool(torch.autograd.Function):
    """A max pooling of x [samples, channels, height, width] of one client, under vmap that of all.

    Gives the largest numbers, and which entry of its window each of them was.
    """

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        largest, places = _pooled(x[None], size)
        return largest[0], places[0]

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.sizes = inputs[1], *inputs[0].shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):  # pyrefly: ignore
        return _KernelMaxPoolGradient.apply(grad, *ctx.saved_tensors, *ctx.sizes), None

    @staticmethod
    def vmap(info, in_dims, *args):
        x, size = args
        return _pooled(x.movedim(in_dims[0], 0), size), (0, 0)


class _KernelMaxPoolGradient(FirstDerivative):
    """The gradient of a max pooling's inputs."""

    @staticmethod
    def forward(grad: Tensor, places: Tensor, size: int, height: int, width: int) -> Tensor:
        return _gradient(grad[None], places[None], size, height, width)[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        grad, places, *sizes = args
        grad, places = clients_first((grad, places), in_dims, info.batch_size)
        return _gradient(grad, places, *sizes), 0


def _pooled(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return torch.ops.evenload.pool(x, size, layout_of(x) == "channels")


def _gradient(grad: Tensor, places: Tensor, size: int, height: int, width: int) -> Tensor:
    return torch.ops.evenload.pool_gradient(
        grad, places, size, height, width, layout_of(places) == "channels"
    )


def kept(key: Tensor, salt: int, n: int, p: float, dtype: torch.dtype) -> Tensor | None:
    """1 for each of ``n`` places that stays, 0 for one that is dropped; None without a kernel for it.

    key int64, a scalar
    """
    if key.device.type != "cpu" or dtype not in KERNEL_DTYPES or not has_kernels():
        return None
    if not is_ready(kept_program, dtype.itemsize):
        return None
    # A number in [0, 1) of 53 bits is at least p if these bits are at least p * 2**53, which is exact.
    threshold = min(max(0, math.ceil(p * 2.0**53)), 2**53)
    found = KeptPlaces.apply(key, salt, n, threshold, dtype)
    assert isinstance(found, Tensor)
    return found


class KeptPlaces(FirstDerivative):
    """The places that stay for a key int64 (scalar), as ``n`` ones and zeros; under vmap for all keys."""

    @staticmethod
    def forward(key: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
        return torch.ops.evenload.kept(key.view(1), salt, n, threshold, dtype)[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        return torch.ops.evenload.kept(*args), 0
