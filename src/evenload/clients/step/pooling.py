"""Max pooling for whole rows of windows at once, where torch's own kernel does one window after another.

    views     where windows do not overlap, the largest number is a maximum of a few strided views, and its
              place follows from comparing them with it
    kernels   on a CPU, where there are some for the shape: see ``image_speedups``

Both give torch's own bits, gradients included: the first of equal numbers gets the gradient. By views, where
there is a NaN in a window, that is its largest number, but another one may get the gradient.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from evenload.clients.step.image_speedups import max_pool


class PoolingRule(TorchFunctionMode):
    """A context in which ``max_pool2d`` over windows that do not overlap is faster; others are as before."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (F.max_pool2d, torch.max_pool2d):
            size = _window(*args[1:], **{name: value for name, value in kwargs.items() if name != "input"})
            x = args[0] if args else kwargs["input"]
            if size is not None and (found := max_pool(x, size)) is not None:
                return found
            if size is not None and _is_fit(x, size):
                return MaxPoolByViews.apply(x, size)[0]
        return func(*args, **kwargs)


class MaxPoolByViews(torch.autograd.Function):
    """A function: x [..., height, width] -> largest numbers [..., height // size, width // size], and where
    they are.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        height, width = (n // size * size for n in x.shape[-2:])
        rows = _largest([x[..., i:height:size, :] for i in range(size)])
        found = _largest([rows[..., j:width:size] for j in range(size)])
        places = [i * x.shape[-1] + j for i in range(size) for j in range(size)]
        place = torch.full_like(found, places[-1], dtype=torch.int16)
        for at in range(size * size - 2, -1, -1):  # the first of equal numbers comes last, and stays
            i, j = divmod(at, size)
            is_elsewhere = x[..., i:height:size, j:width:size] != found
            place = (place - places[at]) * is_elsewhere + places[at]  # ``where`` takes ten times as long
        corners = torch.arange(0, height, size, device=x.device)[:, None] * x.shape[-1]
        return found, place + (corners + torch.arange(0, width, size, device=x.device))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, ctx.size = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):  # pyrefly: ignore
        x, places = ctx.saved_tensors
        window = [ctx.size, ctx.size]
        return torch.ops.aten.max_pool2d_with_indices_backward(
            grad, x, window, window, [0, 0], [1, 1], False, places
        ), None


def _is_fit(x: Tensor, size: int) -> bool:
    is_small = size * x.shape[-1] < 2**15  # places within a window are of 16 bits
    return is_small and x.is_floating_point() and x.dim() in (3, 4) and min(x.shape[-2:]) >= size


def _largest(parts: list[Tensor]) -> Tensor:
    found = parts[0]
    for part in parts[1:]:
        found = torch.maximum(found, part)
    return found


def _window(
    kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
) -> int | None:
    """The side of windows that do not overlap, leave no gap and need no padding; None for others."""
    sides = {*_pair(kernel_size), *_pair(stride or kernel_size)}
    is_plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    return sides.pop() if is_plain and len(sides) == 1 else None


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
