"""Pieces of the clone planner: sums of ranks' slacks, found again by their value.

Bits for each value that was entered say at once that most values are absent; what was entered is in lists,
each of every 2048th value.
"""

from evenload.native.kernel import inlined

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
