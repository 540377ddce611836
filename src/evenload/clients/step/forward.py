"""Augmentation of a batch before a model's forward pass, and the precision of its products.

Random numbers of an augmentation are counted, not drawn: each follows from the seed, the client, the round,
the step and its place, so they do not depend on strategy, chunk, device or neighbours.
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenload.clients.step.dropout import uniform_of
from evenload.clients.values.data import Batch
from evenload.clients.values.recipe import Recipe

OWN = 1 << 40  # keeps these draws apart from those of dropout


class Draws:
    """The random numbers of one client's batch in one step, for ``Recipe.augment``.

    Numbers of padding rows and of real ones do not depend on one another if the first axis is the rows.
    """

    def __init__(self, key: Tensor):
        self._key, self._n_calls = key, 0

    def uniform(self, *shape: int) -> Tensor:
        """float32 [*shape] in [0, 1), other numbers in every call."""
        numbers = uniform_of(self._key, OWN + self._n_calls, shape)
        self._n_calls += 1
        # Cut to the bits that float32 has: rounding would give 1.
        return ((numbers * 2.0**24).floor() * 2.0**-24).to(torch.float32)

    def coin(self, p: float, *shape: int) -> Tensor:
        """bool [*shape], each true with probability ``p``."""
        return self.uniform(*shape) < p


def augmented(recipe: Recipe, x: Batch, key: Tensor) -> Batch:
    """One client's rows ``x`` [rows, ...], augmented by the recipe; ``key`` int64 scalar of the step."""
    return x if recipe.augment is None else recipe.augment(x, Draws(key))


def precision_of(recipe: Recipe, device: str) -> AbstractContextManager:
    """A context in which products have the recipe's precision; parameters and updates stay as they are."""
    if recipe.precision is None:
        return nullcontext()
    kind = torch.device(device).type
    lower = torch.autocast(kind, dtype=torch.bfloat16)
    return lower if kind != "cpu" or has_bfloat16_lstm() else Both(lower, _PlainLSTM())


class Both:
    """Two contexts as one."""

    __slots__ = ("_a", "_b")

    def __init__(self, a: Any, b: Any):
        self._a, self._b = a, b

    def __enter__(self) -> None:
        self._a.__enter__()
        self._b.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._b.__exit__(*error)
        self._a.__exit__(*error)


@functools.cache
def has_bfloat16_lstm() -> bool:
    """Whether torch's own library can compute an LSTM in bfloat16 here, found by trying.

    oneDNN has none for processors without AVX-512: a model with one then raises under autocast.
    """
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.random.fork_rng(devices=[]):
        try:
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
        except RuntimeError:
            return False
    return True


class _PlainLSTM(TorchFunctionMode):
    """A mode in which an LSTM is computed by torch's plain kernels, and all else by its library's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.lstm:
            return func(*args, **(kwargs or {}))
        library = torch.backends.mkldnn
        was_enabled, library.enabled = library.enabled, False  # pyrefly: ignore
        try:
            return func(*args, **(kwargs or {}))
        finally:
            library.enabled = was_enabled
