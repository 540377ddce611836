"""What one worker (a thread or a process) trains with: its copy of the model, and its engines, kept warm."""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from evenload.clients.fused.engine import CompiledSteps, Engine
from evenload.clients.step.model_probe import Survey, form_of
from evenload.clients.step.serial import train_one
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import Task

__all__ = ["Bench", "intra_op"]


class Bench:
    """For one thread at a time. ``model`` has keyed dropout; it is copied.

    compiled  shared by benches of one model and device; its own by default
    """

    def __init__(self, model: nn.Module, device: str = "cpu", compiled: CompiledSteps | None = None):
        self.model = copy.deepcopy(model).to(device)
        self.device = device
        self._compiled = CompiledSteps() if compiled is None else compiled
        self._engines: dict[tuple, Engine] = {}

    def engine(self, survey: Survey, strategy: Strategy, tasks: Sequence[Task]) -> Engine:
        """The engine for such tasks, the same one for all tasks of one form."""
        recipe, form = tasks[0].recipe, form_of(survey, list(tasks))
        kind = form, _static(recipe)
        key = (strategy.inner, *kind)
        if key not in self._engines:
            self._engines[key] = Engine(
                self.model, recipe, form, survey, strategy, self.device, self._compiled, kind
            )
        return self._engines[key]

    def run(
        self,
        strategy: Strategy,
        survey: Survey | None,
        tasks: Sequence[Task],
        queue: deque[Task],
        n_workers: int = 1,
    ) -> Iterator[list[ClientResult]]:
        """Train what is in ``queue``; ``n_workers`` benches take from it. Yields clients as they end."""
        if not strategy.takes_chunks or survey is None:
            while queue:
                try:
                    task = queue.popleft()
                except IndexError:  # another thread was faster
                    return
                yield [train_one(self.model, task, self.device)]
        elif tasks:
            n_rows = strategy.rows_for(len(tasks), n_workers)
            yield from self.engine(survey, strategy, tasks).run(tasks, queue, n_rows)


@contextmanager
def intra_op(n: int) -> Iterator[None]:
    """Torch's own threads, ``n`` of them inside the block: how sums are split decides their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _static(recipe: Recipe) -> tuple:
    """What of a recipe is part of a step's code, and not a number that goes in."""
    sets = recipe.loss, recipe.metrics, recipe.augment, recipe.precision
    return *sets, recipe.clip is None, type(recipe.optimizer)
