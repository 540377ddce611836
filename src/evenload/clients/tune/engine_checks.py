"""What may train which clients: traits of the model, and engines compared with serial training, each once."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from evenload.clients.spread.client_worker import intra_op
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.spread.equivalence_check import CheckResult, check_engine, clients_to_check
from evenload.clients.step.model_traits import ModelTraits, find_traits
from evenload.clients.step.padding_probe import PaddingProbe
from evenload.clients.values.data import leaves_of, map_batch
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.clients.values.task import ClientTask
from evenload.errors import quoted

EXAMPLES, CLIENTS = 16, 8  # of so many clients, whose numbers show what padding may be
UNQUOTED = re.compile(r"[\s'\"\\]")  # what a folder's name must be quoted for in a command


class EngineChecks:
    """The checks of one model's engines, on the workers of ``dispatcher``; their results are kept."""

    def __init__(self, model: nn.Module, dispatcher: ClientDispatcher):
        self._model, self._dispatcher = model, dispatcher
        self._traits: dict[tuple, ModelTraits | str] = {}
        self._results: dict[tuple, CheckResult] = {}
        self._probes: dict[tuple, PaddingProbe] = {}

    def traits(self, tasks: Sequence[ClientTask]) -> ModelTraits | None:
        """The model's traits with this kind of task; None if not even one plain step can be done."""
        found = self._traits_or_reason(tasks)
        return None if isinstance(found, str) else found

    def check(self, strategy: Strategy, tasks: Sequence[ClientTask]) -> CheckResult:
        """May the strategy's engine train these tasks? Checked once per engine and number of rows."""
        traits = self._traits_or_reason(tasks)
        if isinstance(traits, str) or traits.refusal is not None:
            return CheckResult(traits if isinstance(traits, str) else traits.refusal)
        if strategy.is_compiled and (missing := why_not_compiled()):
            return CheckResult(missing)
        mixed = self.why_not_padded(tasks, short_batches(tasks))  # and which clients fail
        together = self.together(strategy, tasks)
        worker = self._dispatcher.worker(0, self._dispatcher.device_of(strategy))
        engine = worker.engine(traits, strategy, together)
        n_rows = strategy.rows_for(len(tasks), n_workers(strategy)) if strategy.is_compiled else None
        key = (id(engine), together[0].rows.kind, n_rows, bool(short_batches(together)))
        if key not in self._results:
            with intra_op(self._dispatcher.threads):
                # On the same device: another rounds in other ways, and a CPU may take minutes for a step.
                self._results[key] = check_engine(
                    engine, worker.train_one, clients_to_check(together), n_rows
                )
        result = self._results[key]
        if mixed is None or (result.refusal is not None and result.difference is None):
            return result
        return CheckResult(mixed, result.difference)  # says more than how far it ended from serial

    def why_not_padded(self, tasks: Sequence[ClientTask], short: Mapping[int, ClientTask]) -> str | None:
        """Why a fused step cannot pad short batches of these tasks, or None; see ``short_batches``."""
        traits = self.traits(tasks) if short else None
        if traits is None or traits.refusal is not None:
            return None
        kind = typical_task(tasks).rows.kind
        alike = [task for task in tasks if task.rows.kind == kind]
        short = short if len(alike) == len(tasks) else short_batches(alike)
        if traits.has_norm:  # a batch of one row has no statistics: such clients are trained alone
            short = {n: task for n, task in short.items() if n > 1}
        if not short:
            return None
        if _key(alike[0]) not in self._probes:
            self._probes[_key(alike[0])] = self._probe(alike)
        with intra_op(self._dispatcher.threads):
            return self._probes[_key(alike[0])].why_not(short)

    def _probe(self, tasks: Sequence[ClientTask]) -> PaddingProbe:
        shown = [task.rows.at(np.arange(min(EXAMPLES, len(task.rows)))) for task in tasks[:CLIENTS]]
        xs, ys = zip(*shown, strict=True)
        x = map_batch(lambda *t: torch.cat(t), *xs)
        return PaddingProbe(self._model, tasks[0].recipe, tasks[0].start, x, torch.cat(ys))

    def alone(self, strategy: Strategy, tasks: Sequence[ClientTask]) -> dict[int, str]:
        """Clients that cannot join a fused step with most others, and why."""
        if not strategy.is_fused or not tasks:
            return {}
        traits, kind, alone = self.traits(tasks), typical_task(tasks).rows.kind, {}
        has_norm = traits is not None and traits.has_norm
        probe = self._probes.get(_key(typical_task(tasks)))
        failing = probe.failing() if probe else {}
        for task in tasks:
            if task.rows.kind != kind:
                alone[task.client] = f"its rows have shape {_shape(task)}, other clients' another"
            elif has_norm and (task.batches.counts == 1).any():
                alone[task.client] = "a batch of one row, and the model has batch statistics"
            elif task.rows.has_ignored:
                alone[task.client] = "some of its labels are ignored, so that its rows do not weigh the same"
            elif failing and (reason := failing.get(int(task.batches.counts.min()))):
                alone[task.client] = reason
        return alone

    def together(self, strategy: Strategy, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """The tasks that can be in one fused step; all of them if none can."""
        alone = self.alone(strategy, tasks)
        return [task for task in tasks if task.client not in alone] or list(tasks)

    def _traits_or_reason(self, tasks: Sequence[ClientTask]) -> ModelTraits | str:
        """The reason is what kept one plain step from being done."""
        task = typical_task(tasks)
        key = _key(task)
        if key not in self._traits:
            try:
                self._traits[key] = find_traits(self._model, task)
            except Exception as error:
                self._traits[key] = f"a plain step fails: {type(error).__name__}: {error}".splitlines()[0]
        return self._traits[key]


def _shape(task: ClientTask) -> tuple:
    first = leaves_of(task.rows.x)[0]
    return tuple(first.shape[1:])


def typical_task(tasks: Sequence[ClientTask]) -> ClientTask:
    """The first task whose examples are of the most common kind."""
    first = tasks[0].rows.kind
    if all(task.rows.kind == first for task in tasks):  # as in most jobs; asked for in every round
        return tasks[0]
    kind, _ = Counter(task.rows.kind for task in tasks).most_common(1)[0]
    return next(task for task in tasks if task.rows.kind == kind)


def why_not_compiled() -> str | None:
    """Why torch.compile has nothing to compile with here, or None."""
    program = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # torch tries no other
    if shutil.which(program) is None:
        return f"torch.compile needs a C++ compiler, and there is no {quoted(program)}"
    spec = importlib.util.find_spec("torch")
    caches = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    origin = spec.origin if spec is not None else None
    for folder in (os.path.dirname(origin or ""), caches):
        if UNQUOTED.search(folder):  # torch 2.13 writes folders into commands as they are
            return f"torch.compile needs folders without spaces and quotes, not {quoted(folder)}"
    return None


def short_batches(tasks: Sequence[ClientTask]) -> dict[int, ClientTask]:
    """Numbers of rows of batches that are not full -> a task with one; a client has one such number."""
    distinct = {id(task.batches.counts): task for task in tasks}  # clients of one size share their counts
    least = {int(task.batches.counts.min()): task for task in distinct.values()}
    return {n: task for n, task in least.items() if n < task.recipe.batch_size}


def _key(task: ClientTask) -> tuple:
    return *task.recipe.code, task.recipe.batch_size, task.rows.kind
