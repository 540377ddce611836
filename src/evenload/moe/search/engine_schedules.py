"""A schedule of transfers in the forms that vLLM and SGLang move weights in."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, instance_of, places, whole
from evenload.errors import ConfigError, quoted
from evenload.moe.placement.fleet import Fleet
from evenload.moe.search.transfers import Schedule, Transfer, schedule_transfers


@dataclass(frozen=True, slots=True)
class MigrationFlow:
    """Experts of one layer that one rank sends to another, with the fields of vLLM's class of this name."""

    src_rank: int
    dst_rank: int
    expert_ids: tuple[int, ...]


def migration_batches(old: ArrayLike, new: ArrayLike, fleet: Fleet) -> list[list[list[MigrationFlow]]]:
    """Batches of flows for each layer, as vLLM's ``schedule_migration_batches_for_layers`` has them.

    old, new  [layers, GPUs * width] placements, as in ``schedule_transfers``

    Experts come from ranks that hold them in ``old``, and those that send least so far. In a batch a rank
    sends to one rank or receives from one, not both; the pairs of the busiest ranks come first, which keeps
    batches few. Experts that no living rank holds must be loaded and are in no flow. Raises ConfigError if
    shapes differ or do not fit the fleet.
    """
    schedule = schedule_transfers(old, new, fleet)
    held = array_of("old", old).reshape(len(schedule.phy2log), fleet.n_gpus, -1)
    wanted: list[list[Transfer]] = [[] for _ in held]
    for transfer in schedule.transfers:
        wanted[transfer.layer].append(transfer)
    return [_batches(_pairs(rows, fleet, moves)) for rows, moves in zip(held, wanted, strict=True)]


def _pairs(
    held: NDArray[np.integer], fleet: Fleet, moves: list[Transfer]
) -> dict[tuple[int, int], list[int]]:
    """The experts of one layer that each pair of ranks moves."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    n_sent: dict[int, int] = defaultdict(int)
    for move in sorted(moves, key=lambda move: (move.expert, move.target)):
        holders = np.flatnonzero((held == move.expert).any(axis=1)).tolist()
        living = [rank for rank in holders if rank not in fleet.dead]
        if living:
            source = min(living, key=lambda rank: (n_sent[rank], rank))
            n_sent[source] += 1
            pairs[source, move.target].append(move.expert)
    return pairs


def _batches(pairs: dict[tuple[int, int], list[int]]) -> list[list[MigrationFlow]]:
    degree: dict[int, int] = defaultdict(int)
    for pair in pairs:
        for rank in pair:
            degree[rank] += 1
    batches: list[list[MigrationFlow]] = []
    used: list[set[int]] = []
    for pair in sorted(pairs, key=lambda p: (-max(degree[p[0]], degree[p[1]]), p)):
        at = next((i for i, ranks in enumerate(used) if not ranks & set(pair)), len(used))
        if at == len(used):
            batches.append([])
            used.append(set())
        batches[at].append(MigrationFlow(*pair, tuple(sorted(pairs[pair]))))
        used[at].update(pair)
    return batches


def layer_chunks(schedule: Schedule, most: int) -> list[list[int]]:
    """Layers that change, in chunks of at most ``most`` transfers (or one layer), as SGLang updates them.

    Between two chunks SGLang serves a batch: what a chunk moves is what serving waits for. Layers without
    transfers are in no chunk.
    """
    instance_of("schedule", schedule, Schedule, "what schedule_transfers(...) returns")
    whole("most", most, least=1)
    n_transfers = [0] * len(schedule.phy2log)
    for transfer in schedule.transfers:
        n_transfers[transfer.layer] += 1
    chunks: list[list[int]] = []
    room = 0
    for layer, n in enumerate(n_transfers):
        if not n:
            continue
        if not chunks or n > room:
            chunks.append([])
            room = most
        chunks[-1].append(layer)
        room -= n
    return chunks


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
