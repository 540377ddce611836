"""What one thread or process trains clients with: its copy of the model, and its fused engines, kept warm."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from evenload.clients.fused.engine import CompiledSteps, FusedEngine, settle_allocator
from evenload.clients.generators import Drawn
from evenload.clients.step.function_state import FunctionState
from evenload.clients.step.model_traits import ModelTraits, form_of
from evenload.clients.step.module_state import ModuleState, copy_model
from evenload.clients.step.serial import train_one
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import ClientTask
from evenload.errors import ConfigError


class ClientWorker:
    """A copy of the model on one device with the fused engines made for it; for one thread at a time.

    model     with keyed dropout; it is copied
    compiled  the compiled steps, if workers of one model and device share them; its own by default
    """

    def __init__(self, model: nn.Module, device: str = "cpu", compiled: CompiledSteps | None = None):
        self.model = copy_model(model).to(device)
        self.device = device
        self._state = ModuleState(self.model)
        self._draws = False  # has a client drawn from generators that the whole process shares?
        self._compiled = CompiledSteps() if compiled is None else compiled
        self._engines: dict[tuple, FusedEngine] = {}
        self._functions: dict[tuple, FunctionState] = {}
        settle_allocator(device)

    def engine(self, traits: ModelTraits, strategy: Strategy, tasks: Sequence[ClientTask]) -> FusedEngine:
        """The engine for such tasks; all tasks of one form have the same one."""
        recipe, form = tasks[0].recipe, form_of(traits, list(tasks))
        kind = form, recipe.code, recipe.clip is None, recipe.optimizer.code()
        key = (strategy.inner, *kind)
        if key not in self._engines:
            self._state.restore()
            self._engines[key] = FusedEngine(
                self.model, recipe, form, traits, strategy, self.device, self._compiled, kind
            )
        return self._engines[key]

    def train_one(self, task: ClientTask) -> ClientResult:
        """Train one client serially; nothing that the model remembers of the one before enters.

        A client that draws, although no probe of its model did, is trained again with its seed.
        Raises ConfigError if the client changed what cannot be put back.
        """
        self._state.restore()
        functions = self._functions_of(task.recipe)
        task = replace(task, draws=True) if self._draws else task
        drawn = None if task.draws else Drawn()
        result = train_one(self.model, task, self.device)
        if drawn:
            self._draws = True
            drawn.put_back()
            self._state.restore()
            result = train_one(self.model, replace(task, draws=True), self.device)
        self._state.refuse_shared()
        functions.refuse_changed()
        return result

    def _functions_of(self, recipe: Recipe) -> FunctionState:
        if recipe.code not in self._functions:
            self._functions[recipe.code] = FunctionState(recipe)
        return self._functions[recipe.code]

    def train_queue(
        self,
        strategy: Strategy,
        traits: ModelTraits | None,
        tasks: Sequence[ClientTask],
        queue: deque[ClientTask],
        n_workers: int = 1,
    ) -> Iterator[list[ClientResult]]:
        """Train what is in ``queue``, which ``n_workers`` workers take from; yields clients as they end."""
        if not strategy.is_fused or traits is None:
            while queue:
                try:
                    task = queue.popleft()
                except IndexError:  # another thread was faster
                    return
                drawn = Drawn() if strategy.is_threaded else None
                result = self.train_one(task)
                _refuse_draws(drawn)
                yield [result]
        elif tasks:
            n_rows = strategy.rows_for(len(tasks), n_workers)
            drawn, functions = Drawn(), self._functions_of(tasks[0].recipe)
            for ended in self.engine(traits, strategy, tasks).train_slots(tasks, queue, n_rows):
                _refuse_draws(drawn)
                functions.refuse_changed()
                yield ended


def _refuse_draws(drawn: Drawn | None) -> None:
    """Raise ConfigError if something has drawn meanwhile: clients side by side would share the numbers."""
    if drawn:
        raise ConfigError("the model draws random numbers by itself, though a probed step of it did not")


@contextmanager
def intra_op(n: int) -> Iterator[None]:
    """Let torch use ``n`` threads of its own inside the block; how it splits sums decides their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
