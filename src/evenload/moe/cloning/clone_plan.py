"""``ClonePlan``: one batch's clones, their tokens, what sends ids there, and how near to the best it is."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.errors import ConfigError
from evenload.moe.cloning.fetch_bound import FetchCosts, least_fetches, least_seconds
from evenload.moe.cloning.load_certificate import CloneLayer, LoadCertificate, load_certificate
from evenload.moe.routing.dispatch import SlotDispatch


class CloneDispatch(SlotDispatch):
    """The slots of a clone plan, how many tokens each takes, and what sends ids there.

    phy2log  [slots] int64: the expert in each slot, -1 for none; slot s is on rank ``s // layer.width``
    quotas   [slots] int64: the tokens that go there
    """

    def __init__(self, plan: "ClonePlan"):
        layer, order = plan.layer, np.argsort(plan.ranks, kind="stable")
        by_rank = plan.ranks[order]
        place = np.arange(len(order)) - np.searchsorted(by_rank, by_rank)
        slot = by_rank * layer.width + layer.n_home[by_rank] + place
        self.phy2log = np.full(layer.n_slots, -1, np.int64)
        self.quotas = np.zeros(layer.n_slots, np.int64)
        self.phy2log[layer.home_slot] = np.arange(layer.n_experts)
        self.quotas[layer.home_slot] = plan.totals
        self.phy2log[slot], self.quotas[slot] = plan.experts[order], plan.tokens[order]
        np.subtract.at(self.quotas, layer.home_slot[plan.experts], plan.tokens)
        used = np.flatnonzero(self.phy2log >= 0)
        self.slots = used[np.argsort(self.phy2log[used], kind="stable")].astype(np.int32)
        copies = np.bincount(self.phy2log[used], minlength=layer.n_experts)
        self.slot_start = np.concatenate([[0], np.cumsum(copies)]).astype(np.int32)
        self.slot2gpu = (np.arange(layer.n_slots) // layer.width).astype(np.int32)
        self.rank2gpu = np.arange(layer.n_ranks, dtype=np.int32)
        nodes = None if plan.costs is None else plan.costs.nodes
        self.gpu2node = np.full(layer.n_ranks, -1, np.int32) if nodes is None else np.array(nodes, np.int32)

    def shares(self, counts: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
        """``exact_shares`` of the quotas, for the ``counts`` [ranks, experts] that the plan was made from."""
        return self.exact_shares(self.quotas, counts, rank)


@dataclass(frozen=True, eq=False)
class ClonePlan:
    """A batch's clones of experts, and how many tokens each takes; made by ``Cloner.plan``.

    experts, ranks, tokens  [clones] int64: this expert is fetched to a spare slot of this rank, for so many
                            tokens. No rank gets an expert twice
    loads                   [ranks] int64 tokens of each rank
    peak                    the largest of them
    totals                  [experts] int64, the counts that the plan was made for
    layer                   homes and slots
    """

    layer: CloneLayer
    totals: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    experts: NDArray[np.int64]
    ranks: NDArray[np.int64]
    tokens: NDArray[np.int64]
    loads: NDArray[np.int64]
    peak: int
    first_bound: int
    costs: FetchCosts | None

    @property
    def fetches(self) -> int:
        """How many experts' weights are fetched: as many as there are clones."""
        return len(self.experts)

    @property
    def imbalance(self) -> float:
        """Largest load over mean load."""
        total = int(self.loads.sum())
        return self.peak * len(self.loads) / total if total else 1.0

    @cached_property
    def peak_bound(self) -> int:
        """A peak that no plan for these counts is below: whole tokens, homes, slots and ``cap`` as given."""
        return self.first_bound if self.peak == self.first_bound else self.certificate().peak

    @cached_property
    def fetch_bound(self) -> int:
        """A number of fetches that no plan of this peak, one within the tolerance of ``peak_bound`` or a
        lower one has fewer of."""
        within = self.peak_bound + self.peak_bound * self.layer.millionths // 1_000_000
        return min(least_fetches(self.totals, self.layer, max(self.peak, within)), self.fetches)

    @property
    def fetch_gap(self) -> float:
        """How many more fetches there are than ``fetch_bound``, as a share of it (or of 1); 0 is best."""
        return (self.fetches - self.fetch_bound) / max(self.fetch_bound, 1)

    def certificate(self) -> LoadCertificate:
        """The proof, in sums that anyone can check, that no plan has a peak below ``peak_bound``."""
        return load_certificate(self.totals, self.layer)

    @property
    def seconds(self) -> float:
        """What the batch takes by ``costs``: the busiest rank's work, and what of the fetches nothing hides.

        Raises ConfigError without costs.
        """
        if self.costs is None:
            raise ConfigError("this plan knows no costs", hint="give costs=FetchCosts(...)")
        token_s, near_s, far_s, hidden_s = self.costs.table().tolist()
        nodes = self.costs.nodes_of(self.layer.n_ranks)
        homes = self.layer.homes[self.experts]
        clone_s = np.where(nodes[homes] == nodes[self.ranks], near_s, far_s)
        n = self.layer.n_ranks
        link_s = max(
            np.bincount(ends, clone_s, n).max() if len(ends) else 0.0 for ends in (homes, self.ranks)
        )
        return self.peak * token_s + max(float(link_s) - hidden_s, 0.0)

    @cached_property
    def seconds_bound(self) -> float:
        """Seconds that no plan for these counts and costs is below. Raises ConfigError without costs."""
        if self.costs is None:
            raise ConfigError("this plan knows no costs", hint="give costs=FetchCosts(...)")
        return min(least_seconds(self.totals, self.layer, self.first_bound, self.costs), self.seconds)

    @cached_property
    def dispatch(self) -> CloneDispatch:
        """The slots and quotas of this plan, and what sends ids there."""
        return CloneDispatch(self)

    def map(self, ids: Any, rank: int | None = None, *, mask: Any = None) -> Any:
        """The slot of each expert id of ``rank``, such that all ranks together fill the quotas; -1 stays -1.

        ids   of this batch: all of them, or those of ``rank`` if the plan was made from [ranks, experts]
              counts
        mask  truth values of the ids' shape, or [tokens]: False for padding, which was not counted and
              becomes -1

        Slot s is on rank ``s // layer.width``. Raises ConfigError for ids out of range, or not those counted.
        """
        if rank is None:
            return self.dispatch.map(ids, self.dispatch.quotas, mask=mask)
        if self.counts is None:
            raise ConfigError(
                f"rank {rank} of a plan that was made from sums over ranks",
                hint="plan from [ranks, experts] counts, or map all ids without a rank",
            )
        return self.dispatch.map(ids, self.dispatch.shares(self.counts, rank), mask=mask)
