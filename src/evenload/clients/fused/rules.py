"""Modules written so that vmap turns them into few large products, where torch's own ones fuse badly.

    nn.RNN, nn.GRU, nn.LSTM   one product for the input of all time steps, one small one per time step;
                              torch's kernels run one client after the other under vmap
    nn.Conv1d, 2d, 3d         see ``convolution``
    max_pool2d                beside convolutions: see ``pooling``

``with_rules`` puts them in the place of torch's modules; parameters keep their names and meaning.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenload.clients.step.convolution import CONVOLUTIONS, PoolingRule, autocast, is_plain
from evenload.clients.step.vmap_rules import replace_modules


def with_rules(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with hand-written rules wherever there is one; the copy has the same state dict."""

    def rule(child: nn.Module) -> nn.Module | None:
        if isinstance(child, nn.RNNBase) and RecurrentRule.takes(child):
            return RecurrentRule(child)
        if is_plain(child):
            child.__class__ = CONVOLUTIONS[type(child)]
        return None

    found = replace_modules(copy.deepcopy(model), rule)
    if has_own_gradients(found):
        found.__class__ = type(f"Pooled{type(found).__name__}", (_Pooled, type(found)), {})
    return found


def has_own_gradients(model: nn.Module) -> bool:
    """Does it have rules whose operations, under vmap, torch cannot differentiate from outside of it?"""
    return any(type(m) in CONVOLUTIONS.values() for m in model.modules())


class _Pooled:
    """Mixed into the class of a whole model: its forward pass, with pooling by rules."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with PoolingRule():
            return super().forward(*args, **kwargs)  # pyrefly: ignore


class RecurrentRule(nn.Module):
    """A recurrent layer (RNN, GRU, LSTM) as a loop over time; same outputs up to rounding."""

    @staticmethod
    def takes(module: nn.RNNBase) -> bool:
        return module.dropout == 0 and not getattr(module, "proj_size", 0)

    def __init__(self, twin: nn.RNNBase):
        super().__init__()
        self.kind = {nn.RNN: "rnn", nn.GRU: "gru", nn.LSTM: "lstm"}[type(twin)]  # pyrefly: ignore
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
            like = autocast(x) if self.kind == "lstm" else x
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


def _first(hx) -> Tensor:
    return hx[0] if isinstance(hx, tuple) else hx


def _map(hx, fn):
    return None if hx is None else tuple(fn(t) for t in hx) if isinstance(hx, tuple) else fn(hx)


def has_rules(model: nn.Module) -> bool:
    """Does the model have layers that ``with_rules`` replaces?"""
    return any((isinstance(m, nn.RNNBase) and RecurrentRule.takes(m)) or is_plain(m) for m in model.modules())
