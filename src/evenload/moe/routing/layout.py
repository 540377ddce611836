"""``Layout``: a planner's pattern of copies, from a topology of ranks or any map of slots to experts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import array_of
from evenload.balance.flow import ReplicaGraph
from evenload.errors import ConfigError
from evenload.moe.topology import check_mapping, lay_out


class Layout:
    """A pattern of copies over slots, which stays while experts change places in it.

    redundant_to_original  [ranks of a group, columns] as in ``topology``, or [n_slots]: the expert in each
                           slot of a placement of any shape, -1 for an empty slot
    Raises ConfigError if experts, slots and ranks do not fit together.
    """

    def __init__(
        self, redundant_to_original: Any, n_slots: int, n_experts: int, n_ranks: int | None, n_nodes: int
    ):
        pattern = array_of("redundant_to_original", redundant_to_original)
        if pattern.dtype.kind not in "iu":
            raise ConfigError(
                f"redundant_to_original has dtype {pattern.dtype}",
                hint="give whole numbers, in rows of one length",
            )
        self.n_slots, self.n_experts, self.n_nodes = n_slots, n_experts, n_nodes
        self._topology: NDArray[np.int32] | None = None
        if pattern.ndim == 2:
            self._topology = check_mapping(pattern)
            self.n_ranks = n_ranks or len(self._topology)
            self.n_groups = max(1, self.n_ranks // len(self._topology))
            self._slots = self.experts(None)
        elif pattern.shape == (n_slots,):
            if n_ranks is None:
                raise ConfigError(
                    "a placement does not say how many ranks there are", hint="give ep_size or a group"
                )
            self.n_ranks, self.n_groups = n_ranks, 1
            self._slots = pattern.astype(np.int64)
        else:
            raise ConfigError(
                f"redundant_to_original has shape {pattern.shape}",
                hint=f"use create_redundant_mapping, or give the expert in each of {n_slots} slots",
            )
        ReplicaGraph.from_slots(self._slots, n_experts, self.n_ranks)  # refuses what cannot be

    def experts(self, load: NDArray[np.float64] | None) -> NDArray[np.int64]:
        """``phy2log`` [n_slots]: experts placed by load [experts], or in order of ids without one."""
        if self._topology is None:
            return self._slots if load is None else self._relabel(load)
        if load is None:
            return self._in_order()
        return lay_out(self._topology, load[None], self.n_slots, ep_size=self.n_ranks, n_nodes=self.n_nodes)[
            0
        ]

    def _in_order(self) -> NDArray[np.int64]:
        matrix = self._topology
        assert matrix is not None
        n_local, n_copies = self.n_experts // self.n_ranks, (self.n_slots - self.n_experts) // self.n_ranks
        # Lets ``lay_out`` refuse what does not fit, with its own words.
        lay_out(
            matrix, np.ones((1, self.n_experts)), self.n_slots, ep_size=self.n_ranks, n_nodes=self.n_nodes
        )
        base = np.arange(self.n_experts).reshape(-1, len(matrix), n_local)
        columns = np.tile(np.arange(matrix.shape[1]), n_copies // matrix.shape[1])
        places = np.arange(n_copies)
        copies = base[:, matrix[:, columns], places[None]]
        return np.concatenate([base, copies], axis=2).reshape(-1)

    def _relabel(self, load: NDArray[np.float64]) -> NDArray[np.int64]:
        """Assign experts to places, heaviest first: to most copies, then to the least loaded GPUs."""
        used = self._slots >= 0
        n_copies = np.bincount(self._slots[used], minlength=self.n_experts)
        width = self.n_slots // self.n_ranks
        serves = np.zeros((self.n_experts, self.n_ranks))
        np.add.at(serves, (self._slots[used], np.flatnonzero(used) // width), 1)
        on_gpu = np.zeros(self.n_ranks)
        open_roles = np.ones(self.n_experts, bool)
        expert_of = np.empty(self.n_experts, np.int64)
        for expert in np.argsort(-load, kind="stable"):
            roles = np.flatnonzero(open_roles & (n_copies == n_copies[open_roles].max()))
            burden = (serves[roles] @ on_gpu) / n_copies[roles]
            role = roles[burden.argmin()]
            open_roles[role] = False
            expert_of[role] = expert
            on_gpu += serves[role] * load[expert] / n_copies[role]
        return np.where(used, expert_of[self._slots], -1)
