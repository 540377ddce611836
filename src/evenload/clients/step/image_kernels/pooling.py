"""Differentiable max pooling by kernels: one client's as a function, under vmap that of all at once."""

import torch
from torch import Tensor

from evenload.clients.step.image_kernels import operations  # noqa: F401  (its operations are used by name)
from evenload.clients.step.image_kernels.layout import KERNEL_DTYPES, can_pool, layout_of
from evenload.clients.step.vmap_rules import FirstDerivative, clients_first


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
