"""EPLB's policy written down from its definition (DeepSeek-V3 report, section 3.4), slowly and for reading.

Balanced packing: heaviest item first, into the lightest pack that still has room. Hierarchical policy: pack
groups of experts to nodes, then replicate within each node (one more copy of the expert whose copies carry
most), then pack the copies to the node's GPUs. All arithmetic in float32, all ties to the lowest index.
Nothing here stops two copies of an expert from meeting on one GPU: that is the policy's known fault.
"""

import numpy as np


def pack(weights, n_packs):
    """[(pack, place)] for each item; packs of one item keep the items' order."""
    room = len(weights) // n_packs
    if room == 1:
        return [(i, 0) for i in range(len(weights))]
    packs = [[] for _ in range(n_packs)]
    totals = [np.float32(0)] * n_packs
    where = [(0, 0)] * len(weights)
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        open_packs = [p for p in range(n_packs) if len(packs[p]) < room]
        lightest = min(open_packs, key=lambda p: totals[p])
        where[item] = (lightest, len(packs[lightest]))
        packs[lightest].append(item)
        totals[lightest] = totals[lightest] + weights[item]
    return where


def replicate(weights, n_slots):
    """[(item, rank)] of each copy, and the copies of each item."""
    copies = [(i, 0) for i in range(len(weights))]
    count = [1] * len(weights)
    while len(copies) < n_slots:
        most = max(range(len(weights)), key=lambda i: weights[i] / np.float32(count[i]))
        copies.append((most, count[most]))
        count[most] += 1
    return copies, count


def rebalance_layer(weight, n_slots, n_groups, n_nodes, n_gpus):
    """``phy2log`` [slots], ``phy2rank`` [slots], ``logcnt`` [experts] of one layer, as lists."""
    weight = np.asarray(weight, np.float32)
    if n_groups % n_nodes:
        n_groups = n_nodes = 1
    group_size = len(weight) // n_groups
    groups = [list(range(g * group_size, (g + 1) * group_size)) for g in range(n_groups)]
    where = pack([np.sum(weight[g], dtype=np.float32) for g in groups], n_nodes)
    phy2log, phy2rank = [-1] * n_slots, [-1] * n_slots
    logcnt = [0] * len(weight)
    for node in range(n_nodes):
        mine = sorted((place, g) for g, (at, place) in enumerate(where) if at == node)
        experts = [e for _, g in mine for e in groups[g]]
        copies, count = replicate(weight[experts], n_slots // n_nodes)
        shares = [weight[experts[i]] / np.float32(count[i]) for i, _ in copies]
        for (item, rank), (gpu, place) in zip(copies, pack(shares, n_gpus // n_nodes), strict=True):
            slot = (node * (n_gpus // n_nodes) + gpu) * (n_slots // n_gpus) + place
            phy2log[slot], phy2rank[slot] = experts[item], rank
        for expert, copies_of in zip(experts, count, strict=True):
            logcnt[expert] = copies_of
    return phy2log, phy2rank, logcnt


def gpu_loads(phy2log, weight, n_gpus):
    """[GPUs] float64 loads when each expert's load is split equally over its copies."""
    phy2log, weight = np.asarray(phy2log), np.asarray(weight, np.float64)
    share = weight / np.maximum(np.bincount(phy2log, minlength=len(weight)), 1)
    return share[phy2log].reshape(n_gpus, -1).sum(1)


def twins(phy2log, n_gpus):
    """How many slots hold an expert that its GPU already has."""
    return sum(len(gpu) - len(set(gpu)) for gpu in np.asarray(phy2log).reshape(n_gpus, -1).tolist())
