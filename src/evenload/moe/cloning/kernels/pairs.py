"""Pieces of the clone planner: small groups of ranks that have just room enough together.

A group of g ranks needs g - 1 clones, so the more groups, the fewer clones; but a group leaves the room
unused that it has too much, its *waste*, and all groups together may waste only what the target leaves. The
sums of all pairs of up to 64 ranks are put in buckets; a rank and a pair, or two pairs, are then matched by
looking into a bucket or two.
"""

from evenload.moe.cloning.kernels.chain import settle
from evenload.moe.cloning.kernels.moves import LIVE, WASTE
from evenload.native.kernel import inlined, piece

__all__ = ["BLOCK", "BUCKETS", "PAIRS", "match_block"]

BLOCK = 64
BUCKETS = 1024
PAIRS = BLOCK * (BLOCK - 1) // 2
SUM_BITS = 16  # a pair is (sum of slacks) << 16 | place << 8 | place


@inlined
def _tabulate(work, m):
    """Sort the pairs of the first ``m`` live ranks into buckets. Returns (least sum, bits of a bucket)."""
    slack, live, bucket = work.slack, work.live, work.bucket
    least, most = slack[live[0]], slack[live[0]]
    for i in range(1, m):
        least = min(least, slack[live[i]])
        most = max(most, slack[live[i]])
    base, bits = 2 * least, 0
    while (2 * most - base) >> bits >= BUCKETS:
        bits += 1
    bucket[: BUCKETS + 2] = 0
    for i in range(m):
        shifted = slack[live[i]] - base
        for j in range(i):
            bucket[((shifted + slack[live[j]]) >> bits) + 2] += 1
    for b in range(2, BUCKETS + 2):
        bucket[b] += bucket[b - 1]
    for i in range(m):
        of_rank = slack[live[i]]
        for j in range(i):
            total = of_rank + slack[live[j]]
            b = ((total - base) >> bits) + 1
            work.pairs[bucket[b]] = (total << SUM_BITS) | (i << 8) | j
            bucket[b] += 1
    return base, bits


@inlined
def _find(work, base, bits, least, most, i, j):
    """The open pair without places i and j, with the least sum from ``least`` to ``least + most``; -1 if
    none."""
    first = max((least - base) >> bits, 0)
    last = min((least + most - base) >> bits, BUCKETS - 1)
    best, found = most + 1, -1
    if first <= last:
        for at in range(work.bucket[first], work.bucket[last + 1]):
            pair = work.pairs[at]
            waste = (pair >> SUM_BITS) - least
            if 0 <= waste < best:
                a, b = (pair >> 8) & 255, pair & 255
                if work.is_open[a] and work.is_open[b] and a != i and a != j and b != i and b != j:
                    best, found = waste, at
    return found


@inlined
def _close(layer, work, n, a, b, c, d):
    """Make a group of the first ``n`` of these places, if that is possible."""
    group, live = work.group, work.live
    group[0], group[1], group[2], group[3] = live[a], live[b], live[c], live[d]
    waste = 0
    for i in range(n):
        waste += work.slack[group[i]]
    if waste <= work.n[WASTE] and settle(layer, work, n, False):
        work.n[WASTE] -= waste
        work.is_open[a] = work.is_open[b] = 0
        if n > 2:
            work.is_open[c] = 0
        if n > 3:
            work.is_open[d] = 0


@inlined
def _match_alone(work, m, most):
    for i in range(m):
        slack = work.slack[work.live[i]]
        if work.is_open[i] and 0 <= slack <= most and slack <= work.n[WASTE]:
            work.n[WASTE] -= slack
            work.is_open[i] = 0


@inlined
def _match_two(layer, work, base, bits, most):
    while True:
        at = _find(work, base, bits, 0, min(most, work.n[WASTE]), -1, -1)
        if at < 0:
            return
        a, b = (work.pairs[at] >> 8) & 255, work.pairs[at] & 255
        _close(layer, work, 2, a, b, a, b)
        if work.is_open[a]:
            return


@inlined
def _match_three(layer, work, m, base, bits, most):
    for i in range(m):
        if work.is_open[i]:
            least = -work.slack[work.live[i]]
            at = _find(work, base, bits, least, min(most, work.n[WASTE]), i, -1)
            if at >= 0:
                _close(layer, work, 3, i, (work.pairs[at] >> 8) & 255, work.pairs[at] & 255, i)


@inlined
def _match_four(layer, work, base, bits, most):
    last = min(max(-base >> bits, 0), BUCKETS - 1)  # one of two pairs has a sum of 0 or less, but for waste
    for at in range(work.bucket[last + 1]):
        pair = work.pairs[at]
        a, b = (pair >> 8) & 255, pair & 255
        if work.is_open[a] and work.is_open[b]:
            other = _find(work, base, bits, -(pair >> SUM_BITS), min(most, work.n[WASTE]), a, b)
            if other >= 0:
                _close(layer, work, 4, a, b, (work.pairs[other] >> 8) & 255, work.pairs[other] & 255)


@piece
def match_block(layer, work, m):
    """Make groups of up to four of the first ``m`` live ranks, take them from ``live``, and put the others
    of the ``m`` at its end."""
    if m < 2:
        return
    for i in range(m):
        work.is_open[i] = 1
    base, bits = _tabulate(work, m)
    step = max(work.n[WASTE] // layer.n_ranks, 1)
    most = 0
    for _ in range(2):
        _match_alone(work, m, 4 * most)
        _match_two(layer, work, base, bits, 2 * most)
        _match_three(layer, work, m, base, bits, most)
        if work.n[WASTE] <= most:
            break
        most = step
    most = 0
    for _ in range(2):
        _match_four(layer, work, base, bits, most)
        if work.n[WASTE] <= most:
            break
        most = step
    _turn(work, m)


@inlined
def _turn(work, m):
    """Put the live ranks behind the first ``m`` in front of those of the ``m`` that are still open."""
    n_left, n_live = 0, work.n[LIVE]
    for i in range(m):
        if work.is_open[i]:
            work.group[n_left] = work.live[i]
            n_left += 1
    for i in range(m, n_live):
        work.live[i - m] = work.live[i]
    for i in range(n_left):
        work.live[n_live - m + i] = work.group[i]
    work.n[LIVE] = n_live - m + n_left
