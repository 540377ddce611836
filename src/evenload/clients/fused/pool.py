"""Tensors that a fused step gathers its examples from: the clients' own if they share them, else copies.

Places are positions in these tensors, so that one gather serves all slots of a step.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.task import ClientTask

__all__ = ["RowPool", "make_pool"]


class RowPool(Protocol):
    """Two tensors x and y that hold the examples of all clients in the slots."""

    def places(self, tasks: Sequence[ClientTask]) -> np.ndarray:
        """Positions of all tasks' batches, one task after the other: int64 [steps, batch].

        Relative to where a client is loaded, if the pool ``is_loaded``.
        """
        ...

    @property
    def is_loaded(self) -> bool:
        """Must a client be loaded when it takes a slot?"""
        ...

    def load(self, slot: int, task: ClientTask) -> int:
        """Copy the client's rows in, for as long as it holds ``slot``; returns where they begin."""
        ...

    def gather(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """places int64 of any shape -> x and y of that shape and a row's"""
        ...

    @property
    def row_bytes(self) -> int: ...


def make_pool(tasks: Sequence[ClientTask], n_slots: int, device: str) -> RowPool:
    """The pool for these tasks: without copies if all clients' examples are rows of the same tensors."""
    whole = _whole(tasks)
    if whole is not None:
        return _SharedRows(*whole, device)
    return _CopiedRows(tasks, n_slots, device)


class _TensorPool:
    is_loaded = False
    x: Tensor
    y: Tensor

    @property
    def row_bytes(self) -> int:
        return self.x[0].numel() * self.x.element_size() if len(self.x) else 1

    def gather(self, places: Tensor) -> tuple[Tensor, Tensor]:
        flat = places.flatten()
        x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        return x.view(*places.shape, *self.x.shape[1:]), y.view(*places.shape, *self.y.shape[1:])


class _SharedRows(_TensorPool):
    """The two tensors that all clients' examples are rows of: nothing is copied."""

    def __init__(self, x: Tensor, y: Tensor, offsets: dict[int, int], device: str):
        self.x, self.y, self._offsets = x.to(device), y.to(device), offsets

    def places(self, tasks: Sequence[ClientTask]) -> np.ndarray:
        rows, n_steps = _rows(tasks), [task.batches.n_steps for task in tasks]
        chosen = [task.rows.rows for task in tasks]
        if all(own is None for own in chosen):
            return rows + np.repeat([self._offsets.get(id(task), 0) for task in tasks], n_steps)[:, None]
        chosen = [np.arange(len(self.x)) if own is None else own for own in chosen]
        begin = np.cumsum([0, *(len(own) for own in chosen[:-1])])
        return np.concatenate(chosen)[rows + np.repeat(begin, n_steps)[:, None]]

    def load(self, slot: int, task: ClientTask) -> int:
        return 0


class _CopiedRows(_TensorPool):
    """Tensors with room for the largest client in every slot; examples are copied in when it takes the slot.

    Room that no client fills is never touched, so it costs address space, not memory.
    """

    is_loaded = True

    def __init__(self, tasks: Sequence[ClientTask], n_slots: int, device: str):
        self._room = max(len(task.rows) for task in tasks)
        x, y = tasks[0].rows.x, tasks[0].rows.y
        self.x = torch.empty((n_slots * self._room, *x.shape[1:]), dtype=x.dtype, device=device)
        self.y = torch.empty((n_slots * self._room, *y.shape[1:]), dtype=y.dtype, device=device)

    def places(self, tasks: Sequence[ClientTask]) -> np.ndarray:
        return _rows(tasks)

    def load(self, slot: int, task: ClientTask) -> int:
        offset, own = slot * self._room, task.rows
        x, y = (own.x, own.y) if own.rows is None else own.at(np.arange(len(own)))
        self.x[offset : offset + len(x)] = x
        self.y[offset : offset + len(y)] = y
        return offset


def _rows(tasks: Sequence[ClientTask]) -> np.ndarray:
    return np.concatenate([task.batches.rows for task in tasks])


def _whole(tasks: Sequence[ClientTask]) -> tuple[Tensor, Tensor, dict[int, int]] | None:
    """The two tensors that hold all clients' rows, and where each client's begin; None if there are none."""
    first = tasks[0].rows
    if all(t.rows.x is first.x and t.rows.y is first.y for t in tasks):
        return first.x, first.y, {}
    if any(t.rows.rows is not None or t.rows.kind != first.kind for t in tasks):
        return None
    x, y = _spans([t.rows.x for t in tasks]), _spans([t.rows.y for t in tasks])
    if x is None or y is None or x[1] != y[1] or len(x[0]) != len(y[0]):
        return None
    return x[0], y[0], {id(task): start for task, start in zip(tasks, x[1], strict=True)}


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
