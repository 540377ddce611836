"""The clone planner on a device: one program for each layer, all of its state in vectors.

It plans as ``kernels/clone.py`` does with all ranks of a domain in one group: the same peak wherever experts
and slots allow the target, with one clone fewer than ranks. Ties go the same way.
"""

# Triton is not Python to a type checker.
# pyright: reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false

import triton
import triton.language as tl

BITS = tl.constexpr(24)  # a key is tokens << BITS | rank or expert
LOW = tl.constexpr((1 << 24) - 1)
NEVER = tl.constexpr(1 << 62)


@triton.jit
def _fit(expert, may, rest, tokens):
    """(expert, its tokens): of those that ``may``, the fewest that are ``tokens`` or more, else the most; -1
    if there is none."""
    least = tl.min(tl.where(may & (rest >= tokens), (rest << BITS) | expert, NEVER), axis=0)
    most = tl.max(tl.where(may, (rest << BITS) | (LOW - expert), -1), axis=0)
    fits = least < NEVER
    found = tl.where(fits, least & LOW, tl.where(most >= 0, LOW - (most & LOW), -1))
    return found, tl.where(fits, least >> BITS, most >> BITS)


@triton.jit
def _at(values, rank, one):
    return tl.sum(tl.where(rank == one, values, 0), axis=0)


@triton.jit
def _least_peak(counts, load, spare, domain, n_domains, cap):
    level = tl.max((counts + cap) // (cap + 1), axis=0)
    of = 0
    while of < n_domains:
        inside = (domain == of) & ((spare > 0) | (load > level))
        n = tl.sum(inside.to(tl.int64), axis=0)
        total = tl.sum(tl.where(inside, load, 0), axis=0)
        rises = total > level * n
        level = tl.where(rises, (total + n - 1) // tl.maximum(n, 1), level)
        of += tl.where(rises, 0, 1)
    return level


@triton.jit
def _receiver(under, slack, slots, home_slots, tokens, most, is_last):
    """(key, tokens): the rank that is sent to, and how many tokens it gets if it has room for them.

    most  tokens of the home's expert with the most left
    """
    density = tl.where(under >= 0, slack.to(tl.float64) / tl.maximum(slots, 1).to(tl.float64), -1.0)
    key = tl.max(tl.where(density == tl.max(density, axis=0), under, -1), axis=0)
    room = key >> BITS
    left = tl.sum(tl.where(under == key, slots, 0), axis=0)
    is_short = (room > tokens) & (left < 2)
    gives_more = is_short & (home_slots > 0) & (most >= room) & (is_last == 0)
    smaller = tl.max(tl.where(slack <= tokens, under, -1), axis=0)
    key = tl.where(is_short & (gives_more == 0) & (smaller >= 0), smaller, key)
    return key, tl.where(gives_more, room, tokens)


@triton.jit
def _next_clone(expert, rank, homes, rest, made, slack, slots, domain, over, key, cap, fewest):
    """(expert, rank, tokens) of a clone from the rank of ``key``, the first one of ``over``; -1 for no
    expert."""
    home, excess = key & LOW, key >> BITS
    is_near = domain == _at(domain, rank, home)
    under = tl.where(is_near & (slack >= fewest) & (slots > 0), (slack << BITS) | rank, -1)
    may = (homes == home) & (rest >= fewest) & (made < cap)
    need = tl.maximum(excess, fewest)
    found, its_rest = _fit(expert, may, rest, need)
    most = tl.max(tl.where(may, rest, 0), axis=0)
    is_last = tl.where(tl.sum(((over >= 0) & is_near).to(tl.int32), axis=0) == 1, 1, 0)
    to, tokens = _receiver(
        under, slack, slots, _at(slots, rank, home), tl.minimum(need, its_rest), most, is_last
    )
    tokens = tl.minimum(tokens, to >> BITS)
    short = fewest + tokens - excess  # so much is what remains too little for a clone
    keeps = (short > 0) & (short < fewest) & (tokens - short >= fewest)
    tokens = tl.where(keeps, tokens - short, tokens)
    chosen, its_rest = _fit(expert, may, rest, tokens)
    return tl.where((found < 0) | (tl.max(under, axis=0) < 0), -1, chosen), to & LOW, tokens


@triton.jit
def clone_kernel(
    counts_of, homes_of, spare_of, domain_of, experts, ranks, tokens_of, loads, summary, E, G, N, n_domains,
    cap, fewest, millionths, BLOCK_E: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Plan layer ``program_id(0)``.

    All are int64, with a leading layer, but ``homes_of`` [E], ``spare_of`` and ``domain_of`` [G], of which
    all from 0 to ``n_domains`` - 1 are there. counts_of [E]. ``fewest`` tokens of a clone.
    Written: experts, ranks and tokens_of [N] of the clones, loads [G], summary [3]: peak, bound, clones.
    """
    layer = tl.program_id(0).to(tl.int64)
    expert, rank = tl.arange(0, BLOCK_E).to(tl.int64), tl.arange(0, BLOCK_G).to(tl.int64)
    counts = tl.load(counts_of + layer * E + expert, mask=expert < E, other=0)
    homes = tl.load(homes_of + expert, mask=expert < E, other=-1)
    spare = tl.load(spare_of + rank, mask=rank < G, other=0)
    domain = tl.load(domain_of + rank, mask=rank < G, other=-1)
    homed = tl.sum(tl.where(homes[None, :] == rank[:, None], counts[None, :], 0), axis=1)
    bound = _least_peak(counts, homed, spare, domain, n_domains, cap)
    target, at, n = bound + bound * millionths // 1000000, layer * N, 0
    most_peak, peak, turn = target, target, 0
    # Where a tolerance is missed, the bound itself is the target; where that is no better, the first again.
    while turn < 3:
        rest, made = counts, counts * 0
        slack, slots = tl.where(rank < G, target - homed, 0), spare
        is_stuck, n, goes_on = rank < 0, 0, 1
        while goes_on > 0:
            over = tl.where((slack < 0) & (is_stuck == 0), (-slack << BITS) | rank, -1)
            key = tl.max(over, axis=0)
            home = key & LOW
            goes_on = tl.where((key >= 0) & (n < N), 1, 0)
            if goes_on > 0:
                found, to, tokens = _next_clone(
                    expert, rank, homes, rest, made, slack, slots, domain, over, key, cap, fewest
                )
                if found < 0:
                    is_stuck = is_stuck | (rank == home)
                else:
                    tl.store(experts + at + n, found)
                    tl.store(ranks + at + n, to)
                    tl.store(tokens_of + at + n, tokens)
                    n += 1
                    rest -= tl.where(expert == found, tokens, 0)
                    made += (expert == found).to(tl.int64)
                    slack += tl.where(rank == home, tokens, 0) - tl.where(rank == to, tokens, 0)
                    slots -= (rank == to).to(tl.int64)
        load = tl.where(rank < G, target - slack, 0)
        reached = tl.max(load, axis=0)
        is_done = (reached <= most_peak) | (target == bound) & ((turn == 0) | (reached < peak)) | (turn == 2)
        peak = reached
        target = tl.where(turn == 0, bound, most_peak)
        turn = tl.where(is_done, 3, turn + 1)
        tl.store(loads + layer * G + rank, load, mask=rank < G)
    tl.store(summary + layer * 3, peak)
    tl.store(summary + layer * 3 + 1, bound)
    tl.store(summary + layer * 3 + 2, n)
