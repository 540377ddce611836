"""A fused engine: steps of one model and form, by number of rows, made when first needed and kept.

A compiled step keeps nothing between calls, so engines of one model share them: the first thread that needs
one makes it, and others that need it wait. An eager step works on a module that it changes while it runs;
each engine has its own.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import nn

from evenload.clients.fused.compiled import compile_step, run_steps
from evenload.clients.fused.rules import has_own_gradients, with_rules
from evenload.clients.fused.slots import SlotRun
from evenload.clients.step.fuse import StackedClients, StackedStep, StepFn, StepForm, StepInputs, StepOutput
from evenload.clients.step.model_traits import ModelTraits
from evenload.clients.values.data import leaves_of
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import Strategy, halves
from evenload.clients.values.task import ClientTask

SETTLING_BYTES = (32 << 20) - (64 << 10)  # the largest block that changes what glibc's malloc gives back


class CompiledSteps:
    """The compiled steps of one model on one device, for all threads of this process."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, StepFn] = {}
        self._making: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], StepFn]) -> StepFn:
        """The step of ``key``, made by ``make`` if it is not there. Raises what ``make`` raises.

        One thread makes it; only threads that need the same step wait.
        """
        with self._lock:
            making = self._making[key]
        with making:
            if key not in self._steps:
                self._steps[key] = make()
            return self._steps[key]


class FusedEngine:
    """The fused steps of one model, recipe and form, for one thread at a time.

    model     with keyed dropout; it is copied, never changed
    compiled  where compiled steps are kept; ``key`` tells one form and recipe from another
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        form: StepForm,
        traits: ModelTraits,
        strategy: Strategy,
        device: str,
        compiled: CompiledSteps,
        key: Hashable,
    ):
        self.form, self._recipe, self._traits = form, recipe, traits
        self._is_compiled = strategy.is_compiled
        self._model = with_rules(model) if strategy.inner.startswith("rules") else model
        self._device = device
        self._compiled, self._key = compiled, (strategy.inner.startswith("rules"), key)
        self._eager: StackedStep | None = None
        self.client_steps = self.row_steps = 0

    def train_slots(
        self, tasks: Sequence[ClientTask], queue: deque[ClientTask], n_rows: int, *, pads: bool = False
    ) -> Iterator[list[ClientResult]]:
        """Train what is in ``queue``; yields results as clients end.

        tasks   all that ``queue`` holds at first; they give the shapes
        n_rows  most clients in a step; ``pads``: step so many rows always, even for fewer clients
        """
        sizes = [n_rows] if pads else halves(n_rows) if self._is_compiled else range(1, n_rows + 1)
        run = SlotRun(tasks, queue, self.form, self._run_steps, dict(self._traits.names), sizes, self._device)
        yield from run.results()
        self.client_steps += run.client_steps
        self.row_steps += run.row_steps

    def _run_steps(self, clients: StackedClients, inputs: StepInputs) -> StepOutput:
        if self._is_compiled:
            return run_steps(self._compiled_step(clients, inputs), clients, inputs)
        if self._eager is None:
            is_inside = has_own_gradients(self._model) or not self._traits.has_plain_gradients
            self._eager = StackedStep(self._model, self._recipe, self.form, is_inside).move(self._device)
        return run_steps(self._eager, clients, inputs)

    def _compiled_step(self, clients: StackedClients, inputs: StepInputs) -> StepFn:
        """The compiled step for the first of these steps; the others are of the same kind."""
        x = inputs.x
        leaves = tuple((t.shape[1:], t.dtype) for t in (*leaves_of(x), inputs.y))
        shape = (clients.alive.shape[0], tuple(x) if isinstance(x, dict) else None, leaves)

        def make() -> StepFn:
            traced = StackedStep(self._model, self._recipe, self.form).move(self._device).traced
            return compile_step(traced, clients, inputs.first())

        return self._compiled.get((self._key, shape), make)


def settle_allocator(device: str) -> None:
    """Let malloc keep the memory of a step for the next one.

    glibc returns blocks of some megabytes to the system when they are freed, and gets them back page by
    page: a third of the time of a step whose gradients are that large. Once a block of nearly 32 MB has been
    freed it keeps up to 64 MB (mallopt(3), M_MMAP_THRESHOLD: the dynamic threshold). Others stay as
    they are.
    """
    if device == "cpu":
        torch.empty(SETTLING_BYTES, dtype=torch.uint8)


def longest_first(tasks: Sequence[ClientTask]) -> deque[ClientTask]:
    """The tasks as a queue, those of most steps first."""
    return deque(sorted(tasks, key=lambda task: -task.batches.n_steps))
