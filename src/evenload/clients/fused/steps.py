"""A table with a line for each step of each client: its inputs, and its losses and metrics.

A client's steps are consecutive lines, so a segment of many clients is one lookup per column.
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evenload.clients.fused.pool import RowPool
from evenload.clients.values.task import ClientTask

__all__ = ["StepTable"]

LARGEST_TABLE = 512  # rows of a step; the table has their square


class StepTable:
    """A line for each step of each client.

    counts, losses [steps]; metrics [steps, metrics]; examples: the number of them before each step
    """

    def __init__(self, tasks: Sequence[ClientTask], pool: RowPool, dtype: torch.dtype, device: str):
        plans, recipe = [task.batches for task in tasks], tasks[0].recipe
        ends = list(itertools.accumulate([len(plan.counts) for plan in plans]))
        self._first = dict(zip(map(id, tasks), [0, *ends], strict=False))
        self.counts = np.concatenate([*(plan.counts for plan in plans), [1]])
        self.examples = [0, *np.cumsum(self.counts).tolist()]
        self.losses = np.empty(ends[-1])
        self.metrics = np.empty((ends[-1], len(recipe.metrics)))
        # The last line is no client's: it repeats a client's row, for rows beyond the clients of a step.
        places = pool.places(tasks)
        own = places[:1] * (not pool.is_loaded)
        draws = np.concatenate([*(plan.draws for plan in plans), [0]])
        self._spare = ends[-1]
        self._places = torch.from_numpy(np.concatenate([places, own])).to(device)
        self._weights = _row_weights(self.counts, recipe.batch_size, dtype).to(device)
        self._draws = torch.from_numpy(draws).to(device)

    def first(self, task: ClientTask) -> int:
        """The line of the client's first step."""
        return self._first[id(task)]

    def at(self, lines: np.ndarray, q: int) -> list[Tensor]:
        """Inputs of the steps in ``lines`` int64 [length, live], for ``q`` rows, ``live`` of them clients.

        rows int64 [length, q, batch] in the pool, weights of that shape, draws int64 [length, q]
        """
        length, live = lines.shape
        if live < q:
            lines = np.hstack([lines, np.full((length, q - live), self._spare)])
        flat = torch.from_numpy(lines.ravel()).to(self._places.device)
        columns = (self._places, self._weights, self._draws)
        return [t.index_select(0, flat).view(length, q, *t.shape[1:]) for t in columns]


def _row_weights(counts: np.ndarray, batch: int, dtype: torch.dtype) -> Tensor:
    """[steps, batch]: for a step of n real rows, 1/n for these and 0 for padding."""
    if batch > LARGEST_TABLE:  # all rows of a client in one step, say: few numbers of rows among very many
        return _weights_of(counts, batch, dtype)
    return _weight_table(batch, dtype).index_select(0, torch.from_numpy(counts))


@functools.cache
def _weight_table(batch: int, dtype: torch.dtype) -> Tensor:
    return _weights_of(np.arange(batch + 1), batch, dtype)


def _weights_of(counts: np.ndarray, batch: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy((np.arange(batch) < counts[:, None]) / np.maximum(counts, 1)[:, None]).to(dtype)
