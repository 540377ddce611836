"""Dropout whose mask depends on a key and on nothing else.

``with_keyed_dropout`` puts it in the place of nn.Dropout in the copy of the model that is trained, in every
strategy alike. A mask's element is decided by its place in the tensor, so padding rows change nothing.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from evenload.clients.step.image_speedups import kept
from evenload.clients.step.vmap_rules import replace_modules

KEY = "draw_key"
_GOLDEN, _A, _B = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class KeyedDropout(nn.Module):
    """A dropout of elements (with ``by_channel``, of channels) with probability ``p``, decided by a key.

    ``draw_key`` is an int64 scalar that changes with every step; ``layer`` and the count of calls within one
    forward pass keep the masks of one step apart.
    """

    draw_key: Tensor

    def __init__(self, p: float, layer: int, by_channel: bool = False):
        super().__init__()
        self.p, self.layer, self.by_channel = p, layer, by_channel
        self.n_calls = 0
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            self.n_calls += 1
            return x * 0
        return x * kept_of(*self._next(x), self.p, x.dtype) * (1 / (1 - self.p))

    def uniform(self, x: Tensor) -> Tensor:
        """float64 numbers in [0, 1) of the shape of ``x``, or one for each of its channels."""
        return uniform_of(*self._next(x))

    def _next(self, x: Tensor) -> tuple[Tensor, int, list[int]]:
        """The key, the salt of this call, and the shape of its numbers."""
        salt = self.layer * 65_536 + self.n_calls
        self.n_calls += 1
        shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if self.by_channel else list(x.shape)
        return self.draw_key, salt, shape


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """Replace every nn.Dropout, Dropout1d, 2d and 3d; returns ``model`` itself."""
    kinds = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
    layers = itertools.count()

    def keyed(child: nn.Module) -> nn.Module | None:
        if type(child) not in kinds:
            return None
        return KeyedDropout(child.p, next(layers), kinds[type(child)])  # pyrefly: ignore

    return replace_modules(model, keyed)


def keyed_layers(model: nn.Module) -> dict[str, KeyedDropout]:
    return {name: module for name, module in model.named_modules() if isinstance(module, KeyedDropout)}


def kept_of(key: Tensor, salt: int, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """1 where a number of ``uniform_of`` is at least ``p``, 0 elsewhere; by a kernel where there is one."""
    found = kept(key, salt, math.prod(shape), p, dtype)
    return (uniform_of(key, salt, shape) >= p).to(dtype) if found is None else found.view(shape)


def uniform_of(key: Tensor, salt: int, shape: Sequence[int]) -> Tensor:
    """float64 numbers in [0, 1), each from a key (an int64 scalar), a salt and its place."""
    # From numpy, so that a trace holds it as a constant: a compiler would reason about arange's range.
    places = torch.from_numpy(np.arange(math.prod(shape))).to(key.device)
    words = _mix(_mix(key ^ salt) + places * _GOLDEN)
    return (_shift(words, 11).to(torch.float64) * 2.0**-53).view(shape)


def _shift(words: Tensor, n: int) -> Tensor:
    """Logical shift to the right: torch's is arithmetic, and has no unsigned 64-bit arithmetic."""
    return (words >> n) & ((1 << (64 - n)) - 1)


def _mix(words: Tensor) -> Tensor:
    """splitmix64, as ``keys.mix`` does it."""
    z = words + _GOLDEN
    z = (z ^ _shift(z, 30)) * _A
    z = (z ^ _shift(z, 27)) * _B
    return z ^ _shift(z, 31)
