"""Pieces of the clone planner: small groups of ranks that have just room enough together.

A group of g ranks needs g - 1 clones, so the more groups, the fewer clones; but a group leaves the room
unused that it has too much, its *waste*, and all groups together may waste only what the target leaves. The
sums of all pairs of up to 64 ranks are tabulated; a rank and a pair, two pairs, or a rank and two
pairs, are then matched by looking up what they lack. Among up to 18 ranks the smallest group of any size is
found. Bits for each sum that was entered say at once that most values are absent; what was entered is in
lists, each of every 2048th value.
"""

from evenload.moe.cloning.kernels.moves import LIVE, WASTE, settle
from evenload.native.kernel import inlined, piece

WORDS = 1024
LAST = 64 * WORDS - 1
LISTS = 2048
MOST_SUMS = 2048
NEAR = 8  # lists that are looked at for one sum
TAG_BITS = 16  # a sum is entered as sum << TAG_BITS | tag: which ranks it is of


@inlined
def open_sums(work, least, most):
    """Begin anew, for sums from ``least`` to ``most``. Returns the bits of a value that share one bit."""
    shift = 0
    while (most - least) >> shift > LAST:
        shift += 1
    work.seen[:WORDS] = 0
    work.newest[:LISTS] = -1
    return shift


@inlined
def add_sum(work, base, shift, at, total, tag):
    """Enter a sum as number ``at``; ``base`` is the least that can come."""
    place = (total - base) >> shift
    before = max(place - 1, 0)
    work.seen[place >> 6] |= 1 << (place & 63)
    work.seen[before >> 6] |= 1 << (before & 63)  # so that one bit tells of two places
    work.after[at] = work.newest[place & (LISTS - 1)]
    work.newest[place & (LISTS - 1)] = at
    work.sums[at] = (total << TAG_BITS) | tag


@inlined
def is_likely(work, base, shift, least, most):
    """Whether there may be a sum from ``least`` to ``least + most``."""
    first, last = max((least - base) >> shift, 0), min((least + most - base) >> shift, LAST)
    if last - first > 1:
        return True
    if last < first:
        return False
    return (work.seen[first >> 6] >> (first & 63)) & 1 == 1


@inlined
def visits(base, shift, least, most):
    """(first, last): lists from ``first`` to ``last``, modulo ``LISTS``, have all sums from ``least`` to
    ``least + most``, and others."""
    first, last = max((least - base) >> shift, 0), min((least + most - base) >> shift, LAST)
    return first, min(last, first + LISTS - 1)


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


HALF = 9
USUAL = 6  # ranks of a group, for its part of the waste


@inlined
def _right_half(work, first, n):
    """Enter the sums of slack of all subsets of ``n`` live ranks from ``first``. Returns (base, shift)."""
    least, most = 0, 0
    work.subset[0] = 0
    for k in range(n):
        slack = work.slack[work.live[first + k]]
        least, most = least + min(slack, 0), most + max(slack, 0)
        for i in range(1 << k):
            work.subset[(1 << k) + i] = work.subset[i] + slack
    shift = open_sums(work, least, most)
    for subset in range(1 << n):
        add_sum(work, least, shift, subset, work.subset[subset], subset)
    return least, shift


@inlined
def _size_of(subset):
    n = 0
    while subset:
        subset &= subset - 1
        n += 1
    return n


@inlined
def _smallest_with(work, base, shift, low, most, left, half, best, best_size, best_waste):
    """``best``, or a smaller one that is ``left``, whose sum is ``low``, and a subset of the right half."""
    first, last = visits(base, shift, -low, most)
    for place in range(first, last + 1):
        at = work.newest[place & (LISTS - 1)]
        while at >= 0:
            waste = (work.sums[at] >> TAG_BITS) + low
            if 0 <= waste <= most:
                subset = (at << half) | left
                size = _size_of(subset)
                if size > 0 and (size < best_size or (size == best_size and waste < best_waste)):
                    best, best_size, best_waste = subset, size, waste
            at = work.after[at]
    return best, best_size, best_waste


@piece
def _smallest(work, n, most):
    """The smallest subset of the first ``n`` live ranks whose slack sums to 0 up to ``most``; 0 if none but
    all.

    By the sums of all subsets of one half, and for each the subset of the other half that it lacks. Source:
    Horowitz and Sahni, 1974.
    """
    half = n // 2
    base, shift = _right_half(work, half, n - half)
    most = min(most, NEAR << shift)
    work.subset[0] = 0
    for k in range(half):
        slack = work.slack[work.live[k]]
        for i in range(1 << k):
            work.subset[(1 << k) + i] = work.subset[i] + slack
    best, best_size, best_waste = 0, n, most + 1
    for left in range(1 << half):
        low = work.subset[left]
        if is_likely(work, base, shift, -low, most):
            best, best_size, best_waste = _smallest_with(
                work, base, shift, low, most, left, half, best, best_size, best_waste
            )
    return best if best_size < n else 0


@piece
def match_many(layer, work):
    """Make groups of the live ranks, each the smallest among some of them, until none is found."""
    while work.n[LIVE] > 2:
        n_live = work.n[LIVE]
        n = min(n_live, 2 * HALF)
        most = work.n[WASTE] if n == n_live else work.n[WASTE] * USUAL // n_live
        subset = _smallest(work, n, most)
        if subset == 0:
            return
        size, left, waste = 0, 0, 0
        for i in range(n):
            if subset >> i & 1:
                work.group[size] = work.live[i]
                waste += work.slack[work.live[i]]
                size += 1
        if not settle(layer, work, size, False):
            return
        work.n[WASTE] -= waste
        for i in range(n_live):
            if i >= n or not subset >> i & 1:
                work.live[left] = work.live[i]
                left += 1
        work.n[LIVE] = left
