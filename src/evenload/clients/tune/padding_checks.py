"""Which short batches of one model's clients may be padded in a fused step; what was probed is remembered.

Every number of rows that occurs is probed: a model may act on one (``if x.shape[0] == 7``), and what is shown
for other numbers says nothing of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from evenload.clients.step.padding_probe import PaddingProbe, PaddingVerdict
from evenload.clients.values.data import map_batch
from evenload.clients.values.task import ClientTask

__all__ = ["PaddingChecks", "short_batches"]

EXAMPLES, CLIENTS = 16, 8  # of so many clients, whose numbers show what padding may be


@dataclass(slots=True)
class _Kind:
    """Probes of one kind of work, and what each number of rows gave."""

    probe: PaddingProbe
    verdicts: dict[int, PaddingVerdict] = field(default_factory=dict)


class PaddingChecks:
    """Probes of short batches, one for each number of rows."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._kinds: dict[tuple, _Kind] = {}

    def why_not(self, tasks: Sequence[ClientTask], short: Mapping[int, ClientTask]) -> str | None:
        """Why these tasks cannot be padded, or None; probes numbers of rows that are new.

        short  as ``short_batches`` gives it
        """
        if not short:
            return None
        key = _key(tasks[0])
        if key not in self._kinds:
            self._kinds[key] = _Kind(self._probe(tasks))
        kind = self._kinds[key]
        for n in sorted(short.keys() - kind.verdicts.keys()):
            kind.verdicts[n] = _verdict(kind.probe, short[n])
            if kind.verdicts[n].mixes:  # one is enough
                break
        return next((v.mixes for v in kind.verdicts.values() if v.mixes), None)

    def failing(self, task: ClientTask) -> Mapping[int, str]:
        """Numbers of rows that fail in serial training, among tasks like this one, and how."""
        kind = self._kinds.get(_key(task))
        return {n: v.fails for n, v in kind.verdicts.items() if v.fails} if kind else {}

    def _probe(self, tasks: Sequence[ClientTask]) -> PaddingProbe:
        shown = [task.rows.at(np.arange(min(EXAMPLES, len(task.rows)))) for task in tasks[:CLIENTS]]
        xs, ys = zip(*shown, strict=True)
        x = map_batch(lambda *t: torch.cat(t), *xs)
        return PaddingProbe(self._model, tasks[0].recipe, tasks[0].start, x, torch.cat(ys))


def short_batches(tasks: Sequence[ClientTask]) -> dict[int, ClientTask]:
    """Numbers of rows of batches that are not full -> a task with one; a client has one such number."""
    distinct = {id(task.batches.counts): task for task in tasks}  # clients of one size share their counts
    least = {int(task.batches.counts.min()): task for task in distinct.values()}
    return {n: task for n, task in least.items() if n < task.recipe.batch_size}


def _key(task: ClientTask) -> tuple:
    recipe = task.recipe
    return recipe.loss, recipe.objective, recipe.augment, recipe.precision, recipe.batch_size, task.rows.kind


def _verdict(probe: PaddingProbe, task: ClientTask) -> PaddingVerdict:
    batches = task.batches
    step = int(batches.counts.argmin())
    x, y = task.rows.at(batches.rows[step, : batches.counts[step]])
    return probe.verdict(x, y, int(batches.draws[step]), batches.rows.shape[1])
