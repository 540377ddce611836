"""``CloneLayer``, where experts are at home, and sums that prove how low its busiest rank's load can be."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import instance_of
from evenload.moe.routing.dispatch import whole_counts

# (given, most) for counts, layer, its ranks' loads and a peak, which they refuse if given is more.
Sums = Callable[[NDArray[np.int64], "CloneLayer", NDArray[np.int64], int], tuple[int, int]]


class CloneLayer:
    """The homes of one layer's experts, the slots for clones beside them, and what a plan may do with them.

    homes         [experts] int64 rank of each expert
    spare         [ranks] int64 slots of each rank for clones
    cap           the most clones of one expert
    least_tokens  that a clone takes
    domains       [ranks] int64: clones of an expert are on ranks of its home's domain
    millionths    of the lowest peak, that a peak may be above it

    ``expert_start`` [ranks + 1] and ``experts`` [experts] list each rank's experts, ``domain_start`` and
    ``members`` [ranks] each domain's ranks. Rank r's slots are r * width up to (r + 1) * width - 1: those of
    its own experts first, in order of ids, then the spare ones.
    """

    def __init__(
        self,
        homes: NDArray[np.int64],
        spare: NDArray[np.int64],
        cap: int,
        least_tokens: int = 1,
        domains: NDArray[np.int64] | None = None,
        millionths: int = 0,
    ):
        self.homes, self.spare, self.cap = homes, spare, cap
        self.least_tokens, self.millionths = least_tokens, millionths
        self.domains = np.zeros(len(spare), np.int64) if domains is None else domains
        self.members = np.argsort(self.domains, kind="stable").astype(np.int64)
        of_members = self.domains[self.members]
        self.domain_start = np.flatnonzero(np.diff(of_members, prepend=-1, append=-1)).astype(np.int64)
        self.n_domains = len(self.domain_start) - 1
        self.n_experts, self.n_ranks = len(homes), len(spare)
        self.experts = np.argsort(homes, kind="stable").astype(np.int64)
        self.expert_start = np.searchsorted(homes[self.experts], np.arange(self.n_ranks + 1)).astype(np.int64)
        self.n_home = np.diff(self.expert_start)
        self.width = int((self.n_home + spare).max())
        self.home_slot = np.empty(self.n_experts, np.int64)
        place = np.arange(self.n_experts) - np.repeat(self.expert_start[:-1], self.n_home)
        self.home_slot[self.experts] = homes[self.experts] * self.width + place
        self.n_slots = self.n_ranks * self.width

    def part(self, domain: int, counts: NDArray[np.int64]) -> tuple["CloneLayer", NDArray[np.int64]]:
        """A domain as a layer of its own, and the counts of its experts; ranks and experts are numbered anew,
        in their order."""
        if self.n_domains == 1:
            return self, counts
        number = np.full(self.n_ranks, -1)
        ranks = self.members[self.domain_start[domain] : self.domain_start[domain + 1]]
        number[ranks] = np.arange(len(ranks))
        experts = np.flatnonzero(number[self.homes] >= 0)
        return CloneLayer(number[self.homes[experts]], self.spare[ranks], self.cap), counts[experts]

    def parts(self, counts: NDArray[np.int64]) -> Iterator[tuple["CloneLayer", NDArray[np.int64]]]:
        """All domains, which do not depend on each other."""
        return (self.part(domain, counts) for domain in range(self.n_domains))


@dataclass(frozen=True, slots=True)
class LoadCertificate:
    """A proof that no plan of clones has a peak below ``peak``: a sum, and what it would have to be at most.

    With a peak of one token less, ``given`` would exceed ``most``, on the ranks of ``domain``; ranks and
    experts are numbered within it (``CloneLayer.part``). ``reason`` says what these are:

    "mean"    the load of ``ranks``; what they may have together. Ranks without spare slots that are not among
              them get no tokens from elsewhere
    "cap"     the tokens of the experts in ``experts``, one; what as many ranks may have as it may be on
    "room"    all tokens; what ranks may have together, each no more than its load and the largest experts of
              others that fit into its spare slots
    "slots"   the clones that ranks above the peak need to be rid of what they have too much; all spare slots
    """

    reason: str
    peak: int
    given: int
    most: int
    ranks: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    domain: int = 0

    def proves(self, counts: ArrayLike, layer: CloneLayer) -> bool:
        """Whether the sums, made anew, are these, and show that one token less is too little.

        counts  [experts] of the plan, or anybody's

        Raises ConfigError if these are not whole numbers of each expert.
        """
        instance_of("layer", layer, CloneLayer, "the plan's layer")
        counts = whole_counts("counts", counts, (layer.n_experts,))
        if self.domain not in range(layer.n_domains):
            return False
        layer, counts = layer.part(self.domain, counts)
        loads = np.bincount(layer.homes, counts, layer.n_ranks).astype(np.int64)
        less = self.peak - 1
        if self.reason == "mean":
            named = np.isin(np.arange(layer.n_ranks), self.ranks)  # each once, however often it is named
            sums = (int(loads[named].sum()), less * int(named.sum()))
            if layer.spare[~named].any():
                return False
        elif self.reason == "cap":
            if len(self.experts) != 1 or self.experts[0] not in range(layer.n_experts):
                return False
            sums = (int(counts[self.experts[0]]), less * (layer.cap + 1))
        elif self.reason in SLOT_SUMS:
            sums = SLOT_SUMS[self.reason](counts, layer, loads, less)
        else:
            return False
        return sums == (self.given, self.most) and self.given > self.most


def load_certificate(counts: NDArray[np.int64], layer: CloneLayer) -> LoadCertificate:
    """The proof with the highest peak."""
    if layer.n_domains > 1:
        parts = enumerate(layer.parts(counts))
        proofs = [replace(load_certificate(of, part), domain=i) for i, (part, of) in parts if len(of)]
        return max(proofs, key=lambda proof: proof.peak)
    loads = np.bincount(layer.homes, counts, layer.n_ranks).astype(np.int64)
    best = _mean(layer, loads)
    hottest = int(counts.argmax())
    peak = -(-int(counts[hottest]) // (layer.cap + 1))
    if peak > best.peak:
        best = LoadCertificate(
            "cap", peak, int(counts[hottest]), (peak - 1) * (layer.cap + 1), experts=(hottest,)
        )
    for reason, sums in SLOT_SUMS.items():

        def allows(peak: int, sums: Sums = sums) -> bool:
            given, most = sums(counts, layer, loads, peak)
            return given <= most

        peak = best.peak + bisect_left(range(best.peak, int(loads.max())), True, key=allows)
        if peak > best.peak:
            best = LoadCertificate(reason, peak, *sums(counts, layer, loads, peak - 1))
    return best


def _mean(layer: CloneLayer, loads: NDArray[np.int64]) -> LoadCertificate:
    peak, best = 0, np.ones(len(loads), bool)
    while True:
        inside = (layer.spare > 0) | (loads > peak)
        given, n = int(loads[inside].sum()), int(inside.sum())
        if given <= peak * n:
            break
        peak = -(-given // n)
        best = inside
    if not peak:
        return LoadCertificate("mean", 0, 0, -len(loads), tuple(range(len(loads))))
    return LoadCertificate(
        "mean",
        peak,
        int(loads[best].sum()),
        (peak - 1) * int(best.sum()),
        tuple(np.flatnonzero(best).tolist()),
    )


def _room(
    counts: NDArray[np.int64], layer: CloneLayer, loads: NDArray[np.int64], peak: int
) -> tuple[int, int]:
    """All tokens, and what ranks may have together without exceeding the peak."""
    order, may_have = np.argsort(-counts, kind="stable"), 0
    for rank in range(layer.n_ranks):
        foreign = order[layer.homes[order] != rank][: layer.spare[rank]]
        may_have += min(peak, int(loads[rank] + counts[foreign].sum()))
    return int(counts.sum()), may_have


def _slots(
    counts: NDArray[np.int64], layer: CloneLayer, loads: NDArray[np.int64], peak: int
) -> tuple[int, int]:
    """The clones that ranks need to come down to the peak, and all spare slots."""
    return sum(needed_clones(counts, layer, peak)), int(layer.spare.sum())


def needed_clones(counts: NDArray[np.int64], layer: CloneLayer, peak: int) -> list[int]:
    """[ranks] the fewest clones with which each rank's load comes down to ``peak``.

    A clone takes no more than its expert has, and no more than the peak. A rank whose load cannot come down
    (a peak of 0) needs one clone more than there are slots.
    """
    needed = []
    for rank in range(layer.n_ranks):
        mine = counts[layer.experts[layer.expert_start[rank] : layer.expert_start[rank + 1]]]
        excess = int(mine.sum()) - peak
        if excess <= 0:
            needed.append(0)
        elif peak <= 0:
            needed.append(int(layer.spare.sum()) + 1)
        else:
            whole_clones = int((mine // peak).sum())
            parts = np.sort(mine % peak)[::-1]
            if excess <= whole_clones * peak:
                needed.append(-(-excess // peak))
            else:
                rest = excess - whole_clones * peak
                needed.append(whole_clones + int(np.searchsorted(np.cumsum(parts), rest)) + 1)
    return needed


SLOT_SUMS: dict[str, Sums] = {"room": _room, "slots": _slots}
