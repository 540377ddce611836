"""Modules written so that vmap turns them into few large products, where torch's own ones fuse badly.

    nn.RNN, nn.GRU, nn.LSTM   one product for the input of all time steps, one small one per time step;
                              torch's kernels run one client after the other under vmap
    nn.Conv1d, 2d, 3d         one convolution per client, in a loop below Python's view of the step: on CPUs a
                              grouped convolution, which vmap makes of it, is slower
    max_pool2d                beside convolutions: see ``pooling``

``with_rules`` puts them in the place of torch's modules; parameters keep their names and meaning.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .pooling import PoolingRule
from .swap import swapped

__all__ = ["RecurrentRule", "has_rules", "with_rules"]


def with_rules(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with hand-written rules wherever there is one; the copy has the same state dict."""

    def rule(child: nn.Module) -> nn.Module | None:
        if isinstance(child, nn.RNNBase) and RecurrentRule.takes(child):
            return RecurrentRule(child)
        if type(child) in _CONV and _is_plain(child):
            child.__class__ = _CONV[type(child)]  # pyright: ignore
        return None

    found = swapped(copy.deepcopy(model), rule)
    if any(isinstance(m, _Looped) for m in found.modules()):
        found.__class__ = type(f"Pooled{type(found).__name__}", (_Pooled, type(found)), {})
    return found


class _Pooled:
    """Mixed into the class of a whole model: its forward pass, pooling done by rules."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with PoolingRule():
            return super().forward(*args, **kwargs)  # pyright: ignore


class RecurrentRule(nn.Module):
    """nn.RNN, nn.GRU or nn.LSTM, written out over time. Same parameters, same outputs up to rounding."""

    @staticmethod
    def takes(module: nn.RNNBase) -> bool:
        return module.dropout == 0 and not getattr(module, "proj_size", 0)

    def __init__(self, twin: nn.RNNBase):
        super().__init__()
        self.kind = {nn.RNN: "rnn", nn.GRU: "gru", nn.LSTM: "lstm"}[type(twin)]  # pyright: ignore
        self.hidden_size, self.num_layers = twin.hidden_size, twin.num_layers
        self.batch_first, self.bidirectional = twin.batch_first, twin.bidirectional
        self.nonlinearity = getattr(twin, "nonlinearity", "tanh")
        for name, p in twin.named_parameters():
            self.register_parameter(name, p)

    def forward(self, x: Tensor, hx=None):
        if x.dim() == 2:
            out, h = self._batched(x.unsqueeze(1 - self.batch_first), _map(hx, lambda t: t.unsqueeze(1)))
            return out.squeeze(1 - self.batch_first), _map(h, lambda t: t.squeeze(1))
        return self._batched(x, hx)

    def _batched(self, x: Tensor, hx=None):
        x = x if self.batch_first else x.transpose(0, 1)
        n_directions = 2 if self.bidirectional else 1
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            outs = []
            # As torch's own kernels under autocast: an LSTM's states are of the lower precision.
            like = _autocast(x) if self.kind == "lstm" else x
            assert like is not None
            zeros = like.new_zeros(len(x), self.hidden_size)
            for direction in range(n_directions):
                at, suffix = layer * n_directions + direction, "_reverse" * direction
                h = zeros if hx is None else _first(hx)[at].to(zeros.dtype)
                c = zeros if self.kind != "lstm" or hx is None else hx[1][at].to(zeros.dtype)
                steps = range(x.shape[1])
                line, h, c = self._scan(x, h, c, f"l{layer}{suffix}", reversed(steps) if direction else steps)
                outs.append(torch.stack(line[::-1] if direction else line, 1))
                last_h.append(h)
                last_c.append(c)
            x = torch.cat(outs, -1) if len(outs) > 1 else outs[0]
        out = x if self.batch_first else x.transpose(0, 1)
        h = torch.stack(last_h)
        return out, (h, torch.stack(last_c)) if self.kind == "lstm" else h

    def _scan(
        self, x: Tensor, h: Tensor, c: Tensor, layer: str, steps
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        weight, bias = getattr(self, f"weight_hh_{layer}"), getattr(self, f"bias_hh_{layer}", None)
        inputs = F.linear(x, getattr(self, f"weight_ih_{layer}"), getattr(self, f"bias_ih_{layer}", None))
        line = []
        for t in steps:
            h, c = self._cell(inputs[:, t], F.linear(h, weight, bias), h, c)
            line.append(h)
        return line, h, c

    def _cell(self, of_x: Tensor, of_h: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "rnn":
            return (torch.tanh if self.nonlinearity == "tanh" else torch.relu)(of_x + of_h), c
        if self.kind == "gru":
            (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3, -1), of_h.chunk(3, -1)
            z = torch.sigmoid(xz + hz)
            n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            return n + z * (h - n), c
        i, f, g, o = (of_x + of_h).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class _LoopedConv(torch.autograd.Function):
    """A convolution whose rule under vmap is a loop over clients, forward and backward.

    As torch itself does, the backward pass leaves out the gradient of inputs that need none: for the first
    layer of a network it would cost ten times the gradient of its weights.
    """

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
        grads = iter(_LoopedConvBackward.apply(grad, x, weight, ctx.geometry, wanted))  # pyright: ignore
        return *(next(grads) if is_wanted else None for is_wanted in wanted), None

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, geometry = args
        parts = _client_rows(tensors, in_dims, info.batch_size)
        lines = [_LoopedConv.apply(*row, geometry) for row in parts]
        return torch.stack(lines), 0  # pyright: ignore


class _LoopedConvBackward(torch.autograd.Function):
    """The gradients that are ``wanted`` of (x, weight, bias), in this order."""

    @staticmethod
    def forward(
        grad: Tensor, x: Tensor, weight: Tensor, geometry: tuple, wanted: tuple[bool, ...]
    ) -> tuple[Tensor, ...]:
        of_bias = [len(weight)] if wanted[2] else None
        grads = torch.ops.aten.convolution_backward(grad, x, weight, of_bias, *geometry, list(wanted))
        return tuple(g for g, is_wanted in zip(grads, wanted, strict=True) if is_wanted)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NotImplementedError("second derivatives of a looped convolution")

    @staticmethod
    def vmap(info, in_dims, *args):
        *tensors, geometry, wanted = args
        parts = _client_rows(tensors, in_dims, info.batch_size)
        lines = [_LoopedConvBackward.apply(*row, geometry, wanted) for row in parts]
        columns = tuple(torch.stack(column) for column in zip(*lines, strict=True))  # pyright: ignore
        return columns, (0,) * len(columns)


class _Looped:
    """Mixed into torch's convolutions: their parameters, our product."""

    def forward(self, x: Tensor) -> Tensor:
        conv: Any = self
        n = len(conv.kernel_size)
        single = x.dim() == n + 1
        geometry = (conv.stride, conv.padding, conv.dilation, False, [0] * n, conv.groups)
        parts = [_autocast(t) for t in (x.unsqueeze(0) if single else x, conv.weight, conv.bias)]
        out: Tensor = _LoopedConv.apply(*parts, geometry)  # pyright: ignore
        return out.squeeze(0) if single else out


def _autocast(t: Tensor | None) -> Tensor | None:
    """As torch casts the arguments of its own convolutions: a custom function is not seen by autocast."""
    if t is None or t.dtype == torch.float64 or not torch.is_autocast_enabled(t.device.type):
        return t
    return t.to(torch.get_autocast_dtype(t.device.type))


_CONV: dict[type, type] = {
    kind: type(f"Looped{kind.__name__}", (_Looped, kind), {}) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
}


def _is_plain(conv: nn.Module) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _client_rows(tensors, in_dims, n: int) -> list[list[Tensor | None]]:
    """For each of ``n`` clients its part of every tensor; what has no dimension of clients is for all."""
    lines = [
        [t] * n if t is None or dim is None else list(t.movedim(dim, 0))
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
    return [list(row) for row in zip(*lines, strict=True)]


def _first(hx) -> Tensor:
    return hx[0] if isinstance(hx, tuple) else hx


def _map(hx, fn):
    return None if hx is None else tuple(fn(t) for t in hx) if isinstance(hx, tuple) else fn(hx)


def has_rules(model: nn.Module) -> bool:
    """Would ``with_rules`` change anything?"""
    return any(
        (isinstance(m, nn.RNNBase) and RecurrentRule.takes(m)) or (type(m) in _CONV and _is_plain(m))
        for m in model.modules()
    )
