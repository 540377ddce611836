"""Pieces of the clone planner: its state, and clones, one after the other, until no rank is above the target.

Each clone brings one more rank to the target, as in Vose's alias method: a rank with room is filled, by one
that may become a rank with room itself. So g ranks need at most g - 1 clones, and one spare slot on each
would do, were experts not smaller than the room. Where they are, the usual greedy may do better: the
largest expert of the busiest rank goes to the idlest.
"""

from collections import namedtuple

from evenload.native.kernel import inlined, piece

EDGES, OVER, UNDER, WASTE, LIVE, STYLE = range(6)  # places in Work.n
FILLING, LARGEST_FIRST = range(2)  # styles
MANY = 1 << 62

# What stays from batch to batch: expert_start [ranks + 1] and experts [experts] by home, spare [ranks] slots,
# cap: most clones of an expert, least: tokens that a clone takes at least.
Layer = namedtuple("Layer", "n_ranks expert_start experts spare cap least")

# load [ranks] homed there; slack [ranks]: tokens below the target (above, if negative); slots [ranks]: spare
# ones left; rest [experts]: tokens still at home; made [experts]: clones; edge_* [clones]: expert, home, rank
# and tokens of each; over, under: keys of ranks above and below the target ; live: ranks in no group
# yet; group: the ranks of one; is_open: places in live (pairs.py); seen, newest, sums, after: of
# pairs.py; n: clones made,
# keys in over and under, tokens that may stay unused below the target, ranks in live.
Work = namedtuple(
    "Work",
    "load slack slots rest made edge_expert edge_home edge_rank edge_tokens over under live group is_open "
    "seen newest sums after subset n",
)


@inlined
def open_target(layer, work, counts, target):
    """Begin anew: all tokens at home, slack measured from ``target``."""
    for rank in range(layer.n_ranks):
        work.slack[rank] = target - work.load[rank]
        work.slots[rank] = layer.spare[rank]
    for expert in range(len(counts)):
        work.rest[expert] = counts[expert]
        work.made[expert] = 0
    work.n[EDGES] = 0


@inlined
def open_domain(layer, work, domains, domain):
    """List the domain's ranks that have to give or may take, and what they may leave unused."""
    start, members = domains
    waste, n_live = 0, 0
    for i in range(start[domain], start[domain + 1]):
        rank = members[i]
        slack = work.slack[rank]
        if slack < 0 or (slack > 0 and layer.spare[rank] > 0):
            waste += slack
            work.live[n_live] = rank
            n_live += 1
    work.n[WASTE] = waste
    work.n[LIVE] = n_live


@piece
def leave_small(work, reserve):
    """Take the ranks with the least room from ``live``, each a group of its own that needs no clone, while
    ``reserve`` remains of what may stay unused."""
    while True:
        at, least = -1, work.n[WASTE] - reserve
        for i in range(work.n[LIVE]):
            if 0 <= work.slack[work.live[i]] <= least:
                at, least = i, work.slack[work.live[i]]
        if at < 0:
            return
        work.n[WASTE] -= least
        work.n[LIVE] -= 1
        for i in range(at, work.n[LIVE]):
            work.live[i] = work.live[i + 1]


@inlined
def fitting_expert(layer, work, home, tokens):
    """Among experts at ``home`` that may have one more clone: the one with the fewest tokens left that are
    ``tokens`` or more, else the one with the most; -1 if there is none."""
    best, most, best_rest, most_rest = -1, -1, MANY, 0
    for i in range(layer.expert_start[home], layer.expert_start[home + 1]):
        expert = layer.experts[i]
        rest = work.rest[expert]
        if rest < layer.least or work.made[expert] >= layer.cap:
            continue
        if rest >= tokens and work.n[STYLE] == FILLING:
            if rest < best_rest:
                best, best_rest = expert, rest
        elif rest > most_rest:
            most, most_rest = expert, rest
    return best if best >= 0 else most


@inlined
def send(work, expert, home, rank, tokens):
    """Clone ``expert`` to ``rank`` for that many of its tokens."""
    edge = work.n[EDGES]
    work.edge_expert[edge] = expert
    work.edge_home[edge] = home
    work.edge_rank[edge] = rank
    work.edge_tokens[edge] = tokens
    work.n[EDGES] = edge + 1
    work.rest[expert] -= tokens
    work.made[expert] += 1
    work.slack[home] += tokens
    work.slack[rank] -= tokens
    work.slots[rank] -= 1


@inlined
def undo(work, n_edges):
    """Take back all clones but the first ``n_edges``."""
    for edge in range(n_edges, work.n[EDGES]):
        expert, rank, tokens = work.edge_expert[edge], work.edge_rank[edge], work.edge_tokens[edge]
        work.rest[expert] += tokens
        work.made[expert] -= 1
        work.slack[work.edge_home[edge]] -= tokens
        work.slack[rank] += tokens
        work.slots[rank] += 1
    work.n[EDGES] = n_edges


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
