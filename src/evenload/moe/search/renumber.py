"""A placement seen from a fleet that ranks have joined or left, so that few experts need to be fetched."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, places, whole
from evenload.errors import ConfigError, quoted

__all__ = ["renumber"]


def renumber(phy2log: ArrayLike, ranks: Sequence[int], n_slots: int, *, n_ranks: int) -> NDArray[np.int64]:
    """[layers, n_slots] what the ranks of a new fleet hold of an old placement; -1 where nothing is held.

    phy2log  [layers, slots] or [slots] the old placement, over ``n_ranks``
    ranks    [new ranks] which old rank each new rank was; -1 for one that has joined
    n_slots  of the new fleet, as many on each rank. Where a rank has fewer slots than before, it keeps the
             experts that the fewest ranks hold

    To plan with few fetches: ``place(loads, fleet, old=renumber(...), target=...)``. Raises ConfigError if an
    old rank is named twice or is out of range, or slots do not divide.
    """
    old = places("phy2log", phy2log)
    old = old[None] if old.ndim == 1 else old
    n_ranks = whole("n_ranks", n_ranks, least=1)
    was = array_of("ranks", ranks)
    if old.ndim != 2 or not old.size or old.shape[1] % n_ranks:
        raise ConfigError(
            f"phy2log has shape {old.shape}",
            hint=f"give integers [layers, slots], as many slots on each of {n_ranks} ranks",
        )
    known = was[was >= 0] if was.ndim == 1 and was.dtype.kind in "iu" else None
    if known is None or not was.size or was.min() < -1 or was.max() >= n_ranks:
        raise ConfigError(f"ranks is {quoted(ranks)}", hint=f"give old ranks, 0 to {n_ranks - 1}, or -1")
    if len(set(known.tolist())) < len(known):
        raise ConfigError(f"ranks {quoted(ranks)} name an old rank twice", hint="name each at most once")
    if whole("n_slots", n_slots, least=1) % len(was):
        raise ConfigError(
            f"{n_slots} slots do not divide over {len(was)} ranks",
            hint=f"use {-(-n_slots // len(was)) * len(was)}",
        )
    width = n_slots // len(was)
    out = np.full((len(old), len(was), width), -1, np.int64)
    by_rank = old.astype(np.int64).reshape(len(old), n_ranks, -1)
    for layer, rows in zip(out, by_rank[:, known], strict=True):
        _, at, n = np.unique(rows, return_inverse=True, return_counts=True)
        n_holders = np.where(rows >= 0, n[at.reshape(rows.shape)], np.inf)
        for rank, row, held in zip(np.flatnonzero(was >= 0), rows, n_holders, strict=True):
            kept = np.sort(np.argsort(held, kind="stable")[:width])
            layer[rank, : len(kept)] = row[kept]
    return out.reshape(len(old), n_slots)
