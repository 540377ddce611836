"""LPLB's ``Planner`` for code that calls its steps one by one: count, solve, select.

For ``run`` alone, ``evenload.moe.Planner`` is enough, with the same arguments. Different from LPLB: experts
may have any number of copies, all numbers are whole, no GPU is needed, and every answer has a proof.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload.moe.routing.planner import Planner as ExactPlanner
from evenload.moe.topology import check_mapping


class Planner(ExactPlanner):
    """An ``evenload.moe.Planner`` over a topology [ranks, columns], with LPLB's single steps."""

    def __init__(
        self,
        redundant_to_original: Any,
        n_routed_experts: int,
        n_logical_routed_experts: int,
        ep_size: int | None = None,
        group: Any = None,
        **options: Any,
    ):
        super().__init__(
            redundant_to_original, n_routed_experts, n_logical_routed_experts, ep_size, group, **options
        )
        # After the ranks have met: before, one that raised would leave the others waiting.
        self._n_columns = check_mapping(redundant_to_original).shape[1]

    def count_workload(self, idx: Any, n_sms: int = 0) -> tuple[Any, Any]:
        """Counts [experts] int32 of ``idx``, -1 ignored; and as [1, experts], where LPLB has each block's."""
        torch = require("torch", extra="moe", why="the Planner")
        flat = idx.reshape(-1).long()
        counts = torch.bincount(flat[flat >= 0], minlength=self.n_logical_routed_experts).to(torch.int32)
        return counts, counts[None]

    def solve_probs(self, workload: Any, avail_counter: Any = None) -> tuple[Any, Any]:
        """[groups, group size, columns] float32 shares that stay with the originals; and the summed counts.

        workload       [experts] counts of this rank, summed here over the group: every rank must call this
        avail_counter  one element, to which the number of solved groups is added: all of them, always

        The experts of a rank's column have their copies on one other rank. So one number for a column gives
        the same loads as one for each of them.
        """
        torch = require("torch", extra="moe", why="the Planner")
        counts = self._sum_over_ranks("solve_probs", workload)
        plan = self.run_with_stats(counts)
        if avail_counter is not None:
            avail_counter += self.n_group
        kept = torch.from_numpy(self._kept(plan.quotas, counts))
        return kept.to(workload.device), torch.from_numpy(counts).to(workload)

    def weighted_select_target(
        self, idx: Any, o_weight: Any, local_workload_by_sm: Any = None, n_sms: int = 0
    ) -> Any:
        """Slot of each id: the first ``o_weight`` share of an expert's ids stays, the rest go to its copy."""
        torch = require("torch", extra="moe", why="the Planner")
        home, copy, column = (torch.from_numpy(one).to(idx.device) for one in self._targets())
        flat = idx.reshape(-1).long()
        used = flat >= 0
        ids = flat[used]
        order = torch.argsort(ids, stable=True)
        counts = torch.bincount(ids, minlength=len(home))
        place = torch.empty_like(ids)
        place[order] = torch.arange(len(ids), device=ids.device) - (counts.cumsum(0) - counts)[ids[order]]
        share = torch.where(column >= 0, o_weight.reshape(-1)[column.clamp(min=0)].double(), 1.0)
        stays = place < torch.round(share * counts)[ids]
        out = torch.full_like(flat, -1)
        out[used] = torch.where(stays, home[ids], copy[ids])
        return out.to(idx.dtype).reshape(idx.shape)

    def _targets(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """[experts] each: slot of the original, of the copy (or again the original's), and column (or -1)."""
        slots = self.phy2log.numpy().reshape(self.ep_size, -1)
        n_experts = self.n_logical_routed_experts
        n_local = n_experts // self.ep_size
        rank, place = np.divmod(np.arange(n_experts), n_local)
        home, copy, column = (np.full(n_experts, -1, np.int64) for _ in range(3))
        home[slots[:, :n_local].reshape(-1)] = rank * slots.shape[1] + place
        copy[:] = home
        for j in range(n_local, slots.shape[1]):
            copy[slots[:, j]] = np.arange(self.ep_size) * slots.shape[1] + j
        is_copied = copy != home
        own_rank, own_place = np.divmod(home, slots.shape[1])
        column[is_copied] = (own_rank * self._n_columns + own_place % self._n_columns)[is_copied]
        return home, copy, column

    def _kept(self, quotas: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """[groups, group size, columns] share of a column's load that originals serve; half without load."""
        home, _, column = self._targets()
        is_copied = column >= 0
        n_numbers = self.ep_size * self._n_columns
        served = np.bincount(column[is_copied], quotas[home[is_copied]], minlength=n_numbers)
        total = np.bincount(column[is_copied], counts[is_copied], minlength=n_numbers)
        kept = np.divide(served, total, out=np.full(n_numbers, 0.5), where=total > 0)
        return kept.reshape(self.n_group, -1, self._n_columns).astype(np.float32)
