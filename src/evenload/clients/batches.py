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
    sizes: Sequence[int], clients: Sequence[int], recipes: Sequence[Recipe], seed: int, round: int = 0
) -> list[Batches]:
    """Batches of ``clients`` (their ids) with ``sizes`` rows each; those of one size at once."""
    alike: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for at, (n, recipe) in enumerate(zip(sizes, recipes, strict=True)):
        alike[n, recipe.n_steps(n), recipe.shuffle].append(at)
    plans: list[Batches | None] = [None] * len(sizes)
    for (n, n_steps, _), members in alike.items():
        recipe, ids = recipes[members[0]], np.array([clients[at] for at in members])
        rows, counts = _rows(n, n_steps, recipe, ids, seed, round)
        draws = keys(DROPOUT, seed, round, ids[:, None], np.arange(n_steps)[None, :]).view(np.int64)
        for i, at in enumerate(members):
            plans[at] = Batches(rows[i], counts, draws[i])
    return plans  # pyright: ignore[reportReturnType]


def _rows(
    n: int, n_steps: int, recipe: Recipe, ids: np.ndarray, seed: int, round: int
) -> tuple[np.ndarray, np.ndarray]:
    """rows int64 [clients, steps, batch] and counts int64 [steps] of clients with ``n`` rows each."""
    size = recipe.batch_size
    if n_steps == 0:
        return np.zeros((len(ids), 0, size), np.int64), np.zeros(0, np.int64)
    per_epoch = recipe.steps_per_epoch(n)
    n_epochs = -(-n_steps // per_epoch)
    kept = min(n, per_epoch * size)
    rows = np.zeros((len(ids), n_epochs, per_epoch * size), np.int64)
    for epoch in range(n_epochs):
        if recipe.shuffle:
            rows[:, epoch, :kept] = orders(keys(SHUFFLE, seed, round, ids, epoch), n)[:, :kept]
        else:
            rows[:, epoch, :kept] = np.arange(kept)
    counts = np.full(per_epoch, size)
    counts[-1] = kept - (per_epoch - 1) * size
    rows = rows.reshape(len(ids), n_epochs * per_epoch, size)[:, :n_steps]
    return rows, np.tile(counts, n_epochs)[:n_steps]
