"""Schedules of transfers from one placement to another: which GPU fetches which expert, from where, when.

A batch is a set of transfers that run at the same time and do not interfere:

- a GPU sends at most one expert and receives at most one;
- every source holds its expert when the batch begins. A GPU receives into one spare buffer and fills the slot
  when the batch is over, so nothing is overwritten while it is being read;
- at the end of every batch each GPU holds no more experts of a layer than it has slots, and each expert has a
  copy. So serving can go on between batches.

Such batches always exist. A full GPU waits only while an expert that it alone holds is still to be sent
elsewhere. Following these from GPU to GPU closes a ring, whose transfers fit into one batch.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, instance_of, number, places, whole
from evenload.errors import ConfigError, quoted
from evenload.moe.placement.fleet import Fleet

MOST_BYTES = 1 << 50  # of an expert
BYTES_PER_S = 50e9  # of a GPU's link, 400 Gbit/s


@dataclass(frozen=True, slots=True)
class Transfer:
    """A fetch of ``expert`` of ``layer`` by GPU ``target`` into ``slot``.

    source  the GPU that sends it; -1 if no GPU has it, so that it must be loaded
    """

    layer: int
    expert: int
    source: int
    target: int
    slot: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Batches of transfers, one after the other.

    phy2log    [layers, slots] the new placement, where experts that stay on their GPU keep their slots
    n_slots    slots that hold an expert in ``phy2log``
    bytes      weights fetched in all
    seconds    estimate: each batch takes as long as its slowest transfer, plus the latency
    """

    batches: tuple[tuple[Transfer, ...], ...]
    phy2log: NDArray[np.int64]
    n_slots: int
    bytes: int
    seconds: float

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        return tuple(transfer for batch in self.batches for transfer in batch)

    @property
    def moved_share(self) -> float:
        """Transfers over slots: 1.0 if every slot is filled anew."""
        return len(self.transfers) / self.n_slots if self.n_slots else 0.0

    @property
    def fewest_batches(self) -> int:
        """A lower bound of the batches of any schedule: the most experts that one GPU receives."""
        received = defaultdict(int)
        for transfer in self.transfers:
            received[transfer.target] += 1
        return max(received.values(), default=0)


def keep_slots(old: NDArray[np.int64], new: NDArray[np.int64], n_gpus: int) -> NDArray[np.int64]:
    """Reorder ``new`` inside each GPU so that experts that stay keep their slots of ``old``; twins, too."""
    kept = new.copy()
    width = new.shape[1] // n_gpus
    for before, after in zip(old.reshape(-1, width), kept.reshape(-1, width), strict=True):
        if np.array_equal(before, after):
            continue
        coming = Counter(after[after >= 0].tolist())
        stays = np.zeros(width, bool)
        for slot, expert in enumerate(before.tolist()):
            if coming[expert] > 0:
                coming[expert] -= 1
                stays[slot] = True
        fetched = []
        for expert in after.tolist():
            if coming[expert] > 0:
                coming[expert] -= 1
                fetched.append(expert)
        # Slots that hold something in one of the two maps are there; others may be beyond the GPU's own.
        free = sorted(np.flatnonzero(~stays).tolist(), key=lambda slot: max(after[slot], before[slot]) < 0)
        placed = np.where(stays, before, -1)
        placed[free[: len(fetched)]] = fetched
        after[:] = placed
    return kept


def schedule_transfers(
    old: ArrayLike,
    new: ArrayLike,
    fleet: Fleet,
    *,
    expert_bytes: int = 0,
    bytes_per_s: float = BYTES_PER_S,
    node_bytes_per_s: float | None = None,
    load_bytes_per_s: float = 5e9,
    latency_s: float = 20e-6,
) -> Schedule:
    """Schedule the transfers that lead from ``old`` to ``new`` [layers, GPUs * width], in few batches.

    expert_bytes      weights of one expert in one layer
    bytes_per_s       of a GPU's link to other nodes; ``node_bytes_per_s`` inside a node, by default the same
    load_bytes_per_s  for an expert that no living GPU holds

    Copies on dead GPUs are no sources. Raises ConfigError if shapes differ or do not fit the fleet.
    """
    before, after = _placements(old, new, fleet)
    whole("expert_bytes", expert_bytes, most=MOST_BYTES)
    number("latency_s", latency_s)
    speeds = {True: bytes_per_s if node_bytes_per_s is None else node_bytes_per_s, False: bytes_per_s}
    for speed in (*speeds.values(), load_bytes_per_s):
        number("a number of bytes per second", speed, is_zero_allowed=False)
    after = keep_slots(before, after, fleet.n_gpus)
    rows = enumerate(zip(before, after, strict=True))
    layers = [list(_Layer(layer, *row, fleet).batches()) for layer, row in rows]
    batches = tuple(tuple(batch) for batch in _merge(layers))

    def rate(transfer: Transfer) -> float:
        if transfer.source < 0:
            return load_bytes_per_s
        return speeds[fleet.nodes[transfer.source] == fleet.nodes[transfer.target]]

    seconds = sum((expert_bytes / min(map(rate, batch)) + latency_s for batch in batches), 0.0)
    n_bytes = sum(map(len, batches)) * expert_bytes
    return Schedule(batches, after, int((after >= 0).sum()), n_bytes, seconds)


def _placements(old: ArrayLike, new: ArrayLike, fleet: Fleet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both placements, if they are of this fleet."""
    instance_of("fleet", fleet, Fleet, "a Fleet, such as Fleet.even(8, 72)")
    before, after = array_of("old", old), array_of("new", new)
    kinds, width = before.dtype.kind + after.dtype.kind, fleet.n_gpus * fleet.width
    if not set(kinds) <= set("iu") or min(before.min(initial=0), after.min(initial=0)) < -1:
        raise ConfigError(
            "placements of other things than experts", hint="give integers, -1 for an empty slot"
        )
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] != width:
        raise ConfigError(
            f"placements of {before.shape} and {after.shape} for {fleet.n_gpus} GPUs of {fleet.width} slots",
            hint=f"give both as [layers, {width}]",
        )
    return before.astype(np.int64), after.astype(np.int64)


class _Layer:
    """The experts that each GPU holds of one layer while its transfers are put into batches."""

    def __init__(self, layer: int, before: NDArray[np.int64], after: NDArray[np.int64], fleet: Fleet):
        self.layer, self.fleet = layer, fleet
        self.holders: dict[int, set[int]] = defaultdict(set)  # expert -> GPUs that have it
        self.wanted: dict[int, set[int]] = defaultdict(set)  # expert -> GPUs that need it in the end
        self.missing: dict[int, dict[int, int]] = {}  # GPU -> the experts it lacks -> their slots
        self.leaving: list[set[int]] = []  # GPU -> experts to be dropped
        self.used: list[int] = []  # GPU -> experts there
        rows, goals = (row.reshape(fleet.n_gpus, -1).tolist() for row in (before, after))
        for gpu in range(fleet.n_gpus):
            self._add_gpu(gpu, set() if gpu in fleet.dead else set(rows[gpu]) - {-1}, goals[gpu])
        self._drop_spare(list(self.holders))

    def _add_gpu(self, gpu: int, has: set[int], goal: list[int]) -> None:
        self.used.append(len(has))
        self.leaving.append(has - set(goal))
        for expert in has:
            self.holders[expert].add(gpu)
        lacks = {}
        for j, expert in enumerate(goal):
            if expert >= 0:
                self.wanted[expert].add(gpu)
                if expert not in has:
                    lacks[expert] = gpu * self.fleet.width + j
        if lacks:
            self.missing[gpu] = lacks

    def batches(self) -> Iterable[list[Transfer]]:
        """Yield the layer's batches, in order."""
        while self.missing:
            batch = self._batch()
            for move in batch:
                self.holders[move.expert].add(move.target)
                self.used[move.target] += 1
                del self.missing[move.target][move.expert]
                if not self.missing[move.target]:
                    del self.missing[move.target]
            self._drop_spare([move.expert for move in batch])
            yield batch

    def _drop_spare(self, experts: list[int]) -> None:
        """Drop copies that their GPU does not need in the end, once one that does has its copy."""
        for expert in experts:
            if self.wanted[expert] and not self.holders[expert] & self.wanted[expert]:
                continue
            for gpu in self.holders[expert] - self.wanted[expert]:
                self.holders[expert].discard(gpu)
                self.leaving[gpu].discard(expert)
                self.used[gpu] -= 1

    def _batch(self) -> list[Transfer]:
        """As many transfers as fit, GPUs that lack most first; a ring of them if all GPUs are full."""
        self.sends: set[int] = set()
        self.freed: set[int] = set()  # GPUs that can drop an expert when this batch is over
        batch: list[Transfer] = []
        waiting = sorted(self.missing, key=lambda gpu: -len(self.missing[gpu]))
        while True:
            served = [gpu for gpu in waiting if self._serve(gpu, batch)]
            if not served:
                return batch or self._ring()
            waiting = [gpu for gpu in waiting if gpu not in served]

    def _serve(self, gpu: int, batch: list[Transfer]) -> bool:
        """Add a transfer to ``gpu``, if it has room: first one that frees a slot at its source."""
        if self.used[gpu] >= self.fleet.slots[gpu] and gpu not in self.freed:
            return False
        nodes = self.fleet.nodes
        choices = []
        for expert in self.missing[gpu]:
            sources = [source for source in self.holders[expert] if source not in self.sends]
            choices += [(expert not in self.leaving[s], nodes[s] != nodes[gpu], s, expert) for s in sources]
            if not self.holders[expert]:
                choices.append((True, True, -1, expert))
        if not choices:
            return False
        stays, _, source, expert = min(choices)
        batch.append(Transfer(self.layer, expert, source, gpu, self.missing[gpu][expert]))
        if source >= 0:
            self.sends.add(source)
            if not stays:
                self.freed.add(source)
        return True

    def _ring(self) -> list[Transfer]:
        """A ring of transfers for full GPUs: each sends an expert that it must drop to one that lacks it."""
        path: dict[int, int] = {}  # GPU -> the expert it gives, in order
        gpu = min(self.missing)
        while gpu not in path:
            path[gpu] = min(self.leaving[gpu])
            gpu = min(g for g in self.wanted[path[gpu]] if path[gpu] in self.missing.get(g, {}))
        givers = list(path)[list(path).index(gpu) :]
        takers = givers[1:] + givers[:1]
        return [
            Transfer(self.layer, path[giver], giver, taker, self.missing[taker][path[giver]])
            for giver, taker in zip(givers, takers, strict=True)
        ]


def _merge(layers: list[list[list[Transfer]]]) -> list[list[Transfer]]:
    """Merge the layers' batches that share no sender and no receiver, keeping each layer's order."""
    waiting = [iter(batches) for batches in layers]
    heads = [(layer, batch) for layer, batches in enumerate(waiting) if (batch := next(batches, None))]
    merged = []
    while heads:
        senders: set[int] = set()
        receivers: set[int] = set()
        together: list[Transfer] = []
        left = []
        for layer, batch in heads:
            sends, receives = {t.source for t in batch if t.source >= 0}, {t.target for t in batch}
            if sends & senders or receives & receivers:
                left.append((layer, batch))
                continue
            senders |= sends
            receivers |= receives
            together += batch
            following = next(waiting[layer], None)
            if following:
                left.append((layer, following))
        heads = left
        merged.append(together)
    return merged


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
