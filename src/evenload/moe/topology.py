"""Topologies: which rank backs up which, as fixed graphs along which redundant experts are placed.

A topology is a matrix ``redundant_to_original`` [ranks, columns]: the redundant slot in column d of rank g
holds a copy of the d-th heaviest expert of rank ``redundant_to_original[g, d]``. Each column is a permutation
without fixed points, so each copy joins exactly two ranks. A fleet of more ranks than the matrix has rows is
cut into groups of that many, and load never leaves its group.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import array_of, choice, whole
from evenload.balance.flow import ReplicaGraph
from evenload.errors import ConfigError
from evenload.moe.placement.bound import checked_loads
from evenload.moe.placement.rebalance import rebalance_experts

TOPOLOGIES = ("circulant", "cube", "full", "hypercube", "ring", "torus")


def ring(n_ranks: int) -> NDArray[np.int32]:
    """[ranks, 1]: each rank backs up the next one."""
    return circulant(n_ranks, [1])


def circulant(n_ranks: int, strides: Sequence[int]) -> NDArray[np.int32]:
    """[ranks, strides]: each rank backs up those ``stride`` places on, counted round and round.

    Raises ConfigError if a stride leads back to the rank itself.
    """
    if n_ranks < 2 or not strides or any(stride % n_ranks == 0 for stride in strides):
        raise ConfigError(
            f"strides {list(strides)} on {n_ranks} ranks lead a rank to itself",
            hint="use at least 2 ranks and strides that are no multiple of their number",
        )
    ranks = np.arange(n_ranks, dtype=np.int32)
    return np.stack([(ranks + stride) % n_ranks for stride in strides], axis=1).astype(np.int32)


def cube() -> NDArray[np.int32]:
    """[8, 2]: the twelve edges of a cube and four diagonals; ranks 0-3 and 4-7 go round two faces."""
    ranks = np.arange(8, dtype=np.int32)
    around = ranks // 4 * 4 + (ranks - 1) % 4
    across = np.where(ranks < 4, 4 + (ranks + 2) % 4, ranks - 4)
    return np.stack([around, across], axis=1).astype(np.int32)


def hypercube(n_ranks: int = 16) -> NDArray[np.int32]:
    """[ranks, columns]: the edges of a hypercube, two dimensions (cycles of four ranks) to a column.

    ``n_ranks`` is a power of two from 4; for an odd power the last column is the one dimension left over.
    """
    if n_ranks < 4 or n_ranks & (n_ranks - 1):
        raise ConfigError(f"{n_ranks} ranks are no hypercube", hint="use 4, 8, 16, 32, ... ranks")
    ranks = np.arange(n_ranks, dtype=np.int32)
    columns, step = [], 1
    while step < n_ranks:
        round_of = min(4, n_ranks // step)
        digit = ranks // step % round_of
        columns.append(ranks + ((digit - 1) % round_of - digit) * step)
        step *= round_of
    return np.stack(columns, axis=1).astype(np.int32)


def torus(n_rows: int, n_columns: int) -> NDArray[np.int32]:
    """[rows * columns, 2]: each rank backs up its neighbours below and to the right, which wrap around.

    Ranks count along the rows: if a row is a node, the second column stays inside the node.
    """
    if n_rows < 2 or n_columns < 2:
        raise ConfigError(
            f"a torus of {n_rows} x {n_columns} has no neighbours", hint="use at least 2 x 2, or a ring"
        )
    row, column = np.divmod(np.arange(n_rows * n_columns, dtype=np.int32), n_columns)
    below = (row + 1) % n_rows * n_columns + column
    right = row * n_columns + (column + 1) % n_columns
    return np.stack([below, right], axis=1).astype(np.int32)


def fully_connected(n_ranks: int) -> NDArray[np.int32]:
    """[ranks, ranks - 1]: each rank backs up every other."""
    return circulant(n_ranks, range(1, n_ranks))


def check_mapping(redundant_to_original: ArrayLike) -> NDArray[np.int32]:
    """Check a matrix and return it as [ranks, columns] int32.

    Raises ConfigError unless each column is a permutation of the ranks in which no rank backs up itself.
    """
    given = redundant_to_original
    matrix = array_of("redundant_to_original", given)
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    if matrix.ndim != 2 or not matrix.size or matrix.dtype.kind not in "iu":
        raise ConfigError(
            f"redundant_to_original has shape {matrix.shape} and dtype {matrix.dtype}",
            hint="give integers [ranks, columns]",
        )
    n_ranks = len(matrix)
    for column in range(matrix.shape[1]):
        if not np.array_equal(np.sort(matrix[:, column]), np.arange(n_ranks)):
            raise ConfigError(
                f"column {column} of redundant_to_original is no permutation of 0 to {n_ranks - 1}",
                hint="let every rank be backed up exactly once in each column",
            )
        selves = np.flatnonzero(matrix[:, column] == np.arange(n_ranks))
        if len(selves):
            raise ConfigError(
                f"column {column} of redundant_to_original lets rank {selves[0]} back up itself",
                hint="name another rank: a second copy on the same GPU is of no use",
            )
    return np.ascontiguousarray(matrix, np.int32)


def create_redundant_mapping(
    n_logical: int, n_physical: int, *, ep_size: int | None = None, topology: str = "circulant"
) -> NDArray[np.int32]:
    """``redundant_to_original`` [ranks, columns] int32 for ``n_logical`` experts in ``n_physical`` slots.

    ep_size   ranks; by default the most that both the experts and the redundant slots divide over
    topology  "circulant" (one column for each redundant slot of a rank: a ring, then ever longer strides), or
              "ring", "cube", "hypercube", "torus", "full"

    Raises ConfigError if experts or slots do not divide over the ranks, a rank would hold more copies than it
    has experts to be copied, or the topology does not fit the ranks; UnknownName for another topology.
    """
    choice("topology", topology, TOPOLOGIES)
    n_logical, n_physical = whole("n_logical", n_logical), whole("n_physical", n_physical)
    ep_size = None if ep_size is None else whole("ep_size", ep_size, least=1)
    n_redundant = n_physical - n_logical
    if n_logical < 1 or n_redundant < 1:
        raise ConfigError(
            f"{n_physical} slots leave no copy of {n_logical} experts",
            hint="give more physical slots than experts",
        )
    n_ranks = ep_size or math.gcd(n_logical, n_redundant)
    if n_ranks < 2 or n_logical % n_ranks or n_redundant % n_ranks:
        raise ConfigError(
            f"{n_logical} experts and {n_redundant} redundant slots do not divide over {n_ranks} ranks",
            hint="give each rank the same number of both, on at least 2 ranks",
        )
    matrix = _named(topology, n_ranks, n_redundant // n_ranks)
    if n_redundant // n_ranks % matrix.shape[1] or n_redundant > n_logical:
        raise ConfigError(
            f"{n_redundant // n_ranks} redundant slots on a rank of {n_logical // n_ranks} experts"
            f" do not suit a {topology} of {matrix.shape[1]} columns",
            hint="use a multiple of the columns, and no more copies than there are experts",
        )
    return matrix


def _named(topology: str, n_ranks: int, n_redundant: int) -> NDArray[np.int32]:
    if topology == "ring":
        return ring(n_ranks)
    if topology == "hypercube":
        return hypercube(n_ranks)
    if topology == "full":
        return fully_connected(n_ranks)
    if topology == "cube":
        if n_ranks % 8:
            raise ConfigError(f"{n_ranks} ranks are no cubes of 8", hint="use a multiple of 8 ranks")
        return cube()
    if topology == "torus":
        n_rows = max((n for n in range(1, math.isqrt(n_ranks) + 1) if n_ranks % n == 0), default=1)
        return torus(n_ranks // n_rows, n_rows)
    return circulant(n_ranks, spread_strides(n_ranks, n_redundant))


def spread_strides(n_ranks: int, n_strides: int) -> list[int]:
    """Strides, from 1 on, that keep any two ranks few steps apart: about the powers of ranks ** (1 / n)."""
    root = n_ranks ** (1 / n_strides)
    return [max(1, round(root**power)) % n_ranks or 1 for power in range(n_strides)]


def lay_out(
    redundant_to_original: ArrayLike,
    load: ArrayLike,
    n_slots: int,
    *,
    ep_size: int | None = None,
    n_nodes: int = 1,
) -> NDArray[np.int64]:
    """``phy2log`` [layers, slots]: experts placed by EPLB's policy, the heaviest copied along the topology.

    load     [layers, experts]; the experts must divide over the ranks
    n_slots  physical slots; each rank's redundant ones a multiple of the topology's columns

    Raises ConfigError where that does not hold.
    Source: LPLB, ``update_redundancy_mapping``'s contract.
    """
    matrix = check_mapping(redundant_to_original)
    weight = checked_loads("load", load, "layer expert").astype(np.float64)
    n_slots, n_nodes = whole("n_slots", n_slots), whole("n_nodes", n_nodes, least=1)
    (n_layers, n_experts), (n_group, n_columns) = weight.shape, matrix.shape
    n_ranks = n_group if ep_size is None else whole("ep_size", ep_size, least=1)
    n_local, n_copies = n_experts // n_ranks, (n_slots - n_experts) // n_ranks
    if (
        n_ranks % n_group
        or n_experts % n_ranks
        or n_slots % n_ranks
        or n_copies % n_columns
        or not 0 < n_copies <= n_local
    ):
        raise ConfigError(
            f"{n_experts} experts in {n_slots} slots on {n_ranks} ranks do not suit shape {matrix.shape}",
            hint="give each rank as many experts, and a multiple of the columns in redundant slots",
        )
    base = rebalance_experts(weight, n_experts, n_ranks // n_group, n_nodes, n_ranks).phy2log
    loads = np.take_along_axis(weight, base, 1).reshape(n_layers, -1, n_local)
    by_load = np.argsort(-loads, 2, kind="stable")
    base = np.take_along_axis(base.reshape(loads.shape), by_load, axis=2)
    heavy = base[:, :, :n_copies].reshape(n_layers, -1, n_group, n_copies // n_columns, n_columns)
    copies = np.take_along_axis(heavy, matrix[None, None, :, None, :].astype(np.int64), axis=2)
    slots = np.concatenate([base, copies.reshape(n_layers, n_ranks, n_copies)], axis=2)
    return slots.reshape(n_layers, n_slots)


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
