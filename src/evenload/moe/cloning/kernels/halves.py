"""Pieces of the clone planner: the smallest group among up to 18 ranks, by sums of all subsets of two
halves."""

from evenload.moe.cloning.kernels.chain import settle
from evenload.moe.cloning.kernels.moves import LIVE, WASTE
from evenload.native.kernel import inlined, piece

__all__ = ["HALF", "match_many"]

HALF = 9
MASK = (1 << HALF) - 1
END = 1 << 61
USUAL = 6  # ranks of a group, for its part of the waste


@inlined
def _all_sums(work, first, n, at, spare):
    """Sums of slack over all subsets of ``n`` live ranks from ``first``, ascending, as sum << HALF | subset.

    Written to ``sums`` from ``at``; ``spare`` is where as many can be put meanwhile.
    """
    sums = work.sums
    sums[at] = 0
    size = 1
    for k in range(n):
        add = (work.slack[work.live[first + k]] << HALF) | (1 << k)
        for i in range(size):
            sums[spare + i] = sums[at + i]
        sums[spare + size] = END
        i, j = spare, spare
        for out in range(at, at + 2 * size):
            without, with_it = sums[i], sums[j] + add
            is_without = without <= with_it
            sums[out] = without if is_without else with_it
            i += is_without
            j += 1 - is_without
        size *= 2
    return size


@inlined
def _size_of(subset):
    n = 0
    while subset:
        subset &= subset - 1
        n += 1
    return n


@piece
def _smallest(work, n, most):
    """The smallest subset of the first ``n`` live ranks whose slack sums to 0 up to ``most``; 0 if none but
    all."""
    half = n // 2
    left, right, spare = 0, 1 << HALF, 2 << HALF
    n_left = _all_sums(work, 0, half, left, spare)
    n_right = _all_sums(work, half, n - half, right, spare)
    best, best_size, best_waste = 0, n, most + 1
    j = n_right
    for i in range(n_left):
        low = work.sums[i] >> HALF
        while j > 0 and (work.sums[right + j - 1] >> HALF) + low >= 0:
            j -= 1
        for k in range(j, n_right):
            waste = (work.sums[right + k] >> HALF) + low
            if waste > most:
                break
            subset = ((work.sums[right + k] & MASK) << half) | (work.sums[i] & MASK)
            size = _size_of(subset)
            if size > 0 and (size < best_size or (size == best_size and waste < best_waste)):
                best, best_size, best_waste = subset, size, waste
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
