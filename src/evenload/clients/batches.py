"""Which rows a client sees in which step: decided before any training, from keys alone."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .keys import DROPOUT, SHUFFLE, keys, orders
from .recipe import Recipe

__all__ = ["Batches", "plan_batches"]


@dataclass(frozen=True, slots=True)
class Batches:
    """A client's batches.

    rows    int64 [steps, batch] positions among the client's rows; after ``counts[i]`` a line is padding (0)
    counts  int64 [steps] rows of each batch
    draws   int64 [steps] keys of each step's dropout
    """

    rows: np.ndarray
    counts: np.ndarray
    draws: np.ndarray

    @property
    def n_steps(self) -> int:
        return len(self.counts)

    @property
    def examples(self) -> int:
        return int(self.counts.sum())


def plan_batches(
    sizes: Sequence[int],
    clients: Sequence[int],
    recipes: Sequence[Recipe],
    seed: int,
    round: int = 0,
    *,
    draws: bool = True,
) -> list[Batches]:
    """Batches of ``clients`` (their ids) with ``sizes`` rows each; those of one size at once.

    ``draws``: the model has dropout, which needs a key in every step
    """
    steps = [recipe.n_steps(n) for n, recipe in zip(sizes, recipes, strict=True)]
    ids = np.asarray(clients, np.int64)[:, None]
    alike: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    n_epochs = 1
    for at, (n, recipe) in enumerate(zip(sizes, recipes, strict=True)):
        alike[n, steps[at], recipe.shuffle].append(at)
        n_epochs = max(n_epochs, -(-steps[at] // recipe.steps_per_epoch(n)))
    epoch_keys = keys(SHUFFLE, seed, round, ids, np.arange(n_epochs)[None, :])
    plans: list[Batches | None] = [None] * len(sizes)
    for (n, n_steps, _), members in alike.items():
        rows, counts = _rows(n, n_steps, recipes[members[0]], epoch_keys[members])
        if draws:
            draw_keys = keys(DROPOUT, seed, round, ids[members], np.arange(n_steps)[None, :]).view(np.int64)
        else:
            draw_keys = np.zeros((len(members), n_steps), np.int64)
        for i, at in enumerate(members):
            plans[at] = Batches(rows[i], counts, draw_keys[i])
    return plans  # pyright: ignore[reportReturnType]


def _rows(n: int, n_steps: int, recipe: Recipe, epoch_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """rows int64 [clients, steps, batch] and counts int64 [steps] of clients with ``n`` rows each."""
    size, n_clients = recipe.batch_size, len(epoch_keys)
    if n_steps == 0:
        return np.zeros((n_clients, 0, size), np.int64), np.zeros(0, np.int64)
    per_epoch = recipe.steps_per_epoch(n)
    n_epochs = -(-n_steps // per_epoch)
    kept = min(n, per_epoch * size)
    rows = np.zeros((n_clients, n_epochs, per_epoch * size), np.int64)
    for epoch in range(n_epochs):
        order = orders(epoch_keys[:, epoch], n) if recipe.shuffle else np.arange(n)[None, :]
        rows[:, epoch, :kept] = order[:, :kept]
    counts = np.full(per_epoch, size)
    counts[-1] = kept - (per_epoch - 1) * size
    rows = rows.reshape(n_clients, n_epochs * per_epoch, size)[:, :n_steps]
    return rows, np.tile(counts, n_epochs)[:n_steps]
