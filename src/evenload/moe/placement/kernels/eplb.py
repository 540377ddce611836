"""EPLB's greedy policy, compiled: groups to nodes, copies of experts, copies to GPUs; all layers in a call.

Sums and quotients are float32 and ties go to the lowest index, as in a float32 tensor program, so that ids
come out the same wherever that program's own sorting is stable.
"""

import numpy as np

from evenload.native.kernel import compiled, inlined

RUN = 12  # length of the runs that the merge sort starts from
HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@inlined
def sort_descending(weights, n, keys, spare):
    """Write the positions of ``weights[:n]`` in descending order to the low half of ``keys[:n]``; stable.

    Floats of at least zero have the order of their bits: a key is the inverted bits, then the position.
    """
    bits = weights.view(np.uint32)
    for start in range(0, n, RUN):
        for i in range(start, min(start + RUN, n)):
            key = ((LOW - np.uint64(bits[i])) << HALF) | np.uint64(i)
            j = i
            while j > start and keys[j - 1] > key:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = key
    width = RUN
    while width < n:
        for start in range(0, n, 2 * width):
            middle, stop = min(start + width, n), min(start + 2 * width, n)
            left, right = start, middle
            for k in range(start, stop):
                if right >= stop or (left < middle and keys[left] < keys[right]):
                    spare[k] = keys[left]
                    left += 1
                else:
                    spare[k] = keys[right]
                    right += 1
        for k in range(n):
            keys[k] = spare[k]
        width *= 2


@inlined
def pack_equal(weights, n, n_packs, keys, totals, sizes, pack, rank):
    """Heaviest of ``n`` items first, each into the lightest of ``n_packs`` packs that has room.

    Writes each item's ``pack`` and its ``rank`` within it; returns the heaviest pack's total. Packs of one
    item keep the items' own order.
    """
    capacity = n // n_packs
    heaviest = np.float32(0)
    if capacity == 1:
        for i in range(n):
            pack[i] = i
            rank[i] = 0
            heaviest = max(heaviest, weights[i])
        return heaviest
    sort_descending(weights, n, keys[0], keys[1])
    for p in range(n_packs):
        totals[p] = 0
        sizes[p] = 0
    for i in range(n):
        item = np.int64(keys[0, i] & LOW)
        chosen, least = 0, totals[0]
        for p in range(1, n_packs):
            if totals[p] < least:
                chosen, least = p, totals[p]
        pack[item] = chosen
        rank[item] = sizes[chosen]
        totals[chosen] += weights[item]
        sizes[chosen] += 1
        if sizes[chosen] == capacity:
            heaviest = max(heaviest, totals[chosen])
            totals[chosen] = np.inf  # full: never the lightest again
    return heaviest


@inlined
def replicate(weights, n, n_slots, count, slot2item, slot2rank, share):
    """Copy the item whose copies carry most, again and again; writes each copy's item and rank."""
    for i in range(n):
        count[i] = 1
        share[i] = weights[i]
        slot2item[i] = i
        slot2rank[i] = 0
    for slot in range(n, n_slots):
        most = 0
        for i in range(1, n):
            if share[i] > share[most]:
                most = i
        slot2item[slot] = most
        slot2rank[slot] = count[most]
        count[most] += 1
        share[most] = weights[most] / np.float32(count[most])


@inlined
def has_twins(pack, slot2item, n_slots, seen, stamp):
    """Whether a pack holds an item twice. ``seen`` [packs, items] keeps the ``stamp`` of earlier calls."""
    for slot in range(n_slots):
        if seen[pack[slot], slot2item[slot]] == stamp:
            return True
        seen[pack[slot], slot2item[slot]] = stamp
    return False


@inlined
def plan_node(weight, holds, ranks, count, work, keys, places, seen, stamp):
    """Place copies of one node's experts on its GPUs; returns the largest load, and if there are twins."""
    n_gpus, n_slots = holds.shape[0], holds.size
    share, slot_load, totals = work[0], work[1], work[2]
    slot2item, slot2rank, pack, place, sizes = places[0], places[1], places[2], places[3], places[4]
    replicate(weight, len(weight), n_slots, count, slot2item, slot2rank, share)
    for slot in range(n_slots):
        slot_load[slot] = share[slot2item[slot]]
    most = pack_equal(slot_load, n_slots, n_gpus, keys, totals, sizes, pack, place)
    for slot in range(n_slots):
        holds[pack[slot], place[slot]] = slot2item[slot]
        ranks[pack[slot], place[slot]] = slot2rank[slot]
    return most, has_twins(pack, slot2item, n_slots, seen, stamp)


@inlined
def sum_groups(weight, group_size, total):
    """Write the ``total`` [groups] load of each group of consecutive experts, summed in float32."""
    for group in range(len(total)):
        load = np.float32(0)
        for e in range(group * group_size, (group + 1) * group_size):
            load += weight[e]
        total[group] = load


@compiled
def plan_layers(weight, n_groups, local2log, holds, ranks, count, limit, is_twinned):
    """Plan every layer of ``weight`` [layers, experts] float32. Divisibility is the caller's business.

    local2log   [layers, nodes, node's experts] which experts a node has, and in what order
    holds       [layers, nodes, node's GPUs, slots] the expert in each slot, as a place in ``local2log``
    ranks       the same shape: which copy of its expert the slot holds
    count       [layers, nodes, node's experts] copies
    limit       [layers] float32 load of the busiest GPU
    is_twinned  [layers, nodes] whether a GPU of the node holds an expert twice
    """
    n_layers, n_nodes, n_node_gpus, n_gpu_slots = holds.shape
    n_node_experts = local2log.shape[2]
    group_size = n_node_experts * n_nodes // n_groups
    most = max(n_node_gpus * n_gpu_slots, n_node_experts, n_groups, n_nodes)
    work = np.empty((4, most), np.float32)
    keys, places = np.empty((2, most), np.uint64), np.empty((5, most), np.int64)
    group2node, group2place, sizes = places[2], places[3], places[4]
    seen = np.zeros((n_node_gpus, n_node_experts), np.int64)
    for layer in range(n_layers):
        sum_groups(weight[layer], group_size, work[1, :n_groups])
        pack_equal(work[1], n_groups, n_nodes, keys, work[2], sizes, group2node, group2place)
        for group in range(n_groups):
            for j in range(group_size):
                place = group2place[group] * group_size + j
                local2log[layer, group2node[group], place] = group * group_size + j
        limit[layer] = 0
        for node in range(n_nodes):
            mine = work[3, :n_node_experts]
            for i in range(n_node_experts):
                mine[i] = weight[layer, local2log[layer, node, i]]
            stamp = layer * n_nodes + node + 1
            load, is_twinned[layer, node] = plan_node(
                mine, holds[layer, node], ranks[layer, node], count[layer, node], work, keys, places, seen,
                stamp,
            )  # fmt: skip
            limit[layer] = max(limit[layer], load)


@compiled
def write_maps(local2log, holds, ranks, count, phy2log, log2phy, logcnt):
    """The plan in EPLB's terms: ``phy2log`` [layers, slots], ``log2phy`` [layers, experts, X], ``logcnt``."""
    n_layers, n_nodes, n_node_gpus, n_gpu_slots = holds.shape
    for layer in range(n_layers):
        slot = 0
        for e in range(log2phy.shape[1]):
            for x in range(log2phy.shape[2]):
                log2phy[layer, e, x] = -1
        for node in range(n_nodes):
            for i in range(local2log.shape[2]):
                logcnt[layer, local2log[layer, node, i]] = count[layer, node, i]
            for gpu in range(n_node_gpus):
                for j in range(n_gpu_slots):
                    expert = local2log[layer, node, holds[layer, node, gpu, j]]
                    phy2log[layer, slot] = expert
                    log2phy[layer, expert, ranks[layer, node, gpu, j]] = slot
                    slot += 1
