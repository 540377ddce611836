"""Pieces of the clone planner: the smallest group among up to 18 ranks, by the sums of all subsets of one
half, and for each the subset of the other half that it lacks (Horowitz and Sahni 1974)."""

from evenload.moe.cloning.kernels.chain import settle
from evenload.moe.cloning.kernels.moves import LIVE, WASTE
from evenload.moe.cloning.kernels.sums import (
    LISTS,
    NEAR,
    TAG_BITS,
    add_sum,
    is_likely,
    open_sums,
    visits,
)  # fmt: skip
from evenload.native.kernel import inlined, piece

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
    all."""
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
