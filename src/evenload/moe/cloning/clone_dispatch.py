"""``CloneDispatch``: ids go to their expert's home and clones by exact intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import whole
from evenload.errors import ConfigError
from evenload.moe.cloning.clone_layer import CloneLayer
from evenload.moe.routing.dispatch import bad_id, check_is_whole, flat_ids, like, whole_counts
from evenload.moe.routing.dispatch_kernels import map_ids, share_exactly
from evenload.moe.routing.padding import without_padding

__all__ = ["CloneDispatch"]


class CloneDispatch:
    """The slots of a clone plan, how many tokens each takes, and what sends ids there.

    phy2log  [slots] int64: the expert in each slot, -1 for none; slot s is on rank ``s // layer.width``
    quotas   [slots] int64: the tokens that go there
    """

    def __init__(
        self,
        layer: CloneLayer,
        totals: NDArray[np.int64],
        experts: NDArray[np.int64],
        ranks: NDArray[np.int64],
        tokens: NDArray[np.int64],
        nodes: Sequence[int] | None = None,
    ):
        order = np.argsort(ranks, kind="stable")
        by_rank = ranks[order]
        place = np.arange(len(order)) - np.searchsorted(by_rank, by_rank)
        slot = by_rank * layer.width + layer.n_home[by_rank] + place
        self.phy2log = np.full(layer.n_slots, -1, np.int64)
        self.quotas = np.zeros(layer.n_slots, np.int64)
        self.phy2log[layer.home_slot] = np.arange(layer.n_experts)
        self.quotas[layer.home_slot] = totals
        self.phy2log[slot], self.quotas[slot] = experts[order], tokens[order]
        np.subtract.at(self.quotas, layer.home_slot[experts], tokens)
        used = np.flatnonzero(self.phy2log >= 0)
        by_expert = np.argsort(self.phy2log[used], kind="stable")
        self._slots = used[by_expert].astype(np.int32)
        copies = np.bincount(self.phy2log[used], minlength=layer.n_experts)
        self._start = np.concatenate([[0], np.cumsum(copies)]).astype(np.int32)
        self._slot2rank = (np.arange(layer.n_slots) // layer.width).astype(np.int32)
        self._ranks = np.arange(layer.n_ranks, dtype=np.int32)
        self._nodes = np.full(layer.n_ranks, -1, np.int32) if nodes is None else np.array(nodes, np.int32)
        self._totals, self._n_experts = totals, layer.n_experts

    def shares(self, counts: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
        """[slots] int64: how many of ``rank``'s ids go to each slot; all ranks' shares sum to ``quotas``.

        counts  [ranks, experts] int64, of every rank

        A rank's ids go to its own slots first, then to its node's, then anywhere. Raises ConfigError for
        counts that the plan was not made for.
        """
        given = whole_counts("counts", counts, (len(self._ranks), self._n_experts))
        if not np.array_equal(given.sum(axis=0), self._totals):
            raise ConfigError(
                "these are not the counts of the plan", hint="plan each batch from its own counts"
            )
        if whole("rank", rank) >= len(self._ranks):
            raise ConfigError(f"rank {rank} of {len(self._ranks)}", hint=f"use 0 to {len(self._ranks) - 1}")
        shares = np.zeros(len(self.quotas), np.int64)
        supply, room = np.zeros(len(self._ranks), np.int64), np.zeros(len(self._slots), np.int64)
        share_exactly(
            self._start, self._slots, self._slot2rank, self.quotas, given,
            int(rank), self._ranks, self._nodes, supply, room, shares,
        )  # fmt: skip
        return shares

    def map(self, ids: Any, shares: NDArray[np.int64], *, mask: Any = None) -> Any:
        """The slot of each id, -1 for -1, in the shape and kind of ``ids``: an array or CPU tensor of
        integers.

        mask    truth values of the ids' shape, or [tokens]: False for padding, which becomes -1
        shares  [slots] int64 of these ids. Raises ConfigError for ids out of range, or not those of the
                shares.
        """
        flat = flat_ids(without_padding(ids, mask))
        shares = whole_counts("shares", shares, (len(self.quotas),))
        out = np.empty_like(flat)
        at, left = np.zeros(self._n_experts, np.int32), np.zeros(self._n_experts, np.int64)
        bad = map_ids(flat, self._start, self._slots, shares, at, left, out)
        if bad > 0:
            raise bad_id(flat[bad - 1], self._n_experts)
        check_is_whole(out, shares, bad < 0)
        return like(ids, out)
