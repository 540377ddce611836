"""Every step of every client in one table: what goes into a step, and what came out of it.

A client's steps are consecutive lines, so a segment of many clients is one lookup per column.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .pool import RowPool
from .task import Task

__all__ = ["StepTable"]


class StepTable:
    """counts, losses [steps]; metrics [steps, metrics]; examples [steps + 1], those before each step."""

    def __init__(self, tasks: Sequence[Task], pool: RowPool, dtype: torch.dtype, device: str):
        plans, recipe = [task.batches for task in tasks], tasks[0].recipe
        ends = np.cumsum([len(plan.counts) for plan in plans])
        self._first = dict(zip(map(id, tasks), [0, *ends.tolist()[:-1]], strict=True))
        self.counts = np.concatenate([plan.counts for plan in plans])
        self.examples = np.concatenate([[0], np.cumsum(self.counts)])
        self.losses = np.empty(len(self.counts))
        self.metrics = np.empty((len(self.counts), len(recipe.metrics)))
        weights = _row_weights(recipe.batch_size)
        self._one_row = torch.from_numpy(weights[1]).to(device, dtype)
        self._weights = torch.from_numpy(weights[self.counts]).to(device, dtype)
        self._draws = torch.from_numpy(np.concatenate([plan.draws for plan in plans])).to(device)
        self._places = torch.from_numpy(pool.places(tasks)).to(device)

    def first(self, task: Task) -> int:
        """The line of the client's first step."""
        return self._first[id(task)]

    def at(self, lines: np.ndarray, live: int) -> tuple[Tensor, Tensor, Tensor]:
        """For ``lines`` int64 [length, q]: rows int64 [length, q, batch] in the pool, weights of that shape,
        draws int64 [length, q]. Clients from ``live`` on count for one row each."""
        flat = torch.from_numpy(lines.ravel()).to(self._places.device)
        rows, weights = (
            t.index_select(0, flat).view(*lines.shape, -1) for t in (self._places, self._weights)
        )
        if live < lines.shape[1]:
            weights[:, live:] = self._one_row
        return rows, weights, self._draws.index_select(0, flat).view(lines.shape)


def _row_weights(batch: int) -> np.ndarray:
    """[batch + 1, batch]: for each number of real rows, 1/n of these and 0 of the padding."""
    counts = np.arange(batch + 1)[:, None]
    return (np.arange(batch) < counts) / np.maximum(counts, 1)
