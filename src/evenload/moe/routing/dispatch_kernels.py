"""Compiled dispatch: count ids, divide experts' quotas over ranks, map ids to slots; one pass each."""

import numpy as np

from evenload.native.kernel import compiled, inlined

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
