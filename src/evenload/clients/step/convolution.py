"""Convolutions of fused clients on CPUs, where vmap would make a grouped convolution of them, which is slow.

    kernels   small ones: all clients in one call of ``image_kernels``
    loop      any other: torch's own convolution per client, below Python's view of the step

Both take the place of torch's modules; parameters keep their names and meaning. As torch itself does, the
backward pass leaves out the gradient of inputs that need none.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenload.clients.step.image_kernels import (
    KERNEL_DTYPES,
    Once,
    geometry_of,
    is_worth_it,
    samples_last,
    stacked,
)

__all__ = ["CONVOLUTIONS", "autocast", "is_plain"]


def is_plain(conv: nn.Module) -> bool:
    """Is it a convolution with zeros around, as many on both sides?"""
    return type(conv) in CONVOLUTIONS and conv.padding_mode == "zeros" and _padding(conv) is not None


def _padding(conv: Any) -> tuple[int, ...] | None:
    """Zeros on every side; None if one side gets more."""
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    if conv.padding == "same":
        spans = [(k - 1) * d for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
        return None if any(span % 2 for span in spans) else tuple(span // 2 for span in spans)
    return tuple(conv.padding)


class _Convolution:
    """Mixed into torch's convolutions: their parameters, our product."""

    def forward(self, x: Tensor) -> Tensor:
        conv: Any = self
        n, padding = len(conv.kernel_size), _padding(conv)
        assert padding is not None
        is_single = x.dim() == n + 1
        geometry = (conv.stride, padding, conv.dilation, False, [0] * n, conv.groups)
        parts = [autocast(t) for t in (x.unsqueeze(0) if is_single else x, conv.weight, conv.bias)]
        if n == 1:  # a picture of one row
            planes = [t if t is None or t.dim() < 3 else t.unsqueeze(-2) for t in parts]
            out = _by_kernels(planes, (0, *padding), conv)
            out = out if out is None else out.squeeze(-2)
        else:
            out = _by_kernels(parts, padding, conv) if n == 2 else None
        if out is None:
            out = _Looped.apply(*parts, geometry)
        assert isinstance(out, Tensor)
        return out.squeeze(0) if is_single else out


CONVOLUTIONS: dict[type, type] = {
    kind: type(f"Stacked{kind.__name__}", (_Convolution, kind), {})
    for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}


def _by_kernels(parts: Sequence[Any], padding: Any, conv: Any) -> Any:
    """None if the kernels cannot do it, or not faster."""
    x, weight, bias = parts
    is_usual = {*conv.stride, *conv.dilation, conv.groups} == {1}
    if x.dim() != 4 or x.shape[1] != weight.shape[1]:  # torch says what is wrong
        return None
    if not (is_usual and x.device.type == "cpu" and x.dtype == weight.dtype in KERNEL_DTYPES):
        return None
    if not is_worth_it(geometry_of(x, weight, padding), len(x), x.element_size()):
        return None
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return _Stacked.apply(samples_last(x), weight, bias, tuple(padding))


class _Stacked(torch.autograd.Function):
    """x [samples, channels, height, width] of one client; under vmap those of all."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
        return torch.ops.evenload.convolve(x[None], weight[None], bias[None], *padding)[0]

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _StackedInput.apply(grad, weight, tuple(x.shape[-2:]), ctx.padding)
        dweight, dbias = _StackedWeight.apply(x, grad, tuple(weight.shape[-2:]), ctx.padding)  # pyright: ignore
        return dx, dweight, dbias, None

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, padding = args
        return torch.ops.evenload.convolve(*stacked(tensors, in_dims, info.batch_size), *padding), 0


class _StackedInput(Once):
    @staticmethod
    def forward(grad: Tensor, weight: Tensor, size: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        return torch.ops.evenload.convolve_input_gradient(grad[None], weight[None], *size, *padding)[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, size, padding = args
        parts = stacked(tensors, in_dims, info.batch_size)
        return torch.ops.evenload.convolve_input_gradient(*parts, *size, *padding), 0


class _StackedWeight(Once):
    @staticmethod
    def forward(x: Tensor, grad: Tensor, size: tuple[int, int], padding: tuple[int, int]):
        of_weight, of_bias = torch.ops.evenload.convolve_weight_gradient(x[None], grad[None], *size, *padding)
        return of_weight[0], of_bias[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, size, padding = args
        parts = stacked(tensors, in_dims, info.batch_size)
        return torch.ops.evenload.convolve_weight_gradient(*parts, *size, *padding), (0, 0)


class _Looped(torch.autograd.Function):
    """A convolution whose rule under vmap is a loop over clients, forward and backward."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple) -> Tensor:
        return torch.ops.aten.convolution(x, weight, bias, *geometry)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.has_bias, ctx.geometry = inputs[2] is not None, inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], True, ctx.has_bias)
        grads = iter(_LoopedBackward.apply(grad, x, weight, ctx.geometry, wanted))  # pyright: ignore
        return *(next(grads) if is_wanted else None for is_wanted in wanted), None

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, geometry = args
        parts = _client_rows(tensors, in_dims, info.batch_size)
        lines = [_Looped.apply(*row, geometry) for row in parts]
        return torch.stack(lines), 0  # pyright: ignore


class _LoopedBackward(Once):
    """The gradients that are ``wanted`` of (x, weight, bias), in this order."""

    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, geometry: tuple, wanted: tuple[bool, ...]
    ) -> tuple[Tensor, ...]:
        of_bias = [len(weight)] if wanted[2] else None
        grads = torch.ops.aten.convolution_backward(grad, x, weight, of_bias, *geometry, list(wanted))
        return tuple(g for g, is_wanted in zip(grads, wanted, strict=True) if is_wanted)

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, geometry, wanted = args
        parts = _client_rows(tensors, in_dims, info.batch_size)
        lines = [_LoopedBackward.apply(*row, geometry, wanted) for row in parts]
        columns = tuple(torch.stack(column) for column in zip(*lines, strict=True))  # pyright: ignore
        return columns, (0,) * len(columns)


def _client_rows(tensors, in_dims, n: int) -> list[list[Tensor | None]]:
    """For each of ``n`` clients its part of every tensor; what has no dimension of clients is for all."""
    lines = [
        [t] * n if t is None or dim is None else list(t.movedim(dim, 0))
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
    return [list(row) for row in zip(*lines, strict=True)]


def autocast(t: Tensor | None) -> Tensor | None:
    """As torch casts the arguments of its own convolutions: a custom function is not seen by autocast."""
    if t is None or t.dtype == torch.float64 or not torch.is_autocast_enabled(t.device.type):
        return t
    return t.to(torch.get_autocast_dtype(t.device.type))
