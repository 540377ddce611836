"""A schedule of transfers in the forms that vLLM and SGLang move weights in."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, instance_of, whole
from evenload.moe.placement.fleet import Fleet
from evenload.moe.search.transfers import Schedule, Transfer, schedule_transfers

__all__ = ["MigrationFlow", "layer_chunks", "migration_batches"]


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
