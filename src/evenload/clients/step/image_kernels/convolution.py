"""Differentiable convolutions by kernels: one client's as a function, under vmap those of all at once."""

import torch
from torch import Tensor

from evenload.clients.step.image_kernels import operations  # noqa: F401  (its operations are used by name)
from evenload.clients.step.image_kernels.layout import KERNEL_DTYPES, geometry_of, laid_out, usable_layout
from evenload.clients.step.vmap_rules import FirstDerivative, clients_first


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
