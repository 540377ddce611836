"""``Dispatcher``: ranks send their expert ids to physical slots so that together they fill the quotas."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, instance_of, places, whole
from evenload._optional import require
from evenload.balance.flow import ReplicaGraph
from evenload.errors import ConfigError, quoted
from evenload.native.kernel import compiled, inlined

MOST_IDS = 1 << 40  # so that sums over ranks and experts stay in 64 bits


class SlotDispatch:
    """The slots of each expert, and what sends expert ids there; threads may share one.

    slot_start, slots  [experts + 1] and [...] int32: expert e has slots[slot_start[e] : slot_start[e + 1]]
    slot2gpu           [slots] int32
    rank2gpu           [ranks] int32 the GPU of each rank, -1 for none
    gpu2node           [gpus] int32, -1 where unknown. A rank's ids go to its own GPU first, then to its node,
                       then anywhere: the loads are the same, less is sent
    """

    slot_start: NDArray[np.int32]
    slots: NDArray[np.int32]
    slot2gpu: NDArray[np.int32]
    rank2gpu: NDArray[np.int32]
    gpu2node: NDArray[np.int32]

    @property
    def n_experts(self) -> int:
        return len(self.slot_start) - 1

    def count(
        self, ids: Any, counts: NDArray[np.int64] | None = None, *, mask: Any = None
    ) -> NDArray[np.int64]:
        """[experts] int64: how often each expert occurs in ``ids``, integers in an array or CPU tensor.

        counts  [experts] int64 to write to; new by default
        mask    truth values of the ids' shape, or [tokens]: False for padding, which counts nowhere

        Raises ConfigError for an id below -1 or from ``n_experts`` on.
        """
        if counts is None:
            counts = np.empty(self.n_experts, np.int64)
        elif whole_counts("counts", counts, (self.n_experts,)) is not counts or not counts.flags.writeable:
            raise ConfigError(
                f"counts to write to are {quoted(counts)}", hint=f"give [{self.n_experts}] int64"
            )
        flat = flat_ids(without_padding(ids, mask))
        bad = count_ids(flat, counts)
        if bad:
            raise bad_id(flat[bad - 1], self.n_experts)
        return counts

    def exact_shares(
        self, quotas: NDArray[np.int64], counts: NDArray[np.int64], rank: int
    ) -> NDArray[np.int64]:
        """[slots] int64: how many of ``rank``'s ids go to each slot; all ranks' shares sum to ``quotas``.

        quotas  [slots] int64 from the router, for demand ``counts.sum(0)``
        counts  [ranks, experts] int64, of every rank

        Raises ConfigError if there are not as many rows as ranks, or the quotas do not sum to the counts.
        """
        counts = whole_counts("counts", counts, (len(self.rank2gpu), self.n_experts))
        quotas = self._checked(quotas, counts.sum(axis=0), rank, len(counts))
        shares = np.zeros(len(self.slot2gpu), np.int64)
        share_exactly(
            self.slot_start, self.slots, self.slot2gpu, quotas, counts, rank, self.rank2gpu, self.gpu2node,
            shares,
        )  # fmt: skip
        return shares

    def dithered_shares(
        self, quotas: NDArray[np.int64], totals: ArrayLike, own: ArrayLike, rank: int, n_ranks: int
    ) -> NDArray[np.int64]:
        """Like ``exact_shares`` from sums over ranks alone, as of an all-reduce. Nearly fills the quotas.

        totals  [experts] that the quotas were made for, over all ranks
        own     [experts] of this rank; may be of another batch than the totals
        """
        shape = (self.n_experts,)
        totals, own = whole_counts("totals", totals, shape), whole_counts("own", own, shape)
        quotas = self._checked(quotas, totals, rank, n_ranks)
        if 2 * n_ranks * int(own.max(initial=0)) * int(totals.max(initial=0)) >= 1 << 62:
            raise ConfigError("too many ids to scale in 64 bits", hint="use exact_shares, or smaller batches")
        shares = np.zeros(len(self.slot2gpu), np.int64)
        share_dithered(self.slot_start, self.slots, quotas, totals, own, rank, n_ranks, shares)
        return shares

    def map(self, ids: Any, shares: NDArray[np.int64], *, mask: Any = None) -> Any:
        """Physical slot of each id; -1 stays -1. Shape, kind and dtype are those of ``ids`` (at least int32).

        shares  [slots] int64, from ``exact_shares`` or ``dithered_shares`` for these ids
        mask    as of ``count``: padding becomes -1

        Raises ConfigError for an id out of range, or ids that the shares were not made for.
        """
        flat = flat_ids(without_padding(ids, mask))
        out = np.empty_like(flat)
        shares = whole_counts("shares", shares, (len(self.slot2gpu),))
        bad = map_ids(flat, self.slot_start, self.slots, shares, out)
        if bad > 0:
            raise bad_id(flat[bad - 1], self.n_experts)
        _check_is_whole(out, shares, bad < 0)
        return like(ids, out)

    def _checked(self, quotas: Any, totals: NDArray[np.int64], rank: int, n_ranks: int) -> NDArray[np.int64]:
        if whole("rank", rank) >= whole("n_ranks", n_ranks):
            raise ConfigError(f"rank {rank} of {n_ranks}", hint=f"use 0 to {n_ranks - 1}")
        quotas = whole_counts("quotas", quotas, (len(self.slot2gpu),))
        served = np.add.reduceat(np.append(quotas[self.slots], 0), self.slot_start[:-1])
        served[self.slot_start[:-1] == self.slot_start[1:]] = 0
        if not np.array_equal(served, totals):
            raise ConfigError(
                "quotas do not sum to the counts", hint="route the sum of all ranks' counts first"
            )
        return quotas


class Dispatcher(SlotDispatch):
    """The slots of one layer of ``graph``, which sends expert ids to them.

    layer     of the graph
    rank2gpu  [ranks] the GPU of each rank, -1 for none; by default rank r is GPU r
    nodes     [gpus] the node of each GPU; by default unknown

    Raises ConfigError if a GPU is out of range.
    """

    def __init__(
        self,
        graph: ReplicaGraph,
        *,
        layer: int = 0,
        rank2gpu: Sequence[int] | None = None,
        nodes: Sequence[int] | None = None,
    ):
        require("llvmlite.binding", extra="moe", why="dispatch")
        self.graph = instance_of(
            "graph", graph, ReplicaGraph, "a ReplicaGraph, such as ReplicaGraph.from_slots(...)"
        )
        if whole("layer", layer) >= graph.n_layers:
            raise ConfigError(f"layer {layer} of {graph.n_layers}", hint=f"use 0 to {graph.n_layers - 1}")
        self.rank2gpu = places("rank2gpu", range(graph.n_gpus) if rank2gpu is None else rank2gpu)
        gpus = self.rank2gpu
        if gpus.ndim != 1 or not len(gpus) or gpus.min() < -1 or gpus.max() >= graph.n_gpus:
            raise ConfigError(
                f"rank2gpu is {quoted(gpus.tolist())}",
                hint=f"give GPUs from 0 to {graph.n_gpus - 1}, -1 for none",
            )
        self.gpu2node = np.full(graph.n_gpus, -1, np.int32) if nodes is None else places("nodes", nodes)
        if self.gpu2node.shape != (graph.n_gpus,):
            raise ConfigError(
                f"nodes has shape {self.gpu2node.shape}", hint=f"give one for each of {graph.n_gpus} GPUs"
            )
        self.slot_start, self.slots = _expert_slots(graph, layer)
        self.slot2gpu = graph.slot2gpu

    def padded_slots(self) -> NDArray[np.int64]:
        """``log2slot`` [experts, C] padded with -1: each expert's slots that can be given ids, by GPU.

        C is the next power of two to the most copies of an expert.
        """
        n_copies = np.diff(self.slot_start)
        width = power_of_two(int(n_copies.max(initial=1)))
        log2slot = np.full((self.graph.n_experts, width), -1)
        expert = np.repeat(np.arange(self.graph.n_experts), n_copies)
        log2slot[expert, np.arange(len(self.slots)) - self.slot_start[expert]] = self.slots
        return log2slot


def power_of_two(n: int) -> int:
    """The least power of two that is ``n`` or more."""
    return 1 << max(0, n - 1).bit_length()


def _expert_slots(graph: ReplicaGraph, layer: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(slot_start [experts + 1], slots [...]) int32: each expert's slots that can be given ids, by GPU."""
    single = np.flatnonzero(graph.home[layer] >= 0)
    rows = slice(graph.row_start[layer], graph.row_start[layer + 1])
    edges = slice(graph.row_edge[rows.start], graph.row_edge[rows.stop])
    n_edges = np.diff(graph.row_edge[rows.start : rows.stop + 1])
    expert = np.concatenate([single, np.repeat(graph.row2log[rows], n_edges)])
    slot = np.concatenate([graph.home_slot[layer, single], graph.edge2slot[edges]])
    order = np.argsort(expert, kind="stable")
    start = np.searchsorted(expert[order], np.arange(graph.n_experts + 1))
    return start.astype(np.int32), slot[order].astype(np.int32)


def whole_counts(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """``values`` as numbers of ids, int64 in C order; no copy of what is. Raises ConfigError for others."""
    array = array_of(name, values)
    if array.shape != shape or (array.dtype.kind not in "iu" and array.size):
        raise ConfigError(
            f"{name} have shape {array.shape} and dtype {array.dtype}",
            hint=f"give whole numbers, {list(shape)}",
        )
    least, most = array.min(initial=0), array.max(initial=0)
    if least < 0 or most > MOST_IDS:
        raise ConfigError(f"{name} from {least} to {most}", hint=f"give whole numbers from 0 to {MOST_IDS}")
    return np.ascontiguousarray(array, np.int64)


def _check_is_whole(out: NDArray[Any], shares: NDArray[np.int64], is_too_many: bool) -> None:
    """Raise ConfigError unless the ids mapped to ``out`` are as many as their shares."""
    if is_too_many:
        raise ConfigError(
            "more ids of an expert than its shares", hint="map the ids that were counted for the shares"
        )
    n_mapped, n_counted = int(np.count_nonzero(out >= 0)), int(shares.sum())
    if n_mapped != n_counted:
        raise ConfigError(
            f"{n_mapped} ids, but shares of {n_counted}",
            hint="map all the ids that were counted for the shares, in one call",
        )


def flat_ids(ids: Any) -> NDArray[Any]:
    """``ids``, an array or CPU tensor, as a flat int64 or int32 array in C order; a view where possible.

    Raises ConfigError for other dtypes than integers, and for a tensor on another device.
    """
    if hasattr(ids, "detach") and ids.device.type != "cpu":
        raise ConfigError(
            f"ids are on {ids.device}", hint="route them there with a Planner(backend='triton')"
        )
    try:
        array = ids.detach().numpy() if hasattr(ids, "detach") else np.asarray(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"ids are no array: {error}", hint="give integers, in rows of one length"
        ) from error
    if array.dtype != np.int64 and array.dtype != np.int32:
        if array.dtype.kind not in "iu" and array.size:
            raise ConfigError(f"ids have dtype {array.dtype}", hint="give integers")
        array = array.astype(np.int64)
    return array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)


def like(ids: Any, out: NDArray[Any]) -> Any:
    """``out`` in the shape of ``ids``, as a tensor if that is one."""
    if hasattr(ids, "numpy"):
        import torch

        return torch.from_numpy(out).view(ids.shape)
    return out.reshape(np.shape(ids))


def bad_id(found: Any, n_experts: int) -> ConfigError:
    """The error that says that the id ``found`` is out of range."""
    return ConfigError(
        f"expert id {int(found)} of {n_experts}", hint=f"use 0 to {n_experts - 1}, and -1 for no expert"
    )


IGNORED = -1  # an id that stands for no expert
TOO_FEW = -1  # map_ids: more ids of an expert than its shares add up to


@compiled
def count_ids(ids, counts):
    """Write how often each expert occurs, -1 aside. Returns 1 + the place of the first bad id, or 0."""
    counts[:] = 0
    for i in range(len(ids)):
        expert = ids[i]
        if 0 <= expert < len(counts):
            counts[expert] += 1
        elif expert != IGNORED:
            return i + 1
    return 0


@compiled
def map_ids(ids, slot_start, slots, shares, out):
    """Map each expert's ids to its slots in order, ``shares[slot]`` to each.

    slot_start [experts + 1], slots [...] int32: expert e has slots[slot_start[e] : slot_start[e + 1]].
    Returns 0, 1 + the place of the first bad id, or TOO_FEW.
    """
    at, left = np.empty(len(slot_start) - 1, np.int32), np.empty(len(slot_start) - 1, np.int64)
    for expert in range(len(at)):
        at[expert] = slot_start[expert]
        left[expert] = shares[slots[slot_start[expert]]] if slot_start[expert] < slot_start[expert + 1] else 0
    for i in range(len(ids)):
        expert = ids[i]
        if expert == IGNORED:
            out[i] = IGNORED
            continue
        if not 0 <= expert < len(at):
            return i + 1
        while left[expert] == 0:
            at[expert] += 1
            if at[expert] >= slot_start[expert + 1]:
                return TOO_FEW
            left[expert] = shares[slots[at[expert]]]
        left[expert] -= 1
        out[i] = slots[at[expert]]
    return 0


@inlined
def _assign(other, j, slot, rank, supply, room, shares):
    """Give the slot as many of the ids that rank ``other`` has left as it has room for."""
    step = min(supply[other], room[j])
    supply[other] -= step
    room[j] -= step
    if other == rank:
        shares[slot] += step


@compiled
def share_exactly(slot_start, slots, slot2gpu, quotas, counts, rank, rank2gpu, gpu2node, shares):
    """One rank's share of each slot, such that the shares of all ranks fill the quotas exactly.

    counts    [ranks, experts] int64 ids of each rank; quotas [slots] int64 sum to them
    rank2gpu  [ranks] and gpu2node [gpus] int32, -1 if unknown
    shares    [slots] int64 is written

    Each rank first fills slots on its own GPU. The rest is assigned in order of slots and ranks, first inside
    each node, then anywhere. Every rank computes this for itself, with the same result.
    """
    n_ranks = len(rank2gpu)
    supply, room = np.empty(n_ranks, np.int64), np.empty(len(slots), np.int64)
    for expert in range(len(slot_start) - 1):
        first, last = slot_start[expert], slot_start[expert + 1]
        if last - first == 1:
            shares[slots[first]] = counts[rank, expert]
            continue
        for j in range(first, last):
            room[j] = quotas[slots[j]]
            shares[slots[j]] = 0
        for other in range(n_ranks):
            supply[other] = counts[other, expert]
            for j in range(first, last):
                if slot2gpu[slots[j]] == rank2gpu[other]:
                    _assign(other, j, slots[j], rank, supply, room, shares)
        for j in range(first, last):
            node = gpu2node[slot2gpu[slots[j]]]
            for other in range(n_ranks):
                if node >= 0 and rank2gpu[other] >= 0 and gpu2node[rank2gpu[other]] == node:
                    _assign(other, j, slots[j], rank, supply, room, shares)
        for j in range(first, last):
            for other in range(n_ranks):
                _assign(other, j, slots[j], rank, supply, room, shares)


@compiled
def share_dithered(slot_start, slots, quotas, totals, own, rank, n_ranks, shares):
    """One rank's share of each slot from the quotas and its own counts alone; nearly fills the quotas.

    totals [experts] int64 over all ranks, own [experts] int64 of this rank. Experts that the quotas do not
    know, with a total of 0, are cut evenly. Each boundary between an expert's slots is scaled to the rank's
    count and rounded by a threshold. The ranks' thresholds are the ``n_ranks`` midpoints of [0, 1), in an
    order that turns with the expert, so that rounding errors cancel over ranks.
    """
    for expert in range(len(slot_start) - 1):
        turn = (rank + expert * 40503) % n_ranks  # 40503 is 2**16 over the golden ratio
        first, last = slot_start[expert], slot_start[expert + 1]
        total, below, done = totals[expert], 0, 0
        if total == 0:
            total = last - first
        for j in range(first, last):
            below += quotas[slots[j]] if totals[expert] > 0 else 1
            cut = (2 * n_ranks * own[expert] * below + (2 * turn + 1) * total) // (2 * n_ranks * total)
            shares[slots[j]] = cut - done
            done = cut


def without_padding(ids: Any, mask: Any) -> Any:
    """``ids`` with -1 wherever ``mask`` is False; as they are without a mask.

    ids   an array or a tensor, on any device
    mask  truth values, of the ids' shape or of one less: [tokens] for [tokens, top-k]; on the ids' device
          for a tensor there. None: no padding

    Nothing waits for a device. Dtypes that have no -1 become int64. Raises ConfigError for other masks.
    """
    if mask is None:
        return ids
    if hasattr(ids, "detach"):
        return _of_tensor(ids, mask)
    found, flags = array_of("ids", ids), array_of("mask", mask)
    _check(flags.dtype == np.bool_ or not flags.size, flags, tuple(flags.shape), tuple(found.shape))
    if found.dtype.kind not in "iu" and found.size:
        raise ConfigError(f"ids have dtype {found.dtype}", hint="give integers")
    found = found if found.dtype in (np.int64, np.int32) else found.astype(np.int64)
    flags = flags.astype(bool)
    return np.where(flags if flags.ndim == found.ndim else flags[..., None], found, found.dtype.type(-1))


def _of_tensor(ids: Any, mask: Any) -> Any:
    torch = require("torch", extra="moe")
    if not isinstance(mask, torch.Tensor):
        if ids.device.type != "cpu":
            raise ConfigError(
                f"mask is {quoted(mask)}", hint=f"give a tensor of truth values on {ids.device}"
            )
        mask = torch.from_numpy(np.array(array_of("mask", mask)))
    is_flag = mask.dtype == torch.bool and mask.layout == torch.strided
    is_here = mask.device == ids.device
    _check(is_flag and is_here, mask, tuple(mask.shape), tuple(ids.shape))
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ConfigError(f"ids have dtype {ids.dtype}", hint="give integers")
    ids = ids if ids.dtype in (torch.int64, torch.int32) else ids.long()
    return torch.where(mask if mask.ndim == ids.ndim else mask[..., None], ids, -1)


def _check(is_flag: bool, mask: Any, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if not is_flag or (shape != wanted and (len(wanted) < 2 or shape != wanted[:-1])):
        raise ConfigError(
            f"mask: {mask.dtype}, of shape {list(shape)}",
            hint=f"give truth values of shape {list(wanted)}, or all but its last, where the ids are",
        )
