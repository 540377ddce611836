"""How few fetches a plan of clones can have, and how little time it can take.

Clones connect ranks. Ranks that are connected share their load among themselves, so they have room enough
together; and g connected ranks have g - 1 clones or more. Hence no plan has fewer fetches than there are
ranks less groups, for the most groups with room enough that ranks can be put into.

Where the peak leaves much room, another bound is higher. A group's clones could as well go from its ranks
above the peak to those below it alone, for the corner rule gives such a plan with as few. A clone from one
with an excess e to one with room s takes at most min(e, s) tokens, and so counts as its tokens over
min(e, s) or more. The least sum of these over all ways to move the excess is a transport problem whose costs
are Monge: moving the largest excess into the largest room, one after the other, solves it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import number, places, whole
from evenload.errors import ConfigError
from evenload.moe.cloning.load_certificate import CloneLayer, needed_clones
from evenload.native.kernel import compiled


@dataclass(frozen=True, slots=True)
class FetchCosts:
    """A rank's seconds for a token, and those for a fetch of an expert's weights.

    token_s           seconds that a rank works for one token of one expert in this layer, forward (and
                      backward, if
                      it trains)
    expert_bytes      weights of one expert in one layer (with its gradient on the way back, if it trains)
    bytes_per_s       of a rank's link, each way
    node_bytes_per_s  of a rank's link to ranks of other nodes; by default ``bytes_per_s``
    nodes             the node of each rank; by default all are on one
    hidden_s          seconds of other work that fetches run beside, such as attention

    A batch takes ``token_s`` x the busiest rank's tokens, and what the busiest link needs beyond
    ``hidden_s``. Raises ConfigError for a number below 0 or not finite, and a speed of 0.
    """

    token_s: float
    expert_bytes: float
    bytes_per_s: float
    node_bytes_per_s: float | None = None
    nodes: tuple[int, ...] | None = None
    hidden_s: float = 0.0

    def __post_init__(self) -> None:
        number("token_s", self.token_s, is_zero_allowed=False)
        number("expert_bytes", self.expert_bytes)
        number("hidden_s", self.hidden_s)
        number("bytes_per_s", self.bytes_per_s, is_zero_allowed=False)
        if self.node_bytes_per_s is not None:
            number("node_bytes_per_s", self.node_bytes_per_s, is_zero_allowed=False)
        if self.nodes is not None:
            object.__setattr__(self, "nodes", tuple(places("nodes", self.nodes).ravel().tolist()))
        if not np.isfinite(self.table()).all():
            raise ConfigError(
                f"a fetch takes {self.expert_bytes / self.bytes_per_s} s",
                hint="check the units: bytes, bytes / s",
            )

    def table(self) -> NDArray[np.float64]:
        """[4] seconds of a token, of a fetch inside a node, of one between nodes, and those hidden."""
        far = self.bytes_per_s if self.node_bytes_per_s is None else self.node_bytes_per_s
        return np.array(
            [self.token_s, self.expert_bytes / self.bytes_per_s, self.expert_bytes / far, self.hidden_s],
            np.float64,
        )

    def nodes_of(self, n_ranks: int) -> NDArray[np.int64]:
        """[ranks] int64. Raises ConfigError if ``nodes`` has another length."""
        if self.nodes is None:
            return np.zeros(n_ranks, np.int64)
        if len(self.nodes) != whole("n_ranks", n_ranks):
            raise ConfigError(
                f"nodes of {len(self.nodes)} ranks", hint=f"give one for each of {n_ranks} ranks"
            )
        return np.array(self.nodes, np.int64)


NEVER = 1 << 61
MOST_TABLE = 1 << 18  # sums of two pairs and a rank that are looked at
MOST_PAIRED = 512  # ranks whose pairs are looked at
TURNS = 8  # pairs that are passed over because they share ranks


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


def least_fetches(counts: NDArray[np.int64], layer: CloneLayer, peak: int) -> int:
    """A number of fetches that no plan with this peak or a lower one is below."""
    if layer.n_domains > 1:
        return sum(least_fetches(of, part, peak) for part, of in layer.parts(counts))
    slack = peak - np.bincount(layer.homes, counts, layer.n_ranks).astype(np.int64)
    if (slack >= 0).all():
        return 0
    slack[layer.spare == 0] = np.minimum(slack[layer.spare == 0], 0)  # no use to others
    by_ranks = layer.n_ranks - most_groups_bound(slack)
    excess, room = np.sort(-slack[slack < 0])[::-1], np.sort(slack[slack > 0])[::-1]
    return max(sum(needed_clones(counts, layer, peak)), by_ranks, _most_moved(excess, room))


def _most_moved(excess: NDArray[np.int64], room: NDArray[np.int64]) -> int:
    """At least so many clones move all of ``excess`` into ``room``, both in descending order."""
    into = np.cumsum(room)
    alone = int((np.searchsorted(into, excess) + 1).sum())  # each rank into the largest rooms of all
    clones, at, left = 0.0, 0, int(room[0])
    for need in excess.tolist():
        rest = need
        while rest:
            if not left:
                at, left = at + 1, int(room[at + 1])
            tokens = min(rest, left)
            clones, rest, left = clones + tokens / min(need, int(room[at])), rest - tokens, left - tokens
    return max(alone, math.ceil(clones - 1e-6))


def most_groups_bound(slack: NDArray[np.int64]) -> int:
    """At least as many as the most groups that ranks can be put into, each with slacks of 0 or more together.

    slack  [ranks] int64, tokens below the peak; 0 or more together
    """
    even = slack == 0
    slack, n_even = np.sort(slack[~even]), int(even.sum())
    if len(slack) <= MOST_EXACT:
        size = 1 << len(slack)
        return n_even + most_groups(slack, np.zeros(size, np.int64), np.zeros(size, np.int8))
    wastes = _least_wastes(slack)
    return n_even + min(_by_sizes(slack, wastes), _by_budget(slack, wastes))


def _by_sizes(slack: NDArray[np.int64], wastes: list[NDArray[np.int64]]) -> int:
    """Each rank counts as one over the size of the smallest group that it can be in."""
    budget = int(slack.sum())
    size = np.full(len(slack), len(wastes) + 1)
    for i in range(len(wastes) - 1, -1, -1):
        size[wastes[i] <= budget] = i + 1
    n_of_size = np.bincount(size)
    whole = np.lcm.reduce(np.arange(1, len(n_of_size)))
    return int(sum(int(n) * whole // k for k, n in enumerate(n_of_size) if k) // whole)


def _by_budget(slack: NDArray[np.int64], wastes: list[NDArray[np.int64]]) -> int:
    """Groups waste what the peak leaves, at most; all but those of one rank have a rank above the peak."""
    budget, is_over = int(slack.sum()), slack < 0
    alone = np.concatenate([[0], np.cumsum(slack[~is_over])])
    spent = [np.concatenate([[0], np.cumsum(np.sort(waste[is_over]))]) for waste in wastes[1:]]
    best = 0
    for n_alone, cost in enumerate(alone.tolist()):
        if cost > budget:
            break
        ranks, groups, most = len(slack) - n_alone, 0, int(is_over.sum())
        for i in range(len(spent)):
            affordable = int(np.searchsorted(spent[i], budget - cost, side="right")) - 1
            more = max(min(affordable - groups, ranks // (i + 2), most - groups), 0)
            groups, ranks = groups + more, ranks - (i + 2) * more
        groups += min(ranks // (len(wastes) + 1), most - groups)
        best = max(best, n_alone + groups)
    return best


class _PairSums:
    """The sums of all pairs of slacks, in order."""

    def __init__(self, slack: NDArray[np.int64]):
        a, b = np.triu_indices(len(slack), 1)
        order = np.argsort(slack[a] + slack[b], kind="stable")
        self.a, self.b = a[order], b[order]
        self.sums = slack[self.a] + slack[self.b]

    def least_waste(self, of: NDArray[np.int64], *places: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each sum ``of`` ranks in ``places``, with the first pair of other ranks that makes it 0 or
        more."""
        at, waste = np.searchsorted(self.sums, -of), np.full(len(of), NEVER)
        left = np.arange(len(of))
        for turn in range(TURNS):
            left = left[at[left] < len(self.sums)]
            pair = at[left]
            shares = np.zeros(len(left), bool)
            for place in places:
                shares |= (self.a[pair] == place[left]) | (self.b[pair] == place[left])
            done = left if turn == TURNS - 1 else left[~shares]  # too little waste does the bound no harm
            waste[done] = of[done] + self.sums[at[done]]
            left = left[shares]
            at[left] += 1
        return waste


def _least_wastes(slack: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """[sizes][ranks] the least waste of a group of at most 1, 2, ... ranks that a rank is in; or less.

    Sizes end where there would be too many sums.
    """
    n, ranks = len(slack), np.arange(len(slack))
    wastes = [np.where(slack >= 0, slack, NEVER)]
    if n > MOST_PAIRED:
        return wastes

    def add(waste: NDArray[np.int64], *places: NDArray[np.int64]) -> None:
        found = wastes[-1].copy()
        for place in places:
            np.minimum.at(found, place, waste)
        wastes.append(found)

    pairs = _PairSums(slack)
    a, b, sums = pairs.a, pairs.b, pairs.sums
    add(np.where(sums >= 0, sums, NEVER), a, b)
    add(pairs.least_waste(slack, ranks), ranks)
    add(pairs.least_waste(sums, a, b), a, b)
    if n * len(sums) <= MOST_TABLE:
        pair, rank = np.repeat(np.arange(len(sums)), n), np.tile(ranks, len(sums))
        apart = (a[pair] != rank) & (b[pair] != rank)
        pair, rank = pair[apart], rank[apart]
        five = pairs.least_waste(sums[pair] + slack[rank], a[pair], b[pair], rank)
        add(five, a[pair], b[pair], rank)
    return wastes


def least_seconds(counts: NDArray[np.int64], layer: CloneLayer, least_peak: int, costs: FetchCosts) -> float:
    """Seconds that no plan is below: for each number of clones the lowest peak that it allows.

    A rank sends its clones one after the other, over its fastest link; all links together share them.
    """
    if layer.n_domains > 1:
        return max(least_seconds(of, part, least_peak, costs) for part, of in layer.parts(counts))
    token_s, near_s, far_s, hidden_s = costs.table().tolist()
    clone_s = min(near_s, far_s)
    loads = np.bincount(layer.homes, counts, layer.n_ranks).astype(np.int64)
    high, best = int(loads.max(initial=0)), float("inf")
    low = min(least_peak, high)

    def busiest(peak: int) -> int:
        needed = needed_clones(counts, layer, peak)
        return max(*needed, -(-sum(needed) // layer.n_ranks))

    while True:  # fewer clones with each step, at the lowest peak for which these are enough
        link = busiest(low)
        best = min(best, low * token_s + max(link * clone_s - hidden_s, 0.0))
        if link == 0:
            return best
        low += 1 + bisect_left(range(low + 1, high), True, key=lambda peak: busiest(peak) < link)
