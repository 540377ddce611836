"""What modules and custom operations need to run under vmap over clients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


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


def replace_modules(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace every submodule that ``make`` returns another one for; returns ``model`` itself.

    A module that is used in several places, or under several names, is replaced by one and the same.
    """
    found: dict[int, tuple[nn.Module, nn.Module | None]] = {}  # holds the originals, so that no id is reused
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if id(child) not in found:
                found[id(child)] = child, make(child)
            twin = found[id(child)][1]
            if twin is not None:
                parent._modules[name] = twin
    return model
