"""What ranks send to each other: at first what their planners were made from, then each batch's counts.

A rank that finds its own input bad still takes part and sends that as a status: if it raised before the
collective, the others would wait in it for ever.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload.errors import ConfigError

__all__ = ["Exchange"]

FINE, BAD_ID = 0, 1  # status of a rank's ids
N_HEAD = 2  # status and width, before the counts in a message


class Exchange:
    """One rank's end of a ``torch.distributed`` group that shares counts. Every method is a collective.

    device  where the group's backend wants its tensors: "cpu" for gloo
    """

    def __init__(self, group: Any, n_experts: int, device: str = "cpu"):
        torch = require("torch", extra="torch", why="routing over a process group")
        self._dist = require("torch.distributed", extra="torch", why="routing over a process group")
        self._torch = torch
        self._group = group
        self._device = device
        self.rank: int = self._dist.get_rank(group)
        self.n_ranks: int = self._dist.get_world_size(group)
        self.message = np.zeros(N_HEAD + n_experts, np.int64)
        self.counts = self.message[N_HEAD:]  # of this rank: fill before ``gather`` or ``add``
        self._all = np.zeros((self.n_ranks, N_HEAD + n_experts), np.int64)

    def agree(self, **facts: int) -> None:
        """Compare ``facts`` over the ranks. Raises ConfigError on every rank if one differs."""
        mine = self._torch.tensor(list(facts.values()), dtype=self._torch.int64, device=self._device)
        all_facts = [self._torch.empty_like(mine) for _ in range(self.n_ranks)]
        self._dist.all_gather(all_facts, mine, group=self._group)
        for name, values in zip(facts, self._torch.stack(all_facts).T.tolist(), strict=True):
            if len(set(values)) > 1:
                raise ConfigError(
                    f"ranks differ in {name}: {values}",
                    hint="build the planner from the same values on every rank",
                )

    def gather(self, status: int, width: int) -> NDArray[np.int64]:
        """[ranks, experts] counts of every rank. One all-gather.

        Raises ConfigError on every rank if a ``status`` is not FINE or widths differ.
        """
        self.message[:N_HEAD] = status, width
        mine = self._torch.from_numpy(self.message)
        if self._device == "cpu":
            rows = list(self._torch.from_numpy(self._all).unbind())
            self._dist.all_gather(rows, mine, group=self._group)
        else:
            rows = self._torch.empty(self._all.shape, dtype=mine.dtype, device=self._device)
            self._dist.all_gather_into_tensor(rows, mine.to(self._device), group=self._group)
            self._all[:] = rows.cpu().numpy()
        self._refuse(self._all[:, 0], self._all[:, 1][self._all[:, N_HEAD:].any(axis=1)])
        return self._all[:, N_HEAD:]

    def add(self, status: int, width: int) -> NDArray[np.int64]:
        """[experts] sum of all ranks' counts. One all-reduce; raises as ``gather``, naming no rank."""
        has_ids = bool(self.counts.any())
        head = [status, has_ids, has_ids * width, has_ids * width * width]
        total = self._torch.tensor(
            [*head, *self.counts.tolist()], dtype=self._torch.int64, device=self._device
        )
        self._dist.all_reduce(total, group=self._group)
        (n_bad, n, width_sum, squares), totals = total[:4].tolist(), total[4:].cpu().numpy()
        if n_bad:
            raise ConfigError(f"{n_bad} of {self.n_ranks} ranks have an expert id out of range")
        if n * squares != width_sum * width_sum:  # equal only if all are
            raise ConfigError("ranks have ids of different widths", hint="use the same top-k on every rank")
        return totals

    def rows(self, own: Any, *, sums: bool) -> Any:
        """[ranks, experts] every rank's ``own`` [experts], or [1, experts] their sum; on its device."""
        if sums:
            total = own.clone()
            self._dist.all_reduce(total, group=self._group)
            return total[None]
        rows = self._torch.empty((self.n_ranks, len(own)), dtype=own.dtype, device=own.device)
        if own.is_cuda:
            self._dist.all_gather_into_tensor(rows, own, group=self._group)
        else:
            self._dist.all_gather(list(rows.unbind()), own, group=self._group)
        return rows

    def _refuse(self, statuses: NDArray[np.int64], widths: NDArray[np.int64]) -> None:
        if statuses.any():
            wrong = np.flatnonzero(statuses).tolist()
            raise ConfigError(f"ranks {wrong} have an expert id out of range", hint="see the error there")
        if len(widths) and (widths != widths[0]).any():
            raise ConfigError(
                f"ranks have ids of different widths: {sorted(set(widths.tolist()))}",
                hint="use the same top-k on every rank",
            )
