"""A fused engine: steps of one model and form, by number of rows, made when first needed and kept."""

from collections import deque
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from .compiled import compile_step
from .fuse import Form, Lane, StackedStep, StepFn, StepOutput, Tensors
from .recipe import Recipe
from .result import ClientResult
from .rules import with_rules
from .slots import SlotRun
from .strategy import Strategy, halves
from .survey import Survey
from .task import Task

__all__ = ["Engine", "longest_first"]


class Engine:
    """Trains tasks in fused chunks. One thread at a time.

    model  with keyed dropout; it is copied, never changed
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, form: Form, survey: Survey, strategy: Strategy, device: str
    ):
        self.form, self._recipe, self._survey = form, recipe, survey
        self._is_compiled = strategy.is_compiled
        self._model = with_rules(model) if strategy.inner.startswith("rules") else model
        self._device = device
        self._steps: dict[tuple, StepFn] = {}
        self._eager: StackedStep | None = None
        self.client_steps = self.row_steps = 0

    def run(
        self, tasks: Sequence[Task], queue: deque[Task], n_rows: int, *, pads: bool = False
    ) -> Iterator[list[ClientResult]]:
        """Results as clients end. ``tasks`` are all that ``queue`` holds at first, and give the shapes.

        n_rows  most clients in a step; ``pads``: step so many rows always, even for fewer clients
        """
        sizes = [n_rows] if pads else halves(n_rows) if self._is_compiled else range(1, n_rows + 1)
        run = SlotRun(tasks, queue, self.form, self._step, dict(self._survey.names), sizes, self._device)
        yield from run.results()
        self.client_steps += run.client_steps
        self.row_steps += run.row_steps

    def _step(self, lane: Lane, draw: Tensor, x: Tensor, y: Tensor, w: Tensor, s: Tensors) -> StepOutput:
        if not self._is_compiled:
            if self._eager is None:
                self._eager = StackedStep(self._model, self._recipe, self.form).move(self._device)
            return self._eager(lane, draw, x, y, w, s)
        shape = (len(lane.alive), x.shape, x.dtype, y.shape, y.dtype)
        if shape not in self._steps:
            traced = StackedStep(self._model, self._recipe, self.form).move(self._device).traced
            self._steps[shape] = compile_step(traced, lane, draw, x, y, w, s)
        return self._steps[shape](lane, draw, x, y, w, s)


def longest_first(tasks: Sequence[Task]) -> deque[Task]:
    return deque(sorted(tasks, key=lambda task: -task.batches.n_steps))
