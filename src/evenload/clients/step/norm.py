"""Batch normalisation over the real rows of a padded batch.

Padding rows would shift the mean and the variance of every channel, so the fused step weighs rows: a real row
of n counts 1/n, a padding row nothing. Over full batches the numbers are nn.BatchNorm's, up to rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenload.clients.step.vmap_rules import replace_modules

ROW_WEIGHT = "row_weight"


class MaskedBatchNorm(nn.Module):
    """A batch normalisation with the same parameters and buffers, and weights [rows] that sum to 1."""

    row_weight: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, twin: _BatchNorm):
        super().__init__()
        self.eps, self.momentum, self.tracks = twin.eps, twin.momentum, twin.track_running_stats
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(twin, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(twin, name))
        self.register_buffer(ROW_WEIGHT, torch.ones(1), persistent=False)
        self.train(twin.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:  # frozen: a row's numbers are its own
            running = self.running_mean, self.running_var
            return F.batch_norm(x, *running, self.weight, self.bias, eps=self.eps)
        axes = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        weight = self.row_weight.view(-1, *[1] * (x.dim() - 1))
        n_places = x[0, 0].numel()
        mean = (x * weight).sum(axes) / n_places
        centred = x - mean.view(shape)
        var = (centred * centred * weight).sum(axes) / n_places
        if self.tracks:
            self._track(mean.detach(), var.detach(), n_places / self.row_weight.max())
        out = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out

    def _track(self, mean: Tensor, var: Tensor, n: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.mul_(1 - share).add_(mean * share)
        self.running_var.mul_(1 - share).add_(var * (n / (n - 1)) * share)


def with_masked_norm(model: nn.Module) -> nn.Module:
    """Replace every batch normalisation by its masked twin, frozen if it is; returns ``model`` itself.

    Call ``train`` before: a model's own, which leaves some of them out, may know them by their class.
    """

    def masked(child: nn.Module) -> nn.Module | None:
        is_norm = isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm)
        return MaskedBatchNorm(child) if is_norm else None

    return replace_modules(model, masked)
