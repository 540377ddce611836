"""Convolutions and max pooling of fused clients, where vmap or torch's own kernel is slow.

    loop      torch's own convolution per client, below Python's view of the step: vmap would make a slow
              grouped convolution of them
    kernels   small ones on a CPU, all clients in one call, also of pooling whose windows do not overlap: see
              ``image_speedups``

Pooling gives torch's own bits, gradients included: the first of equal numbers gets the gradient.
These modules take the place of torch's; parameters keep their names and meaning. As torch itself does, the
backward pass leaves out the gradient of inputs that need none.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenload.clients.step.image_speedups import convolve, max_pool
from evenload.clients.step.vmap_rules import FirstDerivative


def is_plain(conv: nn.Module) -> bool:
    """Is it a convolution with zeros for padding, equally many on both sides?"""
    return type(conv) in CONVOLUTIONS and conv.padding_mode == "zeros" and _padding(conv) is not None


def _padding(conv: Any) -> tuple[int, ...] | None:
    """Zeros on every side; None if one side gets more."""
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    if conv.padding == "same":
        spans = [(k - 1) * d for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
        return None if any(span % 2 for span in spans) else tuple(span // 2 for span in spans)
    return tuple(conv.padding)


class _ClientConvolution:
    """Mixed into torch's convolutions: their parameters, and a product that is fast for stacked clients."""

    def forward(self, x: Tensor) -> Tensor:
        conv: Any = self
        n, padding = len(conv.kernel_size), _padding(conv)
        assert padding is not None
        is_single = x.dim() == n + 1
        geometry = (conv.stride, padding, conv.dilation, False, [0] * n, conv.groups)
        parts = [autocast(t) for t in (x.unsqueeze(0) if is_single else x, conv.weight, conv.bias)]
        out = _faster(parts, padding) if {*conv.stride, *conv.dilation, conv.groups} == {1} else None
        if out is None:
            out = _LoopedConvolution.apply(*parts, geometry)
        assert isinstance(out, Tensor)
        return out.squeeze(0) if is_single else out


CONVOLUTIONS: dict[type, type] = {
    kind: type(f"Stacked{kind.__name__}", (_ClientConvolution, kind), {})
    for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}


def _faster(parts: list[Any], padding: tuple[int, ...]) -> Tensor | None:
    """The convolution in one or two dimensions by kernels, or None."""
    x, weight, bias = parts
    if len(padding) == 2:
        return convolve(x, weight, bias, (padding[0], padding[1]))
    if len(padding) == 1:  # an image of one row
        out = convolve(x.unsqueeze(-2), weight.unsqueeze(-2), bias, (0, padding[0]))
        return None if out is None else out.squeeze(-2)
    return None


class _LoopedConvolution(torch.autograd.Function):
    """A convolution whose rule under vmap is a loop over clients, forward and backward."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple) -> Tensor:
        return torch.ops.aten.convolution(x, weight, bias, *geometry)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.has_bias, ctx.geometry = inputs[2] is not None, inputs[3]

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyrefly: ignore
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], True, ctx.has_bias)
        grads = iter(_LoopedGradients.apply(grad, x, weight, ctx.geometry, wanted))  # pyrefly: ignore
        return *(next(grads) if is_wanted else None for is_wanted in wanted), None

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, geometry = args
        parts = _client_rows(tensors, in_dims, info.batch_size)
        lines = [_LoopedConvolution.apply(*row, geometry) for row in parts]
        return torch.stack(lines), 0


class _LoopedGradients(FirstDerivative):
    """The gradients of x, weight and bias that are ``wanted``, as a loop over clients under vmap."""

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
        lines = [_LoopedGradients.apply(*row, geometry, wanted) for row in parts]
        columns = tuple(torch.stack(column) for column in zip(*lines, strict=True))
        return columns, (0,) * len(columns)


def _client_rows(tensors, in_dims, n: int) -> list[list[Tensor | None]]:
    """Each client's part of every tensor; what has no dimension of clients is for all ``n``."""
    lines = [
        [t] * n if t is None or dim is None else list(t.movedim(dim, 0))
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
    return [list(row) for row in zip(*lines, strict=True)]


def autocast(t: Tensor | None) -> Tensor | None:
    """The tensor cast as torch casts a convolution's arguments: autocast does not see custom functions."""
    if t is None or t.dtype == torch.float64 or not torch.is_autocast_enabled(t.device.type):
        return t
    return t.to(torch.get_autocast_dtype(t.device.type))


# --- pooling ----------------------------------------------------------------------------------------------


class PoolingRule(TorchFunctionMode):
    """A context in which ``max_pool2d`` over windows that do not overlap is faster; others are as before."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (F.max_pool2d, torch.max_pool2d):
            size = _window(*args[1:], **{name: value for name, value in kwargs.items() if name != "input"})
            x = args[0] if args else kwargs["input"]
            if size is not None and (found := max_pool(x, size)) is not None:
                return found
        return func(*args, **kwargs)


def _window(
    kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
) -> int | None:
    """The side of windows that do not overlap, leave no gap and need no padding; None for others."""
    sides = {*_pair(kernel_size), *_pair(stride or kernel_size)}
    is_plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    return sides.pop() if is_plain and len(sides) == 1 else None


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
