"""The seam to ``image_kernels``, our own kernels for convolutions, max pooling and dropout on CPUs.

All functions return None for what kernels cannot do, or not faster than torch; without that room, always.
"""

import torch
from torch import Tensor

__all__ = ["convolve", "kept", "max_pool"]


def _leave_convolution_to_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor | None:
    return None


def _leave_pooling_to_torch(x: Tensor, size: int) -> Tensor | None:
    return None


def _leave_dropout_to_torch(key: Tensor, salt: int, n: int, p: float, dtype: torch.dtype) -> Tensor | None:
    return None


try:
    from evenload.clients.step.image_kernels.convolution import convolve
    from evenload.clients.step.image_kernels.keyed_dropout import kept
    from evenload.clients.step.image_kernels.pooling import max_pool
except ImportError:
    convolve, max_pool = _leave_convolution_to_torch, _leave_pooling_to_torch
    kept = _leave_dropout_to_torch
