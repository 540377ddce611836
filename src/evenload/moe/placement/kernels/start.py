"""Placements to start a search from, for any fleet, compiled: the heaviest copies are placed first."""

import numpy as np

from evenload.native.kernel import compiled, inlined


@inlined
def _count_copies(weight, n_slots, n_gpus, count):
    """Count copies as EPLB does: one more, again and again, for the expert whose copies carry most.

    No expert gets more copies than there are GPUs.
    """
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
def _sort_by_share(weight, count, order):
    """Write the experts in order of what a copy carries, most first, by insertion sort."""
    for e in range(len(weight)):
        j = e
        while j > 0 and weight[order[j - 1]] * count[e] < weight[e] * count[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = e


@inlined
def _lightest(share, speed, load, used, limit, on, allowed, expert):
    """The GPU with room that ``share`` more leaves with the least load / speed, or -1."""
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


@inlined
def _place_counted(
    weight, count, order, speed, first_slot, room, node, home, is_strict, quota, slots, used, on
):
    """Place ``count`` copies of each expert, first copies first; returns how many missed their ``quota``."""
    load, allowed = np.zeros(len(speed)), np.empty(len(speed), np.bool_)
    unplaced = 0
    for wave in range(2):  # first copies, so that each has a place; then the others
        for i in range(len(weight)):
            e = order[i]
            for gpu in range(len(speed)):
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
    return unplaced


@inlined
def heaviest_missing(weight, copies, node, home, is_strict, on, gpu, peer):
    """The expert that ``gpu`` lacks and whose copies carry most, or -1.

    With a ``peer``, only experts that this GPU alone holds.
    """
    best = -1
    for e in range(len(weight)):
        if on[gpu, e] or (is_strict and home[e] >= 0 and node[gpu] != home[e]):
            continue
        if peer >= 0 and not (on[peer, e] and copies[e] == 1):
            continue
        if best < 0 or weight[e] * copies[best] > weight[best] * copies[e]:
            best = e
    return best


@inlined
def _fill_the_rest(weight, first_slot, room, node, home, is_strict, strides, slots, used, on):
    """Fill the slots left: one of each GPU for each stride, then all with the heaviest copies."""
    n_gpus = len(room)
    copies = np.zeros(len(weight), np.int64)
    for gpu in range(n_gpus):
        for e in range(len(weight)):
            copies[e] += on[gpu, e]
    for j in range(len(strides) + 1):
        for gpu in range(n_gpus):
            while used[gpu] < room[gpu]:
                peer = (gpu + strides[j]) % n_gpus if j < len(strides) else -1
                best = heaviest_missing(weight, copies, node, home, is_strict, on, gpu, peer)
                if best < 0:
                    break
                slots[first_slot[gpu] + used[gpu]] = best
                used[gpu] += 1
                on[gpu, best] = True
                copies[best] += 1
                if peer >= 0:
                    break


@compiled
def fill_slots(weight, speed, first_slot, node, home, is_strict, quota, strides, slots):
    """Fill ``slots`` [slots] with experts; returns how many experts found no place for their first copy.

    weight   [experts] load
    home     [experts] the node that must hold a copy, -1 for none
    quota    [gpus] first copies that a GPU takes
    strides  for each of them, one slot of each GPU backs up an expert of the GPU that many places on; if
             there are none, experts get as many copies as EPLB counts

    No GPU gets an expert twice; a slot stays -1 only where its GPU has all experts that may be there.
    """
    n_gpus, n_experts = len(speed), len(weight)
    count, order = np.ones(n_experts, np.int64), np.empty(n_experts, np.int64)
    if len(strides) == 0:
        _count_copies(weight, len(slots), n_gpus, count)
    _sort_by_share(weight, count, order)
    room, used = np.empty(n_gpus, np.int64), np.zeros(n_gpus, np.int64)
    on = np.zeros((n_gpus, n_experts), np.bool_)
    for gpu in range(n_gpus):
        room[gpu] = first_slot[gpu + 1] - first_slot[gpu]
    for slot in range(len(slots)):
        slots[slot] = -1
    unplaced = _place_counted(
        weight, count, order, speed, first_slot, room, node, home, is_strict, quota, slots, used, on
    )
    _fill_the_rest(weight, first_slot, room, node, home, is_strict, strides, slots, used, on)
    return unplaced
