"""Tensors that a fused step gathers its examples from: the clients' own if they share them, else copies.

Places are positions in these tensors, so that one gather serves all slots of a step.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.data import Batch, leaves_of, unflattened
from evenload.clients.values.task import ClientTask


def make_pool(tasks: Sequence[ClientTask], n_slots: int, device: str) -> "RowPool":
    """The pool for these tasks: without copies if all clients' examples are rows of the same tensors."""
    whole = _whole(tasks)
    if whole is not None:
        return _SharedRows(*whole, device)
    return _CopiedRows(tasks, n_slots, device)


class RowPool:
    """Tensors that hold the examples of all clients in the slots.

    leaves     the tensors of x, then y; ``like``: what a batch is
    is_loaded  must a client be loaded when it takes a slot?
    """

    is_loaded = False
    leaves: list[Tensor]
    like: Batch

    def places(self, tasks: Sequence[ClientTask]) -> np.ndarray:
        """Positions of all tasks' batches, one task after the other: int64 [steps, batch].

        Relative to where a client is loaded, if the pool ``is_loaded``.
        """
        return np.concatenate([task.batches.rows for task in tasks])

    def load(self, slot: int, task: ClientTask) -> int:
        """Copy the client's rows in, for as long as it holds ``slot``; returns where they begin."""
        raise NotImplementedError

    @property
    def row_bytes(self) -> int:
        x = self.leaves[:-1]
        return sum(t[0].numel() * t.element_size() for t in x) if len(self.leaves[-1]) else 1

    def gather(self, places: Tensor) -> tuple[Batch, Tensor]:
        """places int64 [...] -> x and y, of that shape and a row's"""
        flat = places.flatten()
        *x, y = (t.index_select(0, flat).view(*places.shape, *t.shape[1:]) for t in self.leaves)
        return unflattened(self.like, x), y


class _SharedRows(RowPool):
    """The tensors that all clients' examples are rows of: nothing is copied."""

    def __init__(self, leaves: list[Tensor], like: Batch, offsets: dict[int, int], device: str):
        self.leaves, self.like, self._offsets = [t.to(device) for t in leaves], like, offsets

    def places(self, tasks: Sequence[ClientTask]) -> np.ndarray:
        rows, n_steps = super().places(tasks), [task.batches.n_steps for task in tasks]
        chosen = [task.rows.rows for task in tasks]
        if all(own is None for own in chosen):
            return rows + np.repeat([self._offsets.get(id(task), 0) for task in tasks], n_steps)[:, None]
        chosen = [np.arange(len(self.leaves[-1])) if own is None else own for own in chosen]
        begin = np.cumsum([0, *(len(own) for own in chosen[:-1])])
        return np.concatenate(chosen)[rows + np.repeat(begin, n_steps)[:, None]]


class _CopiedRows(RowPool):
    """Tensors with room for the largest client in every slot; examples are copied in when it takes the slot.

    Room that no client fills is never touched, so it costs address space, not memory.
    """

    is_loaded = True

    def __init__(self, tasks: Sequence[ClientTask], n_slots: int, device: str):
        self._room = max(len(task.rows) for task in tasks)
        self.like = tasks[0].rows.x
        self.leaves = [
            torch.empty((n_slots * self._room, *t.shape[1:]), dtype=t.dtype, device=device)
            for t in _leaves(tasks[0])
        ]

    def load(self, slot: int, task: ClientTask) -> int:
        offset, own = slot * self._room, task.rows
        x, y = (own.x, own.y) if own.rows is None else own.at(np.arange(len(own)))
        for into, t in zip(self.leaves, (*leaves_of(x), y), strict=True):
            into[offset : offset + len(t)] = t
        return offset


def _leaves(task: ClientTask) -> list[Tensor]:
    return [*leaves_of(task.rows.x), task.rows.y]


def _whole(tasks: Sequence[ClientTask]) -> tuple[list[Tensor], Batch, dict[int, int]] | None:
    """The tensors that hold all clients' rows, and where each client's begin; None if there are none."""
    first = tasks[0].rows
    if all(t.rows.x is first.x and t.rows.y is first.y for t in tasks):
        return _leaves(tasks[0]), first.x, {}
    if any(t.rows.rows is not None or t.rows.kind != first.kind for t in tasks):
        return None
    found = [_spans(parts) for parts in zip(*map(_leaves, tasks), strict=True) if parts[0][:1].numel()]
    if None in found or len(found) < len(_leaves(tasks[0])):
        return None
    whole, starts = zip(*found, strict=True)  # pyrefly: ignore
    if any(begin != starts[0] for begin in starts) or len({len(t) for t in whole}) > 1:
        return None
    return list(whole), first.x, {id(task): start for task, start in zip(tasks, starts[0], strict=True)}


def _spans(parts: Sequence[Tensor]) -> tuple[Tensor, list[int]] | None:
    """The tensor that ``parts`` (of one kind) are slices of, and where each begins; None if there is none."""
    first, shape = parts[0], parts[0].shape[1:]
    row_bytes = shape.numel() * first.element_size()
    if not row_bytes:
        return None
    storage = first.untyped_storage()
    base, n_bytes = storage.data_ptr(), storage.nbytes()
    # Memory that lies within the first one's is the first one's: it is held here, so nobody else can have it.
    starts = []
    for part in parts:
        start = part.data_ptr() - base
        if not 0 <= start < n_bytes or start % row_bytes or not part.is_contiguous():
            return None
        starts.append(start // row_bytes)
    return first.as_strided((n_bytes // row_bytes, *shape), (shape.numel(), *first.stride()[1:]), 0), starts
