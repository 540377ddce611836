"""Removal of twins (two copies of an expert on one GPU: a wasted slot) without loss of balance; compiled.

Balance is judged as EPLB judges it: an expert's load is split equally over its copies. In order:

1. no expert keeps more copies than there are GPUs; the spare slots go to the experts whose copies carry most;
2. a twin is exchanged for an expert of another GPU, so that the busier of the two is least busy; if no single
   exchange can do it, copies are placed on consecutive GPUs;
3. exchanges and relabels are made until the busiest GPU does no more than it did before.

Nothing here calls a compiled function of another file: numba's cache on disk would not notice when that one
changes.
"""

import numpy as np

from evenload.native.kernel import compiled, inlined

__all__ = ["part_layers"]

ATTEMPTS = 120  # of ``search_on``, which then keeps the best placement found
ENOUGH = 1.0 + 1e-6  # loads are float32 sums: closer than this is equal


@inlined
def busiest(load, n):
    most = 0
    for gpu in range(1, n):
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
    return load[busiest(load, n_gpus)]


@inlined
def count_copies(holds, on):
    for gpu in range(holds.shape[0]):
        for e in range(on.shape[1]):
            on[gpu, e] = 0
        for j in range(holds.shape[1]):
            on[gpu, holds[gpu, j]] += 1


@inlined
def cap_counts(holds, weight, count, on):
    """Replace copies beyond one per GPU by copies of the experts that carry most and have fewer."""
    n_gpus, n_slots = holds.shape
    for gpu in range(n_gpus):
        for j in range(n_slots):
            old = holds[gpu, j]
            if count[old] <= n_gpus or on[gpu, old] < 2:
                continue
            new = -1
            for e in range(len(weight)):
                if count[e] >= n_gpus or e == old:
                    continue
                # An expert that this GPU lacks is preferred to one that it has.
                if (
                    new < 0
                    or on[gpu, e] < on[gpu, new]
                    or (on[gpu, e] == on[gpu, new] and weight[e] * count[new] > weight[new] * count[e])
                ):
                    new = e
            if new < 0:
                return
            holds[gpu, j] = new
            count[old] -= 1
            count[new] += 1
            on[gpu, old] -= 1
            on[gpu, new] += 1


@inlined
def best_exchange(holds, weight, count, on, load, gpu, j):
    """The exchange of ``holds[gpu, j]`` that minimises the larger load of the two GPUs and makes no twins.

    Returns that load, the other GPU and its slot (-1 if there is none).
    """
    mine = holds[gpu, j]
    share = weight[mine] / count[mine]
    best, to, slot = np.inf, -1, -1
    for other in range(holds.shape[0]):
        if other == gpu or on[other, mine] > 0:
            continue
        for k in range(holds.shape[1]):
            theirs = holds[other, k]
            if on[gpu, theirs] > 0:
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
    on[gpu, mine] -= 1
    on[gpu, theirs] += 1
    on[other, theirs] -= 1
    on[other, mine] += 1
    load[gpu] -= gain
    load[other] += gain


@inlined
def part_twins(holds, weight, count, on, load):
    """Exchange every second copy for another expert; returns False if that is not possible for all."""
    n_gpus, n_slots = holds.shape
    parted = True
    for gpu in range(n_gpus):
        for j in range(n_slots):
            if on[gpu, holds[gpu, j]] < 2:
                continue
            _, other, k = best_exchange(holds, weight, count, on, load, gpu, j)
            if other < 0:
                parted = False
            else:
                exchange(holds, weight, count, on, load, gpu, j, other, k)
    return parted


@inlined
def deal(holds, count):
    """Place copies of an expert on consecutive GPUs: there are no twins if no count exceeds the GPUs."""
    n_gpus = holds.shape[0]
    dealt = 0
    for e in range(len(count)):
        for _ in range(count[e]):
            holds[dealt % n_gpus, dealt // n_gpus] = e
            dealt += 1


@inlined
def try_relabel(holds, weight, count, on, load, trial, gpu, j, new, limit):
    """Put ``new`` into slot ``j`` of ``gpu`` if then fewer GPUs are at ``limit`` or above; returns if so."""
    old = holds[gpu, j]
    if count[old] < 2 or on[gpu, new] > 0 or count[new] >= holds.shape[0]:
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
    on[gpu, old] -= 1
    on[gpu, new] += 1
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
        worst = busiest(load, len(load))
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
def deal_lightest(holds, weight, count, load):
    """Place the heaviest copies first, on the lightest GPUs with room; returns False if twins are left."""
    n_gpus = holds.shape[0]
    order, held = np.empty(len(weight), np.int64), np.zeros(n_gpus, np.int64)
    taken = np.zeros(n_gpus, np.int64)
    for e in range(len(weight)):  # insertion sort by share, heaviest first
        j = e
        while j > 0 and weight[order[j - 1]] * count[e] < weight[e] * count[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = e
    for gpu in range(n_gpus):
        load[gpu] = 0.0
    for i in range(len(weight)):
        e = order[i]
        for _ in range(count[e]):
            chosen = -1
            for gpu in range(n_gpus):
                is_open = held[gpu] < holds.shape[1] and taken[gpu] != e + 1
                if is_open and (chosen < 0 or load[gpu] < load[chosen]):
                    chosen = gpu
            if chosen < 0:
                return False
            taken[chosen] = e + 1
            holds[chosen, held[chosen]] = e
            held[chosen] += 1
            load[chosen] += weight[e] / count[e]
    return True


@inlined
def shake(holds, count, on, state):
    """Make up to three random changes without twins, to leave a local optimum; returns the random state."""
    n_gpus, n_slots = holds.shape
    for _ in range(3):
        state = (state * 1103515245 + 12345) % 2147483648
        gpu, j = (state >> 8) % n_gpus, (state >> 16) % n_slots
        state = (state * 1103515245 + 12345) % 2147483648
        other, k = (state >> 8) % n_gpus, (state >> 16) % n_slots
        mine, theirs = holds[gpu, j], holds[other, k]
        if on[gpu, theirs] > 0:
            continue
        if on[other, mine] == 0:
            holds[gpu, j], holds[other, k] = theirs, mine
            on[other, theirs] -= 1
            on[other, mine] += 1
        elif count[mine] > 1:
            holds[gpu, j] = theirs
            count[mine] -= 1
            count[theirs] += 1
        else:
            continue
        on[gpu, mine] -= 1
        on[gpu, theirs] += 1
    return state


@inlined
def copy_state(holds, count, to_holds, to_count):
    for gpu in range(holds.shape[0]):
        for j in range(holds.shape[1]):
            to_holds[gpu, j] = holds[gpu, j]
    for e in range(len(count)):
        to_count[e] = count[e]


@inlined
def search_on(holds, weight, count, on, load, trial, limit):
    """Change at random and lower again until ``limit`` is met; keeps the best. Seldom needed: few experts."""
    best, best_count = np.empty(holds.shape, np.int64), np.empty(len(count), np.int64)
    copy_state(holds, count, best, best_count)
    lowest = load[busiest(load, len(load))]
    state = 1
    for attempt in range(ATTEMPTS):
        if lowest <= limit * ENOUGH:
            break
        if attempt > 0 or not deal_lightest(holds, weight, count, load):
            copy_state(best, best_count, holds, count)
            count_copies(holds, on)
            state = shake(holds, count, on, state)
        count_copies(holds, on)
        gpu_loads(holds, weight, count, load)
        lower_busiest(holds, weight, count, on, load, trial, limit)
        if load[busiest(load, len(load))] < lowest:
            lowest = load[busiest(load, len(load))]
            copy_state(holds, count, best, best_count)
    copy_state(best, best_count, holds, count)


@inlined
def mend(holds, weight, count, limit):
    """Remove twins from ``holds`` [GPUs, slots] in place and update ``count``; weights are [experts] float32.

    ``limit`` is the load of the layer's busiest GPU, which this node must not exceed. Returns whether it made
    a change.
    """
    n_gpus, n_slots = holds.shape
    if n_slots > len(weight):
        return False  # more slots a GPU than experts: twins cannot be avoided
    load, trial = np.empty(n_gpus, np.float64), np.empty(n_gpus, np.float64)
    on = np.empty((n_gpus, len(weight)), np.int64)
    before = gpu_loads(holds, weight, count, load)
    count_copies(holds, on)
    cap_counts(holds, weight, count, on)
    gpu_loads(holds, weight, count, load)
    if not part_twins(holds, weight, count, on, load):
        deal(holds, count)
        count_copies(holds, on)
        gpu_loads(holds, weight, count, load)
    lower_busiest(holds, weight, count, on, load, trial, before)
    if load[busiest(load, n_gpus)] > limit * ENOUGH:
        search_on(holds, weight, count, on, load, trial, limit)
    return True


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
    """Remove the twins of every node where ``is_twinned``, in place; arrays as in ``plan_layers``."""
    n_node_experts = local2log.shape[2]
    mine, met = np.empty(n_node_experts, np.float32), np.empty(n_node_experts, np.int64)
    for layer in range(holds.shape[0]):
        for node in range(holds.shape[1]):
            if is_twinned[layer, node]:
                for i in range(n_node_experts):
                    mine[i] = weight[layer, local2log[layer, node, i]]
                if mend(holds[layer, node], mine, count[layer, node], limit[layer]):
                    number_copies(holds[layer, node], ranks[layer, node], met)
