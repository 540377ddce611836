"""Removal of twins (two copies of an expert on one GPU: a wasted slot) from EPLB's plans, compiled.

Balance is judged as EPLB judges it, by an equal split. Every second copy on a GPU gives way to the expert
that carries most for each copy and is not there. Then exchanges and relabels are made until the busiest GPU
does no more than it did before. Where they do not get there, they begin anew, from copies that are placed
heaviest first, then from changes at random.
"""

import numpy as np

from evenload.moe.placement.kernels.start import fill_slots, heaviest_missing
from evenload.native.kernel import compiled, inlined, piece

ATTEMPTS = 120  # at a node, of which nearly all end with the first
ENOUGH = 1.0 + 1e-6  # loads are float32 sums: closer than this is equal


@inlined
def busiest(load):
    most = 0
    for gpu in range(1, len(load)):
        if load[gpu] > load[most]:
            most = gpu
    return most


@inlined
def gpu_loads(holds, weight, count, load):
    n_gpus, n_slots = holds.shape
    for gpu in range(n_gpus):
        load[gpu] = 0.0
        for j in range(n_slots):
            load[gpu] += weight[holds[gpu, j]] / count[holds[gpu, j]]
    return load[busiest(load)]


@inlined
def drop_twins(holds, weight, count, on):
    """Give the slots of second copies on a GPU to the experts that carry most for each copy."""
    n_gpus, n_slots = holds.shape
    nodes, homes = np.zeros(n_gpus, np.int64), np.full(len(weight), -1)
    on[:] = False
    for gpu in range(n_gpus):
        for j in range(n_slots):
            if on[gpu, holds[gpu, j]]:
                count[holds[gpu, j]] -= 1
                holds[gpu, j] = -1
            else:
                on[gpu, holds[gpu, j]] = True
    for gpu in range(n_gpus):
        for j in range(n_slots):
            if holds[gpu, j] < 0:
                new = heaviest_missing(weight, count, nodes, homes, False, on, gpu, -1)
                holds[gpu, j] = new
                on[gpu, new] = True
                count[new] += 1


@inlined
def deal_anew(holds, weight, count, on):
    """Place copies heaviest first, on the GPUs with least; returns whether every slot got one."""
    n_gpus, n_slots = holds.shape
    nodes, homes, slots = np.zeros(n_gpus, np.int64), np.full(len(weight), -1), np.empty(holds.size, np.int64)
    first = np.empty(n_gpus + 1, np.int64)
    for gpu in range(n_gpus + 1):
        first[gpu] = gpu * n_slots
    fill_slots(
        weight, np.ones(n_gpus), first, nodes, homes, False, np.full(n_gpus, n_slots),
        np.empty(0, np.int64), slots,
    )  # fmt: skip
    for slot in range(len(slots)):
        if slots[slot] < 0:
            return False
    count[:] = 0
    on[:] = False
    for slot in range(len(slots)):
        holds[slot // n_slots, slot % n_slots] = slots[slot]
        count[slots[slot]] += 1
        on[slot // n_slots, slots[slot]] = True
    return True


@inlined
def best_exchange(holds, weight, count, on, load, gpu, j):
    """The exchange of ``holds[gpu, j]`` that minimises the larger load of the two GPUs and makes no twins.

    Returns that load, the other GPU and its slot (-1 if there is none).
    """
    mine = holds[gpu, j]
    share = weight[mine] / count[mine]
    best, to, slot = np.inf, -1, -1
    for other in range(holds.shape[0]):
        if other == gpu or on[other, mine]:
            continue
        for k in range(holds.shape[1]):
            theirs = holds[other, k]
            if on[gpu, theirs]:
                continue
            gain = share - weight[theirs] / count[theirs]
            worst = max(load[gpu] - gain, load[other] + gain)
            if worst < best:
                best, to, slot = worst, other, k
    return best, to, slot


@inlined
def exchange(holds, weight, count, on, load, gpu, j, other, k):
    mine, theirs = holds[gpu, j], holds[other, k]
    gain = weight[mine] / count[mine] - weight[theirs] / count[theirs]
    holds[gpu, j], holds[other, k] = theirs, mine
    on[gpu, mine], on[other, theirs] = False, False
    on[gpu, theirs], on[other, mine] = True, True
    load[gpu] -= gain
    load[other] += gain


@inlined
def try_relabel(holds, weight, count, on, load, trial, gpu, j, new, limit):
    """Put ``new`` into slot ``j`` of ``gpu`` if then fewer GPUs are at ``limit`` or above; returns if so."""
    old = holds[gpu, j]
    if count[old] < 2 or on[gpu, new] or count[new] >= holds.shape[0]:
        return False
    old_share, new_share = weight[old] / count[old], weight[new] / (count[new] + 1)
    rise, fall = weight[old] / (count[old] - 1) - old_share, weight[new] / count[new] - new_share
    n_before, n_after = 0, 0
    for g in range(len(load)):
        trial[g] = load[g] + on[g, old] * rise - on[g, new] * fall
        if g == gpu:
            trial[g] += new_share - old_share - rise
        n_before += load[g] >= limit
        n_after += trial[g] >= limit
        if trial[g] > limit * ENOUGH * ENOUGH:
            return False
    if n_after >= n_before:
        return False
    holds[gpu, j] = new
    count[old] -= 1
    count[new] += 1
    on[gpu, old], on[gpu, new] = False, True
    for g in range(len(load)):
        load[g] = trial[g]
    return True


@inlined
def relabel_busiest(holds, weight, count, on, load, worst, trial):
    """Put another expert into one slot so that fewer GPUs carry the maximum; returns False if none does.

    Tries every expert in the slots of the busiest GPU, and a copy of each of its experts elsewhere.
    """
    limit = load[worst] / ENOUGH
    for j in range(holds.shape[1]):
        for new in range(len(weight)):
            if try_relabel(holds, weight, count, on, load, trial, worst, j, new, limit):
                return True
    for i in range(holds.shape[1]):
        for gpu in range(holds.shape[0]):
            for j in range(holds.shape[1]):
                if try_relabel(holds, weight, count, on, load, trial, gpu, j, holds[worst, i], limit):
                    return True
    return False


@inlined
def lower_busiest(holds, weight, count, on, load, trial, target):
    """Exchange or relabel at the busiest GPU until it carries at most ``target`` or no change helps."""
    for _ in range(4 * holds.size):
        worst = busiest(load)
        if load[worst] <= target * ENOUGH:
            return
        best, at, other, k = load[worst] / ENOUGH, -1, -1, -1
        for j in range(holds.shape[1]):
            value, to, slot = best_exchange(holds, weight, count, on, load, worst, j)
            if value < best:
                best, at, other, k = value, j, to, slot
        if at >= 0:
            exchange(holds, weight, count, on, load, worst, at, other, k)
        elif not relabel_busiest(holds, weight, count, on, load, worst, trial):
            return


@inlined
def copy_state(holds, count, to_holds, to_count):
    for gpu in range(holds.shape[0]):
        for j in range(holds.shape[1]):
            to_holds[gpu, j] = holds[gpu, j]
    for e in range(len(count)):
        to_count[e] = count[e]


@inlined
def shake(holds, weight, count, on, load, state):
    """Make up to three changes drawn at random that make no twins; returns the random state."""
    n_gpus, n_slots = holds.shape
    on[:] = False
    for gpu in range(n_gpus):
        for j in range(n_slots):
            on[gpu, holds[gpu, j]] = True
    for _ in range(3):
        state = (state * 1103515245 + 12345) % 2147483648
        gpu, j = (state >> 8) % n_gpus, (state >> 16) % n_slots
        state = (state * 1103515245 + 12345) % 2147483648
        other, k = (state >> 8) % n_gpus, (state >> 16) % n_slots
        mine, theirs = holds[gpu, j], holds[other, k]
        if on[gpu, theirs]:
            continue
        if not on[other, mine]:
            exchange(holds, weight, count, on, load, gpu, j, other, k)
        elif count[mine] > 1:
            holds[gpu, j] = theirs
            on[gpu, mine], on[gpu, theirs] = False, True
            count[mine] -= 1
            count[theirs] += 1
    return state


@piece
def mend(holds, weight, count, limit):
    """Remove twins from ``holds`` [GPUs, slots] in place and update ``count``; returns whether that was done.

    ``limit`` is the load of the layer's busiest GPU, which this node must not exceed.
    """
    n_gpus = len(holds)
    load, trial = np.empty(n_gpus), np.empty(n_gpus)
    on = np.empty((n_gpus, len(weight)), np.bool_)
    old, old_count = np.empty(holds.shape, np.int64), np.empty(len(count), np.int64)
    best, best_count = np.empty(holds.shape, np.int64), np.empty(len(count), np.int64)
    copy_state(holds, count, old, old_count)
    before = gpu_loads(holds, weight, count, load)
    drop_twins(holds, weight, count, on)
    lowest, state = np.inf, 1
    for attempt in range(ATTEMPTS):
        gpu_loads(holds, weight, count, load)
        lower_busiest(holds, weight, count, on, load, trial, before)
        if load[busiest(load)] <= limit * ENOUGH:
            return True
        if load[busiest(load)] < lowest:
            lowest = load[busiest(load)]
            copy_state(holds, count, best, best_count)
        if attempt > 0 or not deal_anew(holds, weight, count, on):
            copy_state(best, best_count, holds, count)
            state = shake(holds, weight, count, on, load, state)
    copy_state(old, old_count, holds, count)
    return False


@inlined
def number_copies(holds, ranks, met):
    """Number the copies of each expert in slot order; ``met`` is scratch of at least the experts' length."""
    for e in range(len(met)):
        met[e] = 0
    for gpu in range(holds.shape[0]):
        for j in range(holds.shape[1]):
            ranks[gpu, j] = met[holds[gpu, j]]
            met[holds[gpu, j]] += 1


@compiled
def part_layers(weight, local2log, holds, ranks, count, limit, is_twinned):
    """Remove the twins of every node where ``is_twinned``, and its mark; arrays as in ``plan_layers``.

    ``limit`` [layers] is the load of the layer's busiest GPU. A node stays as it is where no plan without
    twins is found that keeps to it.
    """
    n_node_experts = local2log.shape[2]
    mine, met = np.empty(n_node_experts), np.empty(n_node_experts, np.int64)
    for layer in range(holds.shape[0]):
        for node in range(holds.shape[1]):
            if not is_twinned[layer, node] or holds.shape[3] > n_node_experts:
                continue
            for i in range(n_node_experts):
                mine[i] = weight[layer, local2log[layer, node, i]]
            if mend(holds[layer, node], mine, count[layer, node], limit[layer]):
                number_copies(holds[layer, node], ranks[layer, node], met)
                is_twinned[layer, node] = False
