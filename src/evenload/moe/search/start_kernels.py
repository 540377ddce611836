"""Placements to start a search from, for any fleet, compiled: heaviest copies first, with or without a
backbone.

Nothing here calls a compiled function of another file: numba's cache on disk would not notice when that one
changes.
"""

import numpy as np

from evenload.balance.flow.kernels.jit import compiled, inlined

__all__ = ["fill"]


@inlined
def _count_copies(weight, n_slots, n_gpus, count):
    """EPLB's copies: one more, again and again, for the expert whose copies carry most; at most one a GPU."""
    for e in range(len(weight)):
        count[e] = 1
    for _ in range(len(weight), n_slots):
        most = -1
        for e in range(len(weight)):
            if count[e] < n_gpus and (most < 0 or weight[e] * count[most] > weight[most] * count[e]):
                most = e
        if most < 0:
            return
        count[most] += 1


@inlined
def _order(weight, count, order):
    """Insertion sort by what a copy carries, most first."""
    for e in range(len(weight)):
        j = e
        while j > 0 and weight[order[j - 1]] * count[e] < weight[e] * count[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = e


@inlined
def _lightest(share, speed, load, used, limit, on, allowed, expert):
    """The GPU with room that ``share`` more leaves lowest for its speed, or -1."""
    chosen = -1
    for gpu in range(len(speed)):
        if (
            used[gpu] < limit[gpu]
            and allowed[gpu]
            and not on[gpu, expert]
            and (chosen < 0 or (load[gpu] + share) * speed[chosen] < (load[chosen] + share) * speed[gpu])
        ):
            chosen = gpu
    return chosen


@compiled
def fill(weight, speed, first_slot, node, home, is_strict, quota, strides, slots):
    """Fill ``slots`` [slots] with experts; returns how many experts found no place for their first copy.

    weight  [experts]   home  [experts] node that must hold a copy, or -1   quota  [gpus] first copies a GPU
            takes
    strides the copies of a GPU's last slots back up the GPUs that many places on; none: copies as EPLB counts
    them No GPU gets an expert twice; a slot stays -1 only where its GPU has all experts that may go there.
    """
    n_gpus, n_experts = len(speed), len(weight)
    count, order = np.ones(n_experts, np.int64), np.empty(n_experts, np.int64)
    if len(strides) == 0:
        _count_copies(weight, len(slots), n_gpus, count)
    _order(weight, count, order)
    room, used = np.empty(n_gpus, np.int64), np.zeros(n_gpus, np.int64)
    load, on = np.zeros(n_gpus), np.zeros((n_gpus, n_experts), np.bool_)
    allowed, copies = np.empty(n_gpus, np.bool_), np.zeros(n_experts, np.int64)
    for gpu in range(n_gpus):
        room[gpu] = first_slot[gpu + 1] - first_slot[gpu]
    for slot in range(len(slots)):
        slots[slot] = -1
    unplaced = 0
    for wave in range(2):  # first copies, so that each has a place; then the others
        for i in range(n_experts):
            e = order[i]
            for gpu in range(n_gpus):
                allowed[gpu] = home[e] < 0 or node[gpu] == home[e] or (wave == 1 and not is_strict)
            share = weight[e] / count[e]
            for _ in range(1 if wave == 0 else count[e] - 1):
                gpu = _lightest(share, speed, load, used, quota if wave == 0 else room, on, allowed, e)
                if gpu < 0 and wave == 0:  # quotas may be too tight for the homes
                    gpu = _lightest(share, speed, load, used, room, on, allowed, e)
                    unplaced += gpu < 0
                if gpu < 0:
                    break
                slots[first_slot[gpu] + used[gpu]] = e
                used[gpu] += 1
                load[gpu] += share
                on[gpu, e] = True
                copies[e] += 1
    for j in range(len(strides) + 1):
        for gpu in range(n_gpus):
            while used[gpu] < room[gpu]:
                peer = (gpu + strides[j]) % n_gpus if j < len(strides) else -1
                best = -1
                for e in range(n_experts):
                    if on[gpu, e] or (is_strict and home[e] >= 0 and node[gpu] != home[e]):
                        continue
                    if peer >= 0 and not (on[peer, e] and copies[e] == 1):
                        continue
                    if best < 0 or weight[e] * copies[best] > weight[best] * copies[e]:
                        best = e
                if best < 0:
                    break
                slots[first_slot[gpu] + used[gpu]] = best
                used[gpu] += 1
                on[gpu, best] = True
                copies[best] += 1
                if peer >= 0:
                    break
    return unplaced
