"""Pieces of the clone planner: small groups of ranks that have just room enough together.

A group of g ranks needs g - 1 clones, so the more groups, the fewer clones; but a group leaves the room
unused that it has too much, its *waste*, and all groups together may waste only what the target leaves. The
sums of all pairs of up to 64 ranks are tabulated (sums.py); a rank and a pair, two pairs, or a rank and two
pairs, are then matched by looking up what they lack.
"""

from evenload.moe.cloning.kernels.chain import settle
from evenload.moe.cloning.kernels.moves import LIVE, WASTE
from evenload.moe.cloning.kernels.sums import (
    LISTS,
    TAG_BITS,
    add_sum,
    is_likely,
    open_sums,
    visits,
)  # fmt: skip
from evenload.native.kernel import inlined, piece

BLOCK = 64
PLACE_BITS = TAG_BITS // 2
PLACE = (1 << PLACE_BITS) - 1
MOST_TRIES = 1 << 14  # pairs that are looked at for groups of five


@inlined
def _drop_closed(work, m):
    """Close the gaps among the first ``m`` live ranks that closed ones leave. Returns how many are open."""
    n = 0
    for i in range(m):
        work.live[n] = work.live[i]
        n += work.is_open[i]
    for i in range(n):
        work.is_open[i] = 1
    n_live = work.n[LIVE]
    for i in range(m, n_live):
        work.live[n + i - m] = work.live[i]
    work.n[LIVE] = n_live - m + n
    return n


@inlined
def _tabulate(work, m):
    """Enter the sums of all pairs of the first ``m`` live ranks, whose slacks are then in ``subset``. Returns
    (least sum, bits that share one)."""
    slack, least, most = work.subset, 0, 0
    for i in range(m):
        slack[i] = work.slack[work.live[i]]
        least = min(least, slack[i])
        most = max(most, slack[i])
    base, at = 2 * least, 0
    shift = open_sums(work, base, 2 * most)
    for i in range(m):
        for j in range(i):
            add_sum(work, base, shift, at, slack[i] + slack[j], (i << PLACE_BITS) | j)
            at += 1
    return base, shift


@inlined
def _places(work, at):
    """The two places of a pair."""
    pair = work.sums[at]
    return (pair >> PLACE_BITS) & PLACE, pair & PLACE


@inlined
def _find(work, base, shift, least, most, i, j, k):
    """The open pair without places i, j and k, with the least sum from ``least`` to ``least + most``; -1 if
    none."""
    best, found = most + 1, -1
    first, last = visits(base, shift, least, most)
    for place in range(first, last + 1):
        at = work.newest[place & (LISTS - 1)]
        while at >= 0 and best > 0:
            waste = (work.sums[at] >> TAG_BITS) - least
            if 0 <= waste < best:
                a, b = _places(work, at)
                is_apart = a != i and a != j and a != k and b != i and b != j and b != k
                if is_apart and work.is_open[a] and work.is_open[b]:
                    best, found = waste, at
            at = work.after[at]
        if found >= 0:
            break  # the lists that follow have larger sums
    return found


@inlined
def _close(layer, work, n, a, b, c, d, e):
    """Make a group of the first ``n`` of these places, if that is possible; returns whether it was."""
    group, live = work.group, work.live
    group[0], group[1], group[2], group[3], group[4] = live[a], live[b], live[c], live[d], live[e]
    waste = 0
    for i in range(n):
        waste += work.slack[group[i]]
    if waste > work.n[WASTE] or not settle(layer, work, n, False):
        return False
    work.n[WASTE] -= waste
    work.is_open[a] = work.is_open[b] = 0
    if n > 2:
        work.is_open[c] = 0
    if n > 3:
        work.is_open[d] = 0
    if n > 4:
        work.is_open[e] = 0
    return True


@inlined
def _match_two(layer, work, base, shift, most):
    while True:
        at = _find(work, base, shift, 0, min(most, work.n[WASTE]), -1, -1, -1)
        if at < 0:
            return
        a, b = _places(work, at)
        if not _close(layer, work, 2, a, b, a, b, a):
            return


@inlined
def _match_three(layer, work, m, base, shift, most):
    for i in range(m):
        least = -work.subset[i]
        if work.is_open[i] and is_likely(work, base, shift, least, most):
            at = _find(work, base, shift, least, min(most, work.n[WASTE]), i, -1, -1)
            if at >= 0:
                a, b = _places(work, at)
                _close(layer, work, 3, i, a, b, i, i)


@inlined
def _match_four(layer, work, m, base, shift, most):
    """Two pairs: of four places, two are the same modulo 3, so that such pairs and any others are all."""
    for a in range(m):
        for b in range(a % 3, a, 3):
            if not work.is_open[a]:
                break
            least = -work.subset[a] - work.subset[b]
            if is_likely(work, base, shift, least, most) and work.is_open[b]:
                at = _find(work, base, shift, least, min(most, work.n[WASTE]), a, b, -1)
                if at >= 0:
                    c, d = _places(work, at)
                    _close(layer, work, 4, a, b, c, d, a)


@inlined
def _match_five(layer, work, m, base, shift, most):
    """A rank above the target, of which each group has one, and two pairs."""
    n_tries = 0
    for i in range(m):
        if work.subset[i] < 0 and work.is_open[i] and n_tries < MOST_TRIES:
            n_tries += _complete_five(layer, work, m, base, shift, most, i)


@inlined
def _complete_five(layer, work, m, base, shift, most, i):
    n_tries, slack = 0, work.subset[i]
    for a in range(m):
        if a == i or not work.is_open[a]:
            continue
        n_tries += a // 3
        of_two = slack + work.subset[a]
        for b in range(a % 3, a, 3):
            least = -of_two - work.subset[b]
            if is_likely(work, base, shift, least, most) and work.is_open[b] and b != i:
                at = _find(work, base, shift, least, min(most, work.n[WASTE]), a, b, i)
                if at >= 0:
                    c, d = _places(work, at)
                    if _close(layer, work, 5, i, a, b, c, d):
                        return n_tries
    return n_tries


@piece
def match_block(layer, work, m):
    """Make groups of up to five of the first ``m`` live ranks, take them from ``live``, and put the others
    of the ``m`` at its end."""
    for i in range(m):
        work.is_open[i] = 1
    step = max(work.n[WASTE] // max(work.n[LIVE], 1), 1)
    base, shift = _tabulate(work, m)
    _match_two(layer, work, base, shift, 2 * step)
    _match_three(layer, work, m, base, shift, step)
    m = _drop_closed(work, m)
    base, shift = _tabulate(work, m)
    _match_four(layer, work, m, base, shift, step)
    m = _drop_closed(work, m)
    base, shift = _tabulate(work, m)
    _match_five(layer, work, m, base, shift, step)
    _turn(work, _drop_closed(work, m))


@inlined
def _turn(work, m):
    """Put the first ``m`` live ranks behind the others."""
    n_live = work.n[LIVE]
    for i in range(m):
        work.group[i] = work.live[i]
    for i in range(m, n_live):
        work.live[i - m] = work.live[i]
    for i in range(m):
        work.live[n_live - m + i] = work.group[i]
