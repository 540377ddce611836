"""``ReplicaGraph``: which GPU can serve which expert, as the bipartite graph that the router works on."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenload._arguments import places, whole
from evenload.errors import ConfigError, quoted

__all__ = ["REPLICATED", "UNPLACED", "ReplicaGraph"]

REPLICATED = -1  # in ``home``: the expert has two GPUs or more
UNPLACED = -2  # in ``home``: no living GPU holds the expert


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaGraph:
    """The replicas of ``n_experts`` experts on ``n_gpus`` GPUs, of ``n_layers`` layers.

    Experts on one GPU only are its ``home`` load. Every other expert is a *row* of two *edges* or more, one
    for each GPU that holds it. Rows and edges are numbered through all layers. A second copy of an expert on
    the same GPU is no edge and never gets demand.

    phy2log    [layers, slots] int32, the expert in each slot, -1 for an empty slot or one on a dead GPU
    slot2gpu   [slots] int32
    alive      [gpus] bool
    home       [layers, experts] int32: a GPU, REPLICATED or UNPLACED
    home_slot  [layers, experts] int32: the expert's first slot, -1 if it has none
    row_start  [layers + 1] int32, row2log [rows] int32, row_edge [rows + 1] int32
    edge2gpu   [edges] int32, edge2slot [edges] int32
    gpu_start  [layers * gpus + 1] int32: the edges at each GPU are gpu_edges[gpu_start[i]:gpu_start[i + 1]],
               their rows gpu_rows[...], with i = layer * n_gpus + gpu
    """

    n_layers: int
    n_experts: int
    n_slots: int
    n_gpus: int
    phy2log: NDArray[np.int32]
    slot2gpu: NDArray[np.int32]
    alive: NDArray[np.bool_]
    home: NDArray[np.int32]
    home_slot: NDArray[np.int32]
    row_start: NDArray[np.int32]
    row2log: NDArray[np.int32]
    row_edge: NDArray[np.int32]
    edge2gpu: NDArray[np.int32]
    edge2slot: NDArray[np.int32]
    gpu_start: NDArray[np.int32]
    gpu_edges: NDArray[np.int32]
    gpu_rows: NDArray[np.int32]

    @classmethod
    def from_slots(
        cls,
        phy2log: ArrayLike,
        n_experts: int,
        n_gpus: int,
        *,
        slot2gpu: ArrayLike | None = None,
        dead: Iterable[int] = (),
    ) -> "ReplicaGraph":
        """Make the graph of a placement.

        phy2log   [slots] or [layers, slots] integers: the expert each physical slot holds, -1 for an empty
                  slot
        slot2gpu  [slots] integers; by default the slots divide evenly over the GPUs, in order
        dead      GPUs that serve nothing any more; an expert that only they hold cannot get demand

        Raises ConfigError if an id is out of range, the slots do not divide, or an expert has no slot at all.
        """
        n_experts, n_gpus = whole("n_experts", n_experts), whole("n_gpus", n_gpus)
        slots = places("phy2log", phy2log)
        slots = slots[None] if slots.ndim == 1 else slots
        if slots.ndim != 2 or slots.shape[1] == 0:
            raise ConfigError(
                f"phy2log has shape {slots.shape}", hint="give [slots] or [layers, slots], one slot at least"
            )
        gpus = _slot_gpus(slot2gpu, slots.shape[1], n_gpus)
        alive = _living(dead, n_gpus)
        _check_experts(slots, n_experts)
        return _link(np.where(alive[gpus][None], slots, np.int32(-1)), gpus, alive, n_experts)

    @property
    def n_edges(self) -> int:
        return len(self.edge2gpu)

    def unplaced(self, layer: int = 0) -> NDArray[np.intp]:
        """Experts that no living GPU holds."""
        return np.flatnonzero(self.home[layer] == UNPLACED)


def _slot_gpus(slot2gpu: ArrayLike | None, n_slots: int, n_gpus: int) -> NDArray[np.int32]:
    if n_gpus < 1:
        raise ConfigError(f"{n_gpus} GPUs", hint="give one GPU at least")
    if slot2gpu is None:
        if n_slots % n_gpus:
            raise ConfigError(
                f"{n_slots} slots do not divide over {n_gpus} GPUs",
                hint=f"use {-(-n_slots // n_gpus) * n_gpus} slots, or say where each slot is with slot2gpu=",
            )
        return np.repeat(np.arange(n_gpus, dtype=np.int32), n_slots // n_gpus)
    gpus = places("slot2gpu", slot2gpu)
    if gpus.shape != (n_slots,):
        raise ConfigError(
            f"slot2gpu has shape {gpus.shape} for {n_slots} slots", hint="give one GPU for each slot"
        )
    if gpus.min() < 0 or gpus.max() >= n_gpus:
        raise ConfigError(
            f"slot2gpu names GPU {gpus.min() if gpus.min() < 0 else gpus.max()} of {n_gpus}",
            hint=f"use 0 to {n_gpus - 1}",
        )
    return gpus


def _living(dead: Iterable[int], n_gpus: int) -> NDArray[np.bool_]:
    alive = np.ones(n_gpus, dtype=bool)
    try:
        gone = [whole("a dead GPU", gpu) for gpu in dead]
    except TypeError as error:
        raise ConfigError(f"dead is {quoted(dead)}", hint="give the GPUs by their places") from error
    for gpu in gone:
        if not 0 <= gpu < n_gpus:
            raise ConfigError(f"dead GPU {gpu} of {n_gpus}", hint=f"use 0 to {n_gpus - 1}")
        alive[gpu] = False
    if not alive.any():
        raise ConfigError(f"all {n_gpus} GPUs are dead", hint="leave one alive")
    return alive


def _check_experts(slots: NDArray[np.int32], n_experts: int) -> None:
    if slots.max() >= n_experts:
        raise ConfigError(
            f"phy2log names expert {slots.max()} of {n_experts}",
            hint=f"use 0 to {n_experts - 1}, and -1 for an empty slot",
        )
    for layer, row in enumerate(slots):
        copies = np.bincount(row[row >= 0], minlength=n_experts)
        if not copies.all():
            lost = np.flatnonzero(copies == 0)
            raise ConfigError(
                f"layer {layer} has no slot for {len(lost)} of {n_experts} experts: {lost[:5].tolist()}…",
                hint="place every expert once at least",
            )


def _link(
    slots: NDArray[np.int32], gpus: NDArray[np.int32], alive: NDArray[np.bool_], n_experts: int
) -> ReplicaGraph:
    """Sort the slots by layer, expert and GPU, and divide them into homes and rows of edges."""
    n_layers, n_slots = slots.shape
    n_gpus = len(alive)
    layer, slot = np.nonzero(slots >= 0)
    pair = (layer * n_experts + slots[layer, slot]) * n_gpus + gpus[slot]
    pair, first = np.unique(pair, return_index=True)  # the first slot stands for its doubles on the same GPU
    slot, expert, gpu = slot[first], pair // n_gpus, pair % n_gpus
    n_hosts = np.bincount(expert, minlength=n_layers * n_experts)

    home = np.full(n_layers * n_experts, REPLICATED, dtype=np.int32)
    home[n_hosts == 0] = UNPLACED
    home_slot = np.full(n_layers * n_experts, -1, dtype=np.int32)
    home_slot[expert[::-1]] = slot[::-1]
    single = n_hosts[expert] == 1
    home[expert[single]] = gpu[single]

    shared = np.flatnonzero(n_hosts > 1)
    shared = shared[np.lexsort((n_hosts[shared], shared // n_experts))]
    row_edge = np.concatenate(([0], np.cumsum(n_hosts[shared])))
    slot, expert, gpu = slot[~single], expert[~single], gpu[~single]
    by_row = np.lexsort((expert, n_hosts[expert], expert // n_experts))
    slot, expert, gpu = slot[by_row], expert[by_row], gpu[by_row]
    at_gpu = expert // n_experts * n_gpus + gpu
    n_edges = np.bincount(at_gpu, minlength=n_layers * n_gpus)
    gpu_edges = np.argsort(at_gpu, kind="stable")
    row = np.repeat(np.arange(len(shared)), n_hosts[shared])

    return ReplicaGraph(
        n_layers, n_experts, n_slots, n_gpus, _int32(slots), gpus, alive,
        home=home.reshape(n_layers, n_experts), home_slot=home_slot.reshape(n_layers, n_experts),
        row_start=_int32(np.searchsorted(shared // n_experts, np.arange(n_layers + 1))),
        row2log=_int32(shared % n_experts), row_edge=_int32(row_edge), edge2gpu=_int32(gpu),
        edge2slot=_int32(slot), gpu_start=_int32(np.concatenate(([0], np.cumsum(n_edges)))),
        gpu_edges=_int32(gpu_edges), gpu_rows=_int32(row[gpu_edges]),
    )  # fmt: skip


def _int32(array: NDArray) -> NDArray[np.int32]:
    return np.ascontiguousarray(array, dtype=np.int32)
