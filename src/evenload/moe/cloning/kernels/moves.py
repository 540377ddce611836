"""Pieces of the clone planner: its state, and tokens that move from their home to a clone on another rank."""

from collections import namedtuple

from evenload.native.kernel import inlined, piece

EDGES, OVER, UNDER, WASTE, LIVE, STYLE = range(6)  # places in Work.n
FILLING, LARGEST_FIRST = range(2)  # styles: see chain.py
MANY = 1 << 62

# What stays from batch to batch: expert_start [ranks + 1] and experts [experts] by home, spare [ranks] slots,
# cap: most clones of an expert, least: tokens that a clone takes at least.
Layer = namedtuple("Layer", "n_ranks expert_start experts spare cap least")

# load [ranks] homed there; slack [ranks]: tokens below the target (above, if negative); slots [ranks]: spare
# ones left; rest [experts]: tokens still at home; made [experts]: clones; edge_* [clones]: expert, home, rank
# and tokens of each; over, under: keys of ranks above and below the target (keys.py); live: ranks in no group
# yet; group: the ranks of one; is_open: places in live (pairs.py); seen, newest, sums, after: of
# sums.py; n: clones made,
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
