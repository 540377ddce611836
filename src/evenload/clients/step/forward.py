"""Augmentation of a batch before a model's forward pass, and the precision of its products.

Random numbers of an augmentation are counted, not drawn: each follows from the seed, the client, the round,
the step and its place, so they do not depend on strategy, chunk, device or neighbours.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from evenload.clients.step.dropout import uniform_of
from evenload.clients.values.data import Batch
from evenload.clients.values.recipe import Recipe

__all__ = ["Draws", "augmented", "precision_of"]

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
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
