"""A trainer: one model, and everything that is kept warm for it between calls.

load ──► choose ──► (a fused engine is tried against serial) ──► spread ──► collect or reduce
"""

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenload.errors import ConfigError

from .bench import intra_op
from .dropout import with_keyed_dropout
from .load import Loaded, State, Wanted, load_tasks, recipes_for, states_for, with_seeds
from .merged import train_merged
from .recipe import Recipe
from .reduce import Reducer, make_reducer
from .result import ClientResult, TrainResult
from .spread import Spread
from .strategy import Plan, Strategy
from .survey import Survey, survey_model
from .task import Task
from .trial import Trial, sample, try_engine

__all__ = ["Trainer", "template_of"]

WINDOW = 256  # clients that are loaded at a time, if loading is left to functions
# What is tried next if an inner strategy cannot be used.
NEXT = {
    "rules-compiled": "rules",
    "fused-compiled": "fused",
    "rules": "fused",
    "compiled": "eager",
    "fused": "eager",
}


class Trainer:
    """Trains clients of one model, call after call; workers, compiled steps and choices stay.

    model     an nn.Module or a function that makes one; it is copied
    strategy  "auto", a text that ``Strategy.parse`` reads, or a Strategy
    devices   what a strategy "devices/..." runs on, as ``evenload.map`` takes it
    seed      with a client's id decides its shuffling and dropout, and what a factory draws
    rounds    how many calls are to come: whether compiling pays depends on it
    threads   torch's own threads per worker; with another number the last bits differ
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
    ):
        if rounds < 1 or threads < 1:
            raise ConfigError(f"rounds={rounds}, threads={threads}: use 1 or more")
        self._asked = None if strategy == "auto" else Strategy.parse(strategy)
        self._model = with_keyed_dropout(template_of(model, seed))
        self._start = {name: t.detach().clone() for name, t in self._model.state_dict().items()}
        self._seed, self._rounds = seed, rounds
        self._spread = Spread(self._model, devices, threads)
        self._surveys: dict[tuple, Survey | str] = {}
        self._trials: dict[tuple, Trial] = {}
        self._choices: dict[tuple, Plan] = {}

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
        for part in _windows(wanted):
            loaded = load_tasks(self._model, part, self._seed, round)
            plan = self._plan(loaded.tasks, part.recipes[0]) if plan is None or not plan.solo else plan
            plan = dataclasses.replace(plan, solo=self._solo(plan.strategy, loaded.tasks))
            for batch in self._run(plan, loaded, round):
                for result in reducer.take(batch) if reducer else batch:
                    results[order[result.client]] = result
        plan = plan or Plan(self._asked or Strategy(), "there was no client")
        found = TrainResult(
            tuple(results[at] for at in sorted(results)), plan, reducer.value() if reducer else None
        )
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
        n = len(datasets)
        ids = list(range(n)) if ids is None else [int(i) for i in ids]
        if len(ids) != n or len(set(ids)) != n:
            raise ConfigError(
                f"{n} clients, but {len(set(ids))} different ids", hint="give every client its own id"
            )
        params = {name: self._start[name] for name, _ in self._model.named_parameters()}
        return Wanted(
            datasets,
            recipes_for(recipe, n),
            ids,
            states_for("start", start, n, self._start, self._start),
            states_for("anchor", anchor, n, self._start, None, is_whole=False),
            states_for("correction", corrections, n, params, None, is_whole=False),
        )

    def _run(self, plan: Plan, loaded: Loaded, round: int) -> Iterator[list[ClientResult]]:
        yield loaded.ended
        tasks, strategy = loaded.tasks, plan.strategy
        if not tasks:
            return
        if strategy.inner == "merged":
            yield train_merged(self._spread.bench().model, tasks)
            return
        survey = self._survey(tasks)
        if not isinstance(survey, str) and survey.draws:
            tasks = with_seeds(tasks, self._seed, round)
        together = [task for task in tasks if task.client not in plan.solo]
        alone = [task for task in tasks if task.client in plan.solo]
        yield from self._spread.run(Strategy(), None, alone, 1)
        known = None if isinstance(survey, str) else survey
        yield from self._with_room(strategy, known, together)

    def _with_room(
        self, strategy: Strategy, survey: Survey | None, tasks: list[Task]
    ) -> Iterator[list[ClientResult]]:
        """Out of memory: the rest again in chunks of half the size. Nothing depends on the chunk."""
        done: set[int] = set()
        try:
            for batch in self._spread.run(strategy, survey, tasks, self._n_workers(strategy)):
                done.update(result.client for result in batch)
                yield batch
        except (MemoryError, RuntimeError) as error:
            if not _is_memory_error(error) or strategy.rows == 1:
                raise
            rest = [task for task in tasks if task.client not in done]
            yield from self._with_room(
                dataclasses.replace(strategy, chunk=-(-strategy.chunk // 2)), survey, rest
            )

    def _n_workers(self, strategy: Strategy) -> int:
        return strategy.workers or len(os.sched_getaffinity(0)) if strategy.outer != "inline" else 1

    def _survey(self, tasks: Sequence[Task]) -> Survey | str:
        """Of this kind of task; a text if not even one plain step can be done."""
        task = tasks[0]
        key = (task.recipe.loss, task.recipe.step is None, task.rows.x.shape[1:], task.rows.x.dtype)
        if key not in self._surveys:
            try:
                self._surveys[key] = survey_model(self._model, task)
            except Exception as error:
                self._surveys[key] = f"a plain step fails: {type(error).__name__}: {error}".splitlines()[0]
        return self._surveys[key]

    def _solo(self, strategy: Strategy, tasks: Sequence[Task]) -> dict[int, str]:
        """Clients that cannot join a fused step with the first one."""
        if not strategy.takes_chunks or not tasks:
            return {}
        survey = self._survey(tasks)
        first, solo = tasks[0].rows, {}
        for task in tasks:
            own = task.rows
            if (own.x.shape[1:], own.x.dtype, own.y.shape[1:], own.y.dtype) != (
                first.x.shape[1:],
                first.x.dtype,
                first.y.shape[1:],
                first.y.dtype,
            ):
                solo[task.client] = f"its rows have shape {tuple(own.x.shape[1:])}, other clients' another"
            elif isinstance(survey, Survey) and survey.has_norm and (task.batches.counts == 1).any():
                solo[task.client] = "a batch of one row, and the model has batch statistics"
        return solo

    def _plan(self, tasks: list[Task], recipe: Recipe) -> Plan:
        if not tasks:
            return Plan(self._asked or Strategy(), "no client can be trained")
        if self._asked is None:
            return self._settle(Strategy(), "serial", tasks)
        return self._settle(self._asked, "it was asked for", tasks)

    def _settle(self, strategy: Strategy, why: str, tasks: list[Task]) -> Plan:
        """The strategy, or the next one that can be used here and gives what serial gives."""
        reasons: dict[str, str] = {}
        if strategy.inner == "merged":
            return Plan(strategy, f"{why}: one model over all clients' rows, which is not training clients")
        survey = self._survey(tasks)
        if isinstance(survey, Survey) and survey.draws and strategy.outer == "threads":
            reasons["threads"] = "the model draws from torch's own generator, which threads share"
            strategy = dataclasses.replace(strategy, outer="inline")
        while strategy.takes_chunks:
            trial = self._trial(strategy, tasks)
            if trial.refusal is None:
                return Plan(strategy, why, reasons, check=trial.difference)
            reasons[strategy.inner] = trial.refusal
            strategy = dataclasses.replace(strategy, inner=NEXT[strategy.inner])
        why = f"instead of {next(iter(reasons))}: {next(iter(reasons.values()))}" if reasons else why
        return Plan(strategy, why, reasons)

    def _trial(self, strategy: Strategy, tasks: list[Task]) -> Trial:
        survey = self._survey(tasks)
        if isinstance(survey, str):
            return Trial(survey)
        if survey.refusal is not None:
            return Trial(survey.refusal)
        if strategy.is_compiled and (missing := why_not_compiled()):
            return Trial(missing)
        solo = self._solo(strategy, tasks)
        chosen = sample([task for task in tasks if task.client not in solo] or tasks)
        bench = self._spread.bench()
        engine = bench.engine(survey, strategy, chosen)
        n_rows = strategy.rows_for(len(tasks), self._n_workers(strategy)) if strategy.is_compiled else 1
        key = (id(engine), chosen[0].rows.x.shape[1:], n_rows)
        if key not in self._trials:
            with intra_op(self._spread.threads):
                self._trials[key] = try_engine(engine, bench.model, chosen, n_rows)
        return self._trials[key]


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


def why_not_compiled() -> str | None:
    """Why torch.compile has nothing to compile with here, or None."""
    import shutil

    if os.environ.get("CXX") or any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return None
    return "torch.compile needs a C++ compiler, and none is installed"


def _windows(wanted: Wanted) -> Iterator[Wanted]:
    """All at once if the examples are there; in parts if functions are to load them."""
    n = len(wanted)
    is_lazy = any(callable(d) and not hasattr(d, "__getitem__") for d in wanted.datasets)
    size = WINDOW if is_lazy else max(1, n)
    for at in range(0, n, size):
        parts = {f.name: getattr(wanted, f.name)[at : at + size] for f in dataclasses.fields(wanted)}
        yield Wanted(**parts)


def _is_memory_error(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text
