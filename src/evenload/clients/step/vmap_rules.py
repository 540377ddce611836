"""What custom operations need to run under vmap over clients."""

from collections.abc import Sequence

import torch
from torch import Tensor


class FirstDerivative(torch.autograd.Function):
    """A gradient as an operation, which is not differentiated again."""

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):  # pyrefly: ignore
        raise NotImplementedError("second derivatives of a fused convolution or pooling")


def clients_first(tensors: Sequence[Tensor], in_dims: Sequence[int | None], n: int) -> list[Tensor]:
    """Every tensor as [n clients, ...]; what has no dimension of clients is repeated for all."""
    return [
        t.expand(n, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
