"""The most groups with room enough that up to 16 ranks can be put into, by all subsets."""

from evenload.native.kernel import compiled

__all__ = ["MOST_EXACT", "most_groups"]

MOST_EXACT = 16


@compiled
def most_groups(slack, sums, groups):
    """The most groups that all ranks can be put into, each with slacks of 0 or more together; 0 if there
    are none.

    slack [ranks] int64; sums [2**ranks] int64 and groups [2**ranks] int8 are scratch.
    """
    n_subsets = 1 << len(slack)
    sums[0] = 0
    groups[0] = 0
    for subset in range(1, n_subsets):
        lowest = subset & -subset
        rank = 0
        while 1 << rank != lowest:
            rank += 1
        others = subset ^ lowest
        sums[subset] = sums[others] + slack[rank]
        best, part = 0, others
        while True:  # the group of the lowest rank: it and some of the others
            rest = subset ^ part ^ lowest
            if sums[part | lowest] >= 0 and (rest == 0 or groups[rest] > 0):
                best = max(best, groups[rest] + 1)
            if part == 0:
                break
            part = (part - 1) & others
        groups[subset] = best
    return groups[n_subsets - 1]
