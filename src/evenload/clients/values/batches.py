"""The rows that each client sees in each step, decided from keys alone before any training."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenload.clients.values.keys import DROPOUT, SHUFFLE, bits_of, keys, orders
from evenload.clients.values.recipe import Recipe

SMALL = 6  # bits of a client's number of rows: clients of up to so many are ordered together


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of one client.

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

    def some(self, steps: slice | Sequence[int]) -> "Batches":
        """The batches of these steps."""
        return Batches(self.rows[steps], self.counts[steps], self.draws[steps])

    def of_fresh(self, n: int, per_epoch: int) -> "Batches":
        """Batches of rows that are other ones in each epoch of ``per_epoch`` batches: ``n`` after ``n``."""
        begin = n * (np.arange(self.n_steps) // per_epoch)
        return replace(self, rows=self.rows + begin[:, None])


def plan_batches(
    sizes: Sequence[int],
    clients: Sequence[int],
    recipes: Sequence[Recipe],
    seed: int,
    round: int = 0,
    *,
    draws: bool = True,
) -> list[Batches]:
    """Plan the batches of ``clients`` (their ids) with ``sizes`` rows each; those of about one size at once.

    ``draws``: the model has dropout, which needs a key in every step
    """
    ids = np.asarray(clients, np.int64)[:, None]
    equal: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, key in enumerate(zip(sizes, map(id, recipes), strict=True)):
        equal[key].append(at)
    alike: dict[tuple[int, int, bool], list[tuple[int, _Extent]]] = defaultdict(list)
    n_epochs, n_steps = 1, 0
    for (n, _), members in equal.items():
        recipe = recipes[members[0]]
        extent = _extent(n, recipe.steps_per_epoch(n), recipe.n_steps(n), recipe.batch_size)
        alike[max(SMALL, extent.bits), extent.n_epochs, recipe.shuffle] += [(at, extent) for at in members]
        n_epochs, n_steps = max(n_epochs, extent.n_epochs), max(n_steps, extent.n_steps)
    epoch_keys = keys(SHUFFLE, seed, round, ids, np.arange(n_epochs)[None, :])
    draw_keys = keys(DROPOUT, seed, round, ids, np.arange(n_steps)[None, :]).view(np.int64) if draws else None
    plans: list[Batches | None] = [None] * len(sizes)
    for (_, n_epochs, shuffles), pairs in alike.items():
        members, extents = zip(*pairs, strict=True)
        shown = _shown(extents, epoch_keys[list(members), :n_epochs], shuffles)
        for lines, at, extent in zip(shown, members, extents, strict=True):
            own = lines[0] if n_epochs == 1 else lines[:, : extent.per_epoch].reshape(-1, lines.shape[2])
            drawn = extent.no_draws if draw_keys is None else draw_keys[at, : extent.n_steps]
            plans[at] = Batches(own[: extent.n_steps], extent.counts, drawn)
    return plans  # pyrefly: ignore


@dataclass(frozen=True, slots=True)
class _Extent:
    """The extent of a client's training: ``kept`` of its ``n`` rows in each epoch of ``per_epoch`` batches.

    counts   int64 [n_steps], the real rows of each batch
    no_draws int64 [n_steps], the keys where there is nothing to draw
    """

    n: int
    bits: int
    n_epochs: int
    per_epoch: int
    n_steps: int
    batch: int
    kept: int
    counts: np.ndarray
    no_draws: np.ndarray


@functools.lru_cache(maxsize=4096)
def _extent(n: int, per_epoch: int, n_steps: int, batch: int) -> _Extent:
    kept = min(n, per_epoch * batch)
    counts = np.full(n_steps, batch)
    counts[per_epoch - 1 :: per_epoch] = kept - (per_epoch - 1) * batch
    no_draws = np.zeros(n_steps, np.int64)
    for shared in (counts, no_draws):
        shared.setflags(write=False)
    return _Extent(n, bits_of(n), -(-n_steps // per_epoch), per_epoch, n_steps, batch, kept, counts, no_draws)


def _shown(extents: Sequence[_Extent], epoch_keys: np.ndarray, shuffles: bool) -> np.ndarray:
    """int64 [clients, epochs, batches, batch]: the rows that each client sees in turn, then zeros."""
    distinct = set(map(id, extents))
    known = extents if len(distinct) > 1 else extents[:1]  # clients of one size share their extent
    n, width, least = max(e.n for e in known), max(e.kept for e in known), min(e.kept for e in known)
    n_batches, batch = max(e.per_epoch for e in known), extents[0].batch
    shown = np.zeros((*epoch_keys.shape, n_batches * batch), np.int64)
    ragged = np.array([e.n for e in extents]) if min(e.n for e in known) < n else None
    for epoch in range(epoch_keys.shape[1]):
        order = orders(epoch_keys[:, epoch], n, ragged) if shuffles else np.arange(n)
        shown[:, epoch, :width] = order[..., :width]
        if least < width:
            kept = np.array([e.kept for e in extents])[:, None]
            shown[:, epoch, least:width][np.arange(least, width) >= kept] = 0
    return shown.reshape(*epoch_keys.shape, n_batches, batch)
