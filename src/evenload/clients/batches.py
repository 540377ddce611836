"""Which rows a client sees in which step: decided before any training, from keys alone."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .keys import DROPOUT, SHUFFLE, bits_of, keys, orders
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
    """Batches of ``clients`` (their ids) with ``sizes`` rows each; those of about one size at once.

    ``draws``: the model has dropout, which needs a key in every step
    """
    ids = np.asarray(clients, np.int64)[:, None]
    alike: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    known: dict[tuple[int, int], _Extent] = {}
    extents = []
    for at, (n, recipe) in enumerate(zip(sizes, recipes, strict=True)):
        key = n, id(recipe)
        extent = known.get(key) or known.setdefault(key, _extent(n, recipe))
        extents.append(extent)
        alike[extent.bits, extent.n_epochs, recipe.shuffle].append(at)
    most = max((n_epochs for _, n_epochs, _ in alike), default=1)
    epoch_keys = keys(SHUFFLE, seed, round, ids, np.arange(most)[None, :])
    longest = max((len(extent.counts) for extent in extents), default=0)
    if draws:
        draw_keys = keys(DROPOUT, seed, round, ids, np.arange(longest)[None, :]).view(np.int64)
    else:
        draw_keys = np.broadcast_to(np.zeros(longest, np.int64), (len(extents), longest))
    plans: list[Batches | None] = [None] * len(sizes)
    for (_, n_epochs, shuffles), members in alike.items():
        batch = recipes[members[0]].batch_size
        shown = _shown([extents[at] for at in members], n_epochs, batch, epoch_keys[members], shuffles)
        for line, at in zip(shown, members, strict=True):
            counts, width = extents[at].counts, extents[at].width
            rows = line[:, :width].reshape(-1, batch)[: len(counts)]
            plans[at] = Batches(rows, counts, draw_keys[at, : len(counts)])
    return plans  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True)
class _Extent:
    """How far a client's training goes: ``kept`` of its ``n`` rows in every epoch, which is ``width`` wide
    with its padding; ``counts`` int64 [steps] are the real rows of each batch."""

    n: int
    bits: int
    n_epochs: int
    kept: int
    width: int
    counts: np.ndarray


def _extent(n: int, recipe: Recipe) -> _Extent:
    n_steps, per_epoch, size = recipe.n_steps(n), recipe.steps_per_epoch(n), recipe.batch_size
    kept = min(n, per_epoch * size)
    counts = np.full(n_steps, size)
    counts[per_epoch - 1 :: per_epoch] = kept - (per_epoch - 1) * size
    return _Extent(n, bits_of(n), -(-n_steps // per_epoch), kept, per_epoch * size, counts)


def _shown(
    extents: Sequence[_Extent], n_epochs: int, batch: int, epoch_keys: np.ndarray, shuffles: bool
) -> np.ndarray:
    """int64 [clients, epochs, rows]: what each client sees in turn, then zeros."""
    sizes, kept = (np.array([getattr(e, name) for e in extents]) for name in ("n", "kept"))
    n, width, least = int(sizes.max()), int(kept.max()), int(kept.min())
    shown = np.zeros((len(extents), n_epochs, max(e.width for e in extents)), np.int64)
    ragged = sizes if int(sizes.min()) < n else None
    for epoch in range(n_epochs):
        order = orders(epoch_keys[:, epoch], n, ragged) if shuffles else np.arange(n)
        shown[:, epoch, :width] = order[..., :width]
        if least < width:
            shown[:, epoch, least:width][np.arange(least, width) >= kept[:, None]] = 0
    return shown
