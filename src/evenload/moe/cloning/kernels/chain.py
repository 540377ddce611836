"""Pieces of the clone planner: clones, one after the other, until no rank of a group is above the target.

Each clone brings one more rank to the target, as in Vose's alias method: a rank with room is filled, by one
that may become a rank with room itself. So g ranks need at most g - 1 clones, and one spare slot on each
would do, were experts not smaller than the room. Where they are, the usual greedy may do better: the
largest expert of the busiest rank goes to the idlest.
"""

from evenload.moe.cloning.kernels.moves import EDGES, FILLING, OVER, STYLE, UNDER, fitting_expert, send, undo
from evenload.native.kernel import inlined, piece

RANK_BITS = 24  # a key is tokens << RANK_BITS | rank; keys are in ascending order
LOW = (1 << RANK_BITS) - 1


@inlined
def _insert(keys, n, key):
    at = n
    while at > 0 and keys[at - 1] > key:
        keys[at] = keys[at - 1]
        at -= 1
    keys[at] = key


@inlined
def _list(layer, work, rank):
    """Put the rank into ``over`` or ``under``, if it has to give or may take."""
    slack = work.slack[rank]
    if slack < 0:
        _insert(work.over, work.n[OVER], (-slack << RANK_BITS) | rank)
        work.n[OVER] += 1
    elif slack >= layer.least and work.slots[rank] > 0:
        _insert(work.under, work.n[UNDER], (slack << RANK_BITS) | rank)
        work.n[UNDER] += 1


@inlined
def _roomiest(work):
    """The place in ``under`` of the rank with the most room for each slot that it has left."""
    best, room, slots = work.n[UNDER] - 1, 0, 1
    for i in range(work.n[UNDER] - 1, -1, -1):
        key = work.under[i]
        left = work.slots[key & LOW]
        if (key >> RANK_BITS) * slots > room * left:
            best, room, slots = i, key >> RANK_BITS, left
    return best


@inlined
def _fillable(work, tokens):
    """The place in ``under`` of the rank with the most room of those with at most ``tokens``; -1 if none."""
    at = work.n[UNDER] - 1
    while at >= 0 and (work.under[at] >> RANK_BITS) > tokens:
        at -= 1
    return at


@inlined
def _clone_next(layer, work):
    """One clone from the rank with the most to give. Returns False if its experts have all the clones they
    may."""
    work.n[OVER] -= 1
    home = work.over[work.n[OVER]] & LOW
    need = max(-work.slack[home], layer.least)
    expert = fitting_expert(layer, work, home, need)
    if expert < 0:
        return False
    tokens = min(need, work.rest[expert])
    is_filling = work.n[STYLE] == FILLING
    at = _roomiest(work) if is_filling else work.n[UNDER] - 1
    rank = work.under[at] & LOW
    if is_filling and work.slack[rank] > tokens and work.slots[rank] < 2:
        # The last slot, and these tokens do not fill the room: give more than needed, or find less room.
        other = fitting_expert(layer, work, home, work.slack[rank])
        if work.slots[home] > 0 and work.rest[other] >= work.slack[rank] and work.n[OVER] > 0:
            expert, tokens = other, work.slack[rank]
        else:
            smaller = _fillable(work, tokens)
            at = smaller if smaller >= 0 else at
            rank = work.under[at] & LOW
    for i in range(at, work.n[UNDER] - 1):
        work.under[i] = work.under[i + 1]
    work.n[UNDER] -= 1
    tokens = min(tokens, work.slack[rank])
    short = layer.least + work.slack[home] + tokens  # by so much is what remains too little for a clone
    if 0 < short < layer.least <= tokens - short:
        tokens -= short
    send(work, fitting_expert(layer, work, home, tokens), home, rank, tokens)
    _list(layer, work, home)
    _list(layer, work, rank)
    return True


@piece
def settle(layer, work, n, is_kept):
    """Clone within the first ``n`` ranks of ``group`` until none is above the target. Returns whether that
    was possible; if not, takes all back unless ``is_kept``."""
    mark, is_whole = work.n[EDGES], True
    work.n[OVER] = work.n[UNDER] = 0
    for i in range(n):
        _list(layer, work, work.group[i])
    while work.n[OVER] > 0 and work.n[UNDER] > 0:
        is_whole = _clone_next(layer, work) and is_whole
    is_whole = is_whole and work.n[OVER] == 0
    if not is_whole and not is_kept:
        undo(work, mark)
    return is_whole
