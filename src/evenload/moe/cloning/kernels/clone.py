"""The clone planner, compiled: clones and quotas such that the busiest rank does the least, with few clones.

The target is a peak that no plan can be below (``least_peak``), or with a tolerance so many times the highest
peak that is known to be one (``slot_limit``). Ranks are put into as many groups as possible that have room
enough among themselves (pairs.py), and each group is settled with one clone fewer than it has ranks
(moves.py). If experts or slots do not allow the target, it is raised by bisection.

All numbers are whole, ties go to the lower number: the same input gives the same plan on every rank.
"""

import numpy as np
from numpy.typing import NDArray

from evenload.moe.cloning.kernels.moves import (
    EDGES,
    FILLING,
    LARGEST_FIRST,
    LIVE,
    MANY,
    STYLE,
    WASTE,
    Layer,
    Work,
    leave_small,
    open_domain,
    open_target,
    settle,
)  # fmt: skip
from evenload.moe.cloning.kernels.pairs import BLOCK, HALF, LISTS, MOST_SUMS, WORDS, match_block, match_many
from evenload.moe.cloning.load_certificate import CloneLayer
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
    block   int64 (``block_words``): the layer, then what is written: clones' experts, ranks and tokens, loads
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


# Words of int64: the layer, then the best plan so far, then work.
HEAD = 4  # cap, least, millionths, domains
FIXED = HEAD + BLOCK + WORDS + LISTS + 3 * MOST_SUMS + 8


def most_clones(n_ranks: int, n_experts: int) -> int:
    """The most clones of any plan: each ends the need of a rank, the room of one, or an expert's tokens, or
    leaves just enough for a rank's last one."""
    return 3 * n_ranks + n_experts


def block_words(n_ranks: int, n_experts: int) -> int:
    """The words that the planner's block needs for so many ranks and experts."""
    return 14 * (n_ranks + 8) + 3 * n_experts + 7 * most_clones(n_ranks, n_experts) + FIXED


def layer_words(layer: CloneLayer) -> NDArray[np.int64]:
    """What the block begins with, for ``cut_layer``."""
    head = [layer.cap, layer.least_tokens, layer.millionths, layer.n_domains]
    tables = (layer.expert_start, layer.experts, layer.spare, layer.members, layer.domain_start)
    return np.concatenate([head, *tables]).astype(np.int64)


@inlined
def cut_layer(block, n_ranks, n_experts):
    """The layer at the start of the block, the starts and members of its domains, the millionths that peaks
    may be higher, and where these end."""
    experts = HEAD + n_ranks + 1
    spare = experts + n_experts
    members = spare + n_ranks
    starts = members + n_ranks
    end = starts + block[3] + 1
    layer = Layer(
        n_ranks, block[HEAD:experts], block[experts:spare], block[spare:members], block[0], block[1]
    )
    return layer, (block[starts:end], block[members:starts]), block[2], end


@inlined
def cut_best(block, at, n_ranks, n_experts):
    """The answer: clones' experts, ranks and tokens, loads [ranks], summary [3]; and where it ends."""
    many = 3 * n_ranks + n_experts
    loads = at + 3 * many
    end = loads + n_ranks + 3
    return (
        block[at : at + many], block[at + many : at + 2 * many], block[at + 2 * many : loads],
        block[loads : loads + n_ranks], block[loads + n_ranks : end], end,
    )  # fmt: skip


@inlined
def cut_work(block, at, n_ranks, n_experts):
    """The planner's own arrays, from ``at`` on."""
    many = 3 * n_ranks + n_experts
    edges = at + 3 * n_ranks + 2 * n_experts
    lists = edges + 4 * many
    row = n_ranks + 4
    fixed = lists + 4 * row
    newest = fixed + BLOCK + WORDS
    sums = newest + LISTS
    after = sums + MOST_SUMS
    subset = after + MOST_SUMS
    n = subset + MOST_SUMS
    rest = at + 3 * n_ranks
    return Work(
        block[at : at + n_ranks], block[at + n_ranks : at + 2 * n_ranks], block[at + 2 * n_ranks : rest],
        block[rest : rest + n_experts], block[rest + n_experts : edges], block[edges : edges + many],
        block[edges + many : edges + 2 * many], block[edges + 2 * many : edges + 3 * many],
        block[edges + 3 * many : lists], block[lists : lists + row], block[lists + row : lists + 2 * row],
        block[lists + 2 * row : lists + 3 * row], block[lists + 3 * row : fixed],
        block[fixed : fixed + BLOCK], block[fixed + BLOCK : newest], block[newest:sums], block[sums:after],
        block[after:subset], block[subset:n], block[n : n + 8],
    )  # fmt: skip


@inlined
def _next_hottest(layer, counts, ranks, last):
    """The expert of ``ranks`` that comes after ``last`` in descending order of tokens; -1 if none does."""
    best = -1
    for i in range(len(ranks)):
        for k in range(layer.expert_start[ranks[i]], layer.expert_start[ranks[i] + 1]):
            expert = layer.experts[k]
            tokens = counts[expert]
            if last >= 0 and (tokens > counts[last] or (tokens == counts[last] and expert <= last)):
                continue
            if best < 0 or tokens > counts[best] or (tokens == counts[best] and expert < best):
                best = expert
    return best


@inlined
def _lacks_room(layer, work, counts, ranks, level):
    """Whether all tokens are more than the ranks may have: no more than ``level``, nor than their load and
    the largest experts of others that fit into their slots."""
    total, may_have, n = 0, 0, 0
    for i in range(len(ranks)):
        rank = ranks[i]
        has, left, k = work.load[rank], layer.spare[rank], 0
        total += has
        while left > 0 and has < level:
            if k == n:
                work.rest[k] = _next_hottest(layer, counts, ranks, work.rest[k - 1] if k > 0 else -1)
                n += 1
            expert = work.rest[k]
            if expert < 0:
                break
            if work.made[expert] != rank:
                has += counts[expert]
                left -= 1
            k += 1
        may_have += min(has, level)
    return total > may_have


@inlined
def _parts(layer, counts, rank, level, least):
    """What remains of the rank's experts beside clones of ``level`` tokens: (tokens, experts) of those with
    ``least`` or more."""
    total, n = 0, 0
    for k in range(layer.expert_start[rank], layer.expert_start[rank + 1]):
        part = counts[layer.experts[k]] % level
        if part >= least:
            total += part
            n += 1
    return total, n


@inlined
def _needed(layer, work, counts, rank, level):
    """The fewest clones with which the rank's load comes down to ``level``."""
    excess = work.load[rank] - level
    if excess <= 0:
        return 0
    whole = (work.load[rank] - _parts(layer, counts, rank, level, 1)[0]) // level
    if excess <= whole * level:
        return -(-excess // level)
    excess -= whole * level
    low, high = 1, level  # the largest part such that the parts of its size or more are enough
    while low < high:
        middle = (low + high + 1) >> 1
        if _parts(layer, counts, rank, level, middle)[0] >= excess:
            low = middle
        else:
            high = middle - 1
    total, n = _parts(layer, counts, rank, level, low + 1)
    return whole + n - (total - excess) // low


@inlined
def _is_too_low(layer, domains, work, counts, level):
    start, members = domains
    for domain in range(len(start) - 1):
        ranks = members[start[domain] : start[domain + 1]]
        left = 0
        for i in range(len(ranks)):
            left += layer.spare[ranks[i]] - _needed(layer, work, counts, ranks[i], level)
        if left < 0 or _lacks_room(layer, work, counts, ranks, level):
            return True
    return False


@piece
def slot_limit(layer, domains, work, counts, level):
    """The lowest peak from ``level`` on, which no plan is below, that these sums do not refuse."""
    low, high = level, level
    for rank in range(layer.n_ranks):
        high = max(high, work.load[rank])
        for k in range(layer.expert_start[rank], layer.expert_start[rank + 1]):
            work.made[layer.experts[k]] = rank
    if low == high or not _is_too_low(layer, domains, work, counts, low):
        return low
    while low + 1 < high:
        middle = (low + high) >> 1
        if _is_too_low(layer, domains, work, counts, middle):
            low = middle
        else:
            high = middle
    return high
