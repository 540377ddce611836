"""Pieces of the clone planner: a peak that no plan is below, as spare slots are few, for a tolerance of it.

By the sums of "room" and "slots" of ``LoadCertificate``, and to the same peak.
"""

from evenload.native.kernel import inlined, piece


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
