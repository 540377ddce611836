"""The clone planner, compiled: clones and quotas such that the busiest rank does the least, with few clones.

The target is a peak that no plan can be below (``least_peak``), or with a tolerance so many times the highest
peak that is known to be one (slot_limits.py). Ranks are put into as many groups as possible that have room
enough among themselves (pairs.py, then halves.py), and each group is settled with one clone fewer than it has
ranks (chain.py). If experts or slots do not allow the target, it is raised by bisection.

All numbers are whole, ties go to the lower number: the same input gives the same plan on every rank.
"""

from evenload.moe.cloning.kernels.chain import settle
from evenload.moe.cloning.kernels.halves import HALF, match_many
from evenload.moe.cloning.kernels.memory import cut_best, cut_layer, cut_work
from evenload.moe.cloning.kernels.moves import (
    EDGES,
    FILLING,
    LARGEST_FIRST,
    LIVE,
    MANY,
    STYLE,
    WASTE,
    leave_small,
    open_domain,
    open_target,
)  # fmt: skip
from evenload.moe.cloning.kernels.pairs import BLOCK, match_block
from evenload.moe.cloning.kernels.slot_limits import slot_limit
from evenload.native.kernel import compiled, inlined, piece

PLANNED, NEGATIVE, OVERFLOW = range(3)
WHOLE, GROUPED, GREEDY = range(3)  # ways to plan for a target
MOST_TOKENS = 1 << 38  # so that a sum of all slacks, with a rank or a subset below it, stays in 64 bits
RESERVE = 4  # the part of what may stay unused that is kept for groups of several ranks
GOALS = 12  # peaks that are tried where time decides


@inlined
def _sum_loads(layer, work, counts):
    """Write each rank's load. Returns the status."""
    total = 0
    for expert in range(len(counts)):
        if counts[expert] < 0:
            return NEGATIVE
        if counts[expert] >= MOST_TOKENS:
            return OVERFLOW
        total += counts[expert]
        if total >= MOST_TOKENS:
            return OVERFLOW
    for rank in range(layer.n_ranks):
        load = 0
        for i in range(layer.expert_start[rank], layer.expert_start[rank + 1]):
            load += counts[layer.experts[i]]
        work.load[rank] = load
    return PLANNED


@inlined
def _least_peak(layer, domains, work, counts):
    """A peak that no plan is below: the mean of the ranks that can take clones and those above it, and of an
    expert over as many ranks as may have it."""
    level = 0
    for expert in range(len(counts)):
        level = max(level, -(-counts[expert] // (layer.cap + 1)))
    start, members = domains
    for domain in range(len(start) - 1):
        while True:
            total, n = 0, 0
            for i in range(start[domain], start[domain + 1]):
                rank = members[i]
                if layer.spare[rank] > 0 or work.load[rank] > level:
                    total += work.load[rank]
                    n += 1
            if total <= level * n:
                break
            level = -(-total // n)
    return level


@piece
def _attempt(layer, domains, work, counts, target, way):
    """Plan for a target, by groups or with all ranks of a domain in one. Returns the peak, which may be
    higher."""
    open_target(layer, work, counts, target)
    work.n[STYLE] = LARGEST_FIRST if way == GREEDY else FILLING
    for domain in range(len(domains[0]) - 1):
        open_domain(layer, work, domains, domain)
        if way == GROUPED:
            leave_small(work, work.n[WASTE] // RESERVE)
            n_blocks = -(-work.n[LIVE] // BLOCK) if work.n[LIVE] > 2 * HALF else 0
            for _ in range(n_blocks):
                match_block(layer, work, min(work.n[LIVE], BLOCK))
            match_many(layer, work)
            leave_small(work, 0)
        for i in range(work.n[LIVE]):
            work.group[i] = work.live[i]
        settle(layer, work, work.n[LIVE], True)
    peak = 0
    for rank in range(layer.n_ranks):
        peak = max(peak, target - work.slack[rank])
    return peak


@piece
def _keep_better(layer, work, target, peak, goal, best):
    """Keep this plan if its peak is lower than the best one's, or as low with fewer clones. Peaks up to
    ``goal`` are alike."""
    experts, ranks, tokens, loads, summary, _ = best
    n_clones, kept = work.n[EDGES], max(summary[0], goal)
    if max(peak, goal) > kept or (max(peak, goal) == kept and n_clones >= summary[2]):
        return
    summary[0], summary[2] = peak, n_clones
    for i in range(n_clones):
        experts[i], ranks[i], tokens[i] = work.edge_expert[i], work.edge_rank[i], work.edge_tokens[i]
    for rank in range(layer.n_ranks):
        loads[rank] = target - work.slack[rank]


@piece
def _plan(layer, domains, work, counts, target, best):
    """Find the lowest peak from ``target`` on that can be reached, with few clones."""
    summary = best[4]
    summary[0] = MANY
    n_uneven = 0
    peak = _attempt(layer, domains, work, counts, target, GROUPED)
    for rank in range(layer.n_ranks):
        n_uneven += work.load[rank] != target
    _keep_better(layer, work, target, peak, target, best)
    if peak <= target and work.n[EDGES] < n_uneven:
        return
    _keep_better(layer, work, target, _attempt(layer, domains, work, counts, target, WHOLE), target, best)
    if summary[0] <= target:
        return
    _keep_better(layer, work, target, _attempt(layer, domains, work, counts, target, GREEDY), target, best)
    low, high = target + 1, summary[0]
    while low < high:
        middle = (low + high) >> 1
        for way in (WHOLE, GREEDY, GROUPED):
            peak = _attempt(layer, domains, work, counts, middle, way)
            _keep_better(layer, work, middle, peak, target, best)
            if peak <= middle:
                break
        if summary[0] > middle:
            low = middle + 1
        high = min(high, summary[0])
    _keep_better(
        layer, work, summary[0], _attempt(layer, domains, work, counts, summary[0], GROUPED), target, best
    )


@piece
def _plan_within(layer, domains, work, counts, least, most, best):
    """Find a plan with few clones and a peak of at most ``most``; if none is found, one whose peak is no
    higher than without a tolerance."""
    _plan(layer, domains, work, counts, most, best)
    peak = best[4][0]
    if peak > most:
        _plan(layer, domains, work, counts, least, best)
        if best[4][0] >= peak:
            _plan(layer, domains, work, counts, most, best)


@inlined
def _seconds(work, n_ranks, peak, nodes, costs, links):
    """Seconds that the busiest rank works, and that fetches add to it."""
    links[:] = 0.0
    for i in range(work.n[EDGES]):
        home, rank = work.edge_home[i], work.edge_rank[i]
        clone_s = costs[1] if nodes[home] == nodes[rank] else costs[2]
        links[home] += clone_s
        links[n_ranks + rank] += clone_s
    busiest = 0.0
    for i in range(2 * n_ranks):
        busiest = max(busiest, links[i])
    return peak * costs[0] + max(busiest - costs[3], 0.0)


@inlined
def _open_best(layer, work, best):
    """Put the ends of the best plan's clones where ``_seconds`` looks for them."""
    experts, ranks, _, _, summary, _ = best
    for rank in range(layer.n_ranks):
        for i in range(layer.expert_start[rank], layer.expert_start[rank + 1]):
            work.made[layer.experts[i]] = rank
    work.n[EDGES] = summary[2]
    for i in range(summary[2]):
        work.edge_home[i], work.edge_rank[i] = work.made[experts[i]], ranks[i]


@piece
def _plan_in_time(layer, domains, work, counts, least, nodes, costs, links, best):
    """Keep, of the plan with the lowest peak and of plans for peaks from ``least`` to that without clones,
    the one that takes the fewest seconds."""
    _plan(layer, domains, work, counts, least, best)
    _open_best(layer, work, best)
    best_s = _seconds(work, layer.n_ranks, best[4][0], nodes, costs, links)
    most = 0
    for rank in range(layer.n_ranks):
        most = max(most, work.load[rank])
    for i in range(GOALS, -1, -1):
        target = least + (most - least) * i * i // (GOALS * GOALS)
        for way in (WHOLE, GREEDY, GROUPED):
            peak = _attempt(layer, domains, work, counts, target, way)
            seconds = _seconds(work, layer.n_ranks, peak, nodes, costs, links)
            if seconds < best_s:
                best_s = seconds
                best[4][0] = MANY
                _keep_better(layer, work, target, peak, 0, best)


@compiled
def clone_layer(counts, n_ranks, block, is_timed, nodes, costs, links):
    """Plan one layer's clones. Returns PLANNED, NEGATIVE or OVERFLOW (of counts).

    counts  [experts] int64
    block   int64 (memory.py): the layer, then what is written: clones' experts, ranks and tokens, loads
            [ranks], summary [3]: peak, a bound of it, clones
    is_timed  look for the plan of the fewest seconds, not of the lowest peak, by
    nodes   [ranks] int64 and
    costs   [4] float64 seconds: of a token, of a fetch inside a node and between nodes, hidden for fetches
    links   [2 * ranks] float64 is scratch
    """
    layer, domains, millionths, at = cut_layer(block, n_ranks, len(counts))
    best = cut_best(block, at, n_ranks, len(counts))
    work = cut_work(block, best[5], n_ranks, len(counts))
    status = _sum_loads(layer, work, counts)
    if status != PLANNED:
        return status
    target = _least_peak(layer, domains, work, counts)
    best[4][1] = target
    if is_timed:
        _plan_in_time(layer, domains, work, counts, target, nodes, costs, links, best)
    elif millionths == 0:
        _plan(layer, domains, work, counts, target, best)
    else:
        limit = slot_limit(layer, domains, work, counts, target)
        _plan_within(layer, domains, work, counts, target, limit + limit * millionths // 1000000, best)
    return PLANNED
