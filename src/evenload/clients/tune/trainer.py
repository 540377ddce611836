"""A trainer: one model, and everything that is kept warm for it between calls.

load ──► choose ──► (a fused engine is tried against serial) ──► spread ──► collect or reduce
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenload.clients.algorithms.reduce import Reducer, make_reducer
from evenload.clients.load.load import (
    Loaded,
    Reader,
    State,
    Wanted,
    is_lazy,
    load_tasks,
    recipes_for,
    states_for,
    with_seeds,
)
from evenload.clients.load.merged import train_merged
from evenload.clients.spread.dispatch_clients import Spread
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_probe import Survey
from evenload.clients.tune.strategy_selector import Chooser
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, TrainResult
from evenload.clients.values.strategy import Plan, Strategy, n_workers
from evenload.clients.values.task import Task
from evenload.errors import ConfigError

__all__ = ["Trainer", "template_of"]

WINDOW = 256  # clients that are loaded at a time, if loading is left to functions


class Trainer:
    """Trains clients of one model, call after call; workers, compiled steps and choices stay.

    model     an nn.Module or a function that makes one; it is copied
    strategy  "auto", a text that ``Strategy.parse`` reads, or a Strategy
    devices   what a strategy "devices/..." runs on, as ``evenload.map`` takes it
    seed      with a client's id decides its shuffling and dropout, and what a factory draws
    rounds    how many calls are to come: whether compiling pays depends on it
    threads   torch's own threads per worker; with another number the last bits differ
    cache     file that remembers what "auto" has measured; None: only this trainer remembers it
    Use it in a ``with`` block, or call ``close``.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        *,
        strategy: str | Strategy = "auto",
        devices: Any = "all",
        seed: int = 0,
        rounds: int = 1,
        threads: int = 1,
        cache: str | Path | None = None,
    ):
        if rounds < 1 or threads < 1:
            raise ConfigError(f"rounds={rounds}, threads={threads}: use 1 or more")
        self._model = with_keyed_dropout(template_of(model, seed))
        self._start = {name: t.detach().clone() for name, t in self._model.state_dict().items()}
        named = dict(self._model.named_parameters())
        self._params = {name: self._start[name] for name in named}
        self._trained = [name for name, p in named.items() if p.requires_grad]
        self._seed = seed
        self._reader = Reader(self._model)
        self._spread = Spread(self._model, devices, threads)
        asked = None if strategy == "auto" else Strategy.parse(strategy)
        self._chooser = Chooser(self._model, self._spread, asked, rounds, cache)

    @property
    def model(self) -> nn.Module:
        """The copy that is trained, dropout replaced. Not to be changed."""
        return self._model

    @property
    def start(self) -> dict[str, Tensor]:
        """The state that clients start from unless told otherwise."""
        return dict(self._start)

    def train(
        self,
        datasets: Sequence[Any],
        recipe: Recipe | Sequence[Recipe],
        *,
        start: State | Sequence[State] | None = None,
        ids: Sequence[int] | None = None,
        anchor: State | Sequence[State] | None = None,
        corrections: Sequence[State] | None = None,
        round: int = 0,
        reduce: "str | Reducer | None" = None,
        on_error: str = "raise",
    ) -> TrainResult:
        """Train one model per dataset. See ``evenload.clients.train`` for the arguments."""
        if on_error not in ("raise", "return"):
            raise ConfigError(f"on_error={on_error!r} is unknown", hint="use 'raise' or 'return'")
        wanted = self._wanted(datasets, recipe, start, ids, anchor, corrections)
        reducer = make_reducer(reduce)
        results: dict[int, ClientResult] = {}
        order = {client: at for at, client in enumerate(wanted.ids)}
        plan: Plan | None = None
        reasons: dict[str, str] = {}
        for part in _windows(wanted):
            loaded = load_tasks(self._reader, part, self._seed, round)
            plan = self._chooser.plan(loaded.tasks)
            for batch in self._run(plan, loaded, round, reasons):
                for result in reducer.take(batch) if reducer else batch:
                    results[order[result.client]] = result
        plan = plan or self._chooser.plan([])
        plan = dataclasses.replace(plan, reasons={**plan.reasons, **reasons}) if reasons else plan
        found = TrainResult(tuple(results[at] for at in sorted(results)), plan)
        if reducer:
            try:
                found = dataclasses.replace(found, reduced=reducer.value())
            except ConfigError:
                found.raise_for_failed()  # why nothing is left says more than that nothing is
                raise
        if on_error == "raise":
            found.raise_for_failed()
        return found

    def close(self) -> None:
        self._spread.close()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _wanted(self, datasets, recipe, start, ids, anchor, corrections) -> Wanted:
        if not hasattr(datasets, "__len__"):
            raise ConfigError(
                f"datasets is a {type(datasets).__name__}", hint="give a list with one dataset per client"
            )
        n = len(datasets)
        ids = list(range(n)) if ids is None else [int(i) for i in ids]
        if len(ids) != n or len(set(ids)) != n:
            raise ConfigError(
                f"{n} clients, but {len(set(ids))} different ids", hint="give every client its own id"
            )
        return Wanted(
            datasets,
            recipes_for(recipe, n),
            ids,
            states_for("start", start, n, self._start, self._start),
            states_for("anchor", anchor, n, self._start, None, self._trained),
            states_for("correction", corrections, n, self._params, None, self._trained),
        )

    def _run(
        self, plan: Plan, loaded: Loaded, round: int, reasons: dict[str, str]
    ) -> Iterator[list[ClientResult]]:
        yield loaded.ended
        tasks, strategy = loaded.tasks, plan.strategy
        if not tasks:
            return
        if strategy.inner == "merged":
            yield train_merged(self._spread.bench().model, tasks)
            return
        self._spread.open(strategy)  # devices that are not there are the caller's to hear of
        survey = self._chooser.survey(tasks)
        if not isinstance(survey, str) and survey.draws:
            tasks = with_seeds(tasks, self._seed, round)
        together = [task for task in tasks if task.client not in plan.solo]
        alone = [task for task in tasks if task.client in plan.solo]
        yield from self._spread.run(Strategy(), None, alone, 1)
        known = None if isinstance(survey, str) else survey
        learn = functools.partial(self._chooser.learn, loaded.tasks)
        yield from self._to_the_end(strategy, known, together, reasons, learn)

    def _to_the_end(
        self,
        strategy: Strategy,
        survey: Survey | None,
        tasks: list[Task],
        reasons: dict[str, str],
        learn: Callable[..., None],
    ) -> Iterator[list[ClientResult]]:
        """Nothing that has ended is lost.

        Out of memory: the rest again in chunks of half the size, as nothing depends on the chunk. Any other
        trouble of a strategy: the rest serially, where a bad client harms no other; ``reasons`` say so. What
        the strategy itself is to blame for, as no client is, is remembered.
        """
        statuses: dict[int, str] = {}
        blamed: tuple[Strategy, str] | None = None
        was_through: set[int] = set()
        while True:
            rest = [task for task in tasks if task.client not in statuses]
            try:
                for batch in self._spread.run(strategy, survey, rest, n_workers(strategy)):
                    statuses.update({result.client: result.status for result in batch})
                    yield batch
                break
            except Exception as error:
                if strategy == Strategy():
                    raise
                is_memory, trouble = (
                    _is_memory_error(error),
                    f"{type(error).__name__}: {error}".splitlines()[0],
                )
            # The exception is gone by now, and with its traceback the tensors of the run that failed.
            if is_memory and strategy.rows > 1:
                halved = dataclasses.replace(strategy, chunk=-(-strategy.chunk // 2))
                reasons[str(strategy)] = f"out of memory; the others went on as {halved}"
                learn(strategy, "out of memory", halved)
                strategy = halved
            else:
                reasons[str(strategy)] = f"it ended with {trouble}; the other clients were trained serially"
                blamed = strategy, f"it ended with {trouble}"
                strategy = Strategy()
                was_through = set(statuses)
        if blamed and all(s != "failed" for c, s in statuses.items() if c not in was_through):
            learn(*blamed)


def template_of(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """A private copy; a factory is called with torch's generator at ``seed``. ConfigError for neither."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(
            f"the model is a {type(model).__name__}", hint="give an nn.Module, or a function that makes one"
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the model's factory returned a {type(made).__name__}", hint="return an nn.Module")
    return made


def _windows(wanted: Wanted) -> Iterator[Wanted]:
    """All at once if the examples are there; in parts if functions are to load them."""
    n = len(wanted)
    size = WINDOW if any(is_lazy(d) for d in wanted.datasets) else max(1, n)
    for at in range(0, n, size):
        parts = {f.name: getattr(wanted, f.name)[at : at + size] for f in dataclasses.fields(wanted)}
        yield Wanted(**parts)


def _is_memory_error(error: BaseException) -> bool:
    """Also one that a worker process tells of: then its type is part of the text."""
    text = str(error).lower()
    said = any(part in text for part in ("out of memory", "not enough memory", "memoryerror"))
    return isinstance(error, MemoryError) or said
