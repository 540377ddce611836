"""The clone planner on a device: one program for each layer, all of its state in vectors.

It plans as ``kernels/clone.py`` does with all ranks in one group: the same peak wherever experts and slots
allow the target, with one clone fewer than ranks. Ties go the same way.
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
def _fit(expert, homes, rest, made, home, tokens, cap):
    """(expert, its tokens): the fewest that are ``tokens`` or more, else the most; -1 if there is none."""
    may = (homes == home) & (rest > 0) & (made < cap)
    least = tl.min(tl.where(may & (rest >= tokens), (rest << BITS) | expert, NEVER), axis=0)
    most = tl.max(tl.where(may, (rest << BITS) | (LOW - expert), -1), axis=0)
    fits = least < NEVER
    found = tl.where(fits, least & LOW, tl.where(most >= 0, LOW - (most & LOW), -1))
    return found, tl.where(fits, least >> BITS, most >> BITS)


@triton.jit
def _least_peak(counts, load, spare, is_rank, cap):
    level = tl.max((counts + cap) // (cap + 1), axis=0)
    rises = 1
    while rises > 0:
        inside = is_rank & ((spare > 0) | (load > level))
        n = tl.sum(inside.to(tl.int64), axis=0)
        total = tl.sum(tl.where(inside, load, 0), axis=0)
        rises = tl.where(total > level * n, 1, 0)
        level = tl.where(rises > 0, (total + n - 1) // tl.maximum(n, 1), level)
    return level


@triton.jit
def _target(under, slack, slots, home_slots, tokens, most, is_last):
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
def clone_kernel(
    counts_of, homes_of, spare_of, experts, ranks, tokens_of, loads, summary, E, G, N, cap,
    BLOCK_E: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Plan layer ``program_id(0)``.

    All are int64, with a leading layer, but ``homes_of`` [E] and ``spare_of`` [G]. counts_of [E].
    Written: experts, ranks and tokens_of [N] of the clones, loads [G], summary [3]: peak, bound, clones.
    """
    layer = tl.program_id(0).to(tl.int64)
    expert, rank = tl.arange(0, BLOCK_E).to(tl.int64), tl.arange(0, BLOCK_G).to(tl.int64)
    rest = tl.load(counts_of + layer * E + expert, mask=expert < E, other=0)
    homes = tl.load(homes_of + expert, mask=expert < E, other=-1)
    spare = tl.load(spare_of + rank, mask=rank < G, other=0)
    load = tl.sum(tl.where(homes[None, :] == rank[:, None], rest[None, :], 0), axis=1)
    target = _least_peak(rest, load, spare, rank < G, cap)
    slack, slots, made = tl.where(rank < G, target - load, 0), spare, rest * 0
    is_stuck, n, goes_on = rank < 0, 0, 1
    at = layer * N
    while goes_on > 0:
        over = tl.where((slack < 0) & (is_stuck == 0), (-slack << BITS) | rank, -1)
        under = tl.where((slack > 0) & (slots > 0), (slack << BITS) | rank, -1)
        key, n_over = tl.max(over, axis=0), tl.sum((over >= 0).to(tl.int32), axis=0)
        goes_on = tl.where((key >= 0) & (tl.max(under, axis=0) >= 0) & (n < N), 1, 0)
        if goes_on > 0:
            home = key & LOW
            found, its_rest = _fit(expert, homes, rest, made, home, key >> BITS, cap)
            if found < 0:
                is_stuck = is_stuck | (rank == home)
            else:
                may = (homes == home) & (made < cap)
                most = tl.max(tl.where(may, rest, 0), axis=0)
                home_slots = tl.sum(tl.where(rank == home, slots, 0), axis=0)
                tokens = tl.minimum(key >> BITS, its_rest)
                is_last = tl.where(n_over == 1, 1, 0)
                to, tokens = _target(under, slack, slots, home_slots, tokens, most, is_last)
                tokens = tl.minimum(tokens, to >> BITS)
                found, its_rest = _fit(expert, homes, rest, made, home, tokens, cap)
                tl.store(experts + at + n, found)
                tl.store(ranks + at + n, to & LOW)
                tl.store(tokens_of + at + n, tokens)
                n += 1
                rest -= tl.where(expert == found, tokens, 0)
                made += (expert == found).to(tl.int64)
                slack += tl.where(rank == home, tokens, 0) - tl.where(rank == (to & LOW), tokens, 0)
                slots -= (rank == (to & LOW)).to(tl.int64)
    load = tl.where(rank < G, target - slack, 0)
    tl.store(loads + layer * G + rank, load, mask=rank < G)
    tl.store(summary + layer * 3, tl.max(load, axis=0))
    tl.store(summary + layer * 3 + 1, target)
    tl.store(summary + layer * 3 + 2, n)
