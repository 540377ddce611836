"""A trainer: one model, and everything that is kept warm for it between calls.

load ──► select a strategy ──► (compare its engine with serial training) ──► dispatch ──► collect or reduce
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from evenload._arguments import folder, sequence, whole
from evenload._closing import Closing
from evenload.clients.algorithms.reduce import Reducer, make_reducer
from evenload.clients.generators import seeded
from evenload.clients.load.datasets import is_lazy
from evenload.clients.load.load import (
    ClientInputs,
    DatasetReader,
    LoadedClients,
    load_tasks,
    recipes_for,
    states_for,
)
from evenload.clients.load.merged import train_merged
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.function_state import SharedByClients
from evenload.clients.step.model_traits import ModelTraits
from evenload.clients.step.module_state import copy_model, refuse_unreadable
from evenload.clients.step.objective import has_bfloat16_lstm
from evenload.clients.tune.strategy_selector import StrategySelector
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, TrainResult
from evenload.clients.values.strategy import ClientPlan, Strategy, n_workers
from evenload.clients.values.task import ClientTask, State, TrainOptions
from evenload.errors import ConfigError

WINDOW = 256  # clients that are loaded at a time, if loading is left to functions


class Trainer(Closing):
    """A trainer of one model's clients, call after call; workers, compiled steps and plans are kept.

    model     an nn.Module or a function that makes one; it is copied
    strategy  "auto"; "measured", which measures strategies however short the job is; a text that
              ``Strategy.parse`` reads, or a Strategy
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
        rounds, threads = whole("rounds", rounds, least=1, most=None), whole("threads", threads, least=1)
        seed = whole("seed", seed, least=-(2**63), most=2**63 - 1)
        cache = Path(folder("cache", cache)) if cache is not None else None
        template = template_of(model, seed)
        refuse_unreadable(template)
        self._model = with_keyed_dropout(template)
        self._start = {name: t.detach().clone() for name, t in self._model.state_dict().items()}
        named = dict(self._model.named_parameters())
        self._params = {name: self._start[name] for name in named}
        self._trained = [name for name, p in named.items() if p.requires_grad]
        self._seed = seed
        self._reader = DatasetReader(self._model)
        self._dispatcher = ClientDispatcher(self._model, devices, threads)
        is_named = isinstance(strategy, str) and strategy in ("auto", "measured")
        asked = None if is_named else Strategy.parse(strategy)
        measures = is_named and strategy == "measured"
        self._selector = StrategySelector(self._model, self._dispatcher, asked, rounds, cache, measures)

    @property
    def model(self) -> nn.Module:
        """The copy that is trained, dropout replaced. Not to be changed."""
        return self._model

    @property
    def start(self) -> dict[str, Tensor]:
        """A copy of the state that clients start from unless told otherwise."""
        return {name: t.clone() for name, t in self._start.items()}

    def counts_draws(self, recipe: Recipe) -> bool:
        """Did clients draw numbers that are counted (dropout, ``torch.rand``, augmentation), not torch's?"""
        return self._reader.draws([recipe])

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
        options = TrainOptions.among(locals())
        return self.train_with(datasets, recipe, options)

    def train_with(
        self, datasets: Sequence[Any], recipe: Recipe | Sequence[Recipe], options: TrainOptions
    ) -> TrainResult:
        """``train`` with all options as one value."""
        inputs = self._inputs(datasets, recipe, options)
        reducer = make_reducer(options.reduce)
        results: dict[int, ClientResult] = {}
        order = {client: at for at, client in enumerate(inputs.ids)}
        plan: ClientPlan | None = None
        reasons: dict[str, str] = {}
        has_tasks, has_trained, n_fresh = False, False, 0
        for part in _windows(inputs):
            loaded = load_tasks(self._reader, part, self._seed, options.round)
            if loaded.tasks or plan is None:
                plan = self._selector.plan(loaded.tasks)
            has_tasks = has_tasks or bool(loaded.tasks)
            n_fresh += sum(task.is_fresh for task in loaded.tasks)
            for batch in self._train_loaded(plan, loaded, options.round, reasons):
                has_trained = has_trained or any(r.status != "failed" and len(r.losses) for r in batch)
                for result in reducer.take(batch) if reducer else batch:
                    results[order[result.client]] = result
        plan = plan or self._selector.plan([])
        causes = _causes([results[at] for at in sorted(results)]) if results else ""
        if results and not has_tasks:
            plan = dataclasses.replace(plan, why=f"{plan.why}: {causes}")
        elif causes and not has_trained:
            plan = dataclasses.replace(plan, failure=causes)
        plan = dataclasses.replace(plan, reasons={**plan.reasons, **reasons}) if reasons else plan
        plan = dataclasses.replace(plan, notes=tuple(_notes(self.model, inputs, n_fresh)))
        found = TrainResult(tuple(results[at] for at in sorted(results)), plan)
        if reducer:
            try:
                found = dataclasses.replace(found, reduced=reducer.value())
            except ConfigError:
                found.raise_for_failed()  # a failed client says more than that there is nothing to reduce
                raise
        if options.on_error == "raise":
            found.raise_for_failed()
        return found

    def close(self) -> None:
        self._dispatcher.close()

    def _inputs(
        self, datasets: Any, recipe: Recipe | Sequence[Recipe], options: TrainOptions
    ) -> ClientInputs:
        """The checked inputs of each client. Raises ConfigError for what cannot be used."""
        is_listed = hasattr(datasets, "__len__") and hasattr(datasets, "__getitem__")
        if isinstance(datasets, Mapping) or not is_listed:
            hint = "list(datasets.values())" if isinstance(datasets, Mapping) else "one dataset per client"
            raise ConfigError(f"datasets is a {type(datasets).__name__}", hint=f"give a list: {hint}")
        n = len(datasets)
        given = range(n) if options.ids is None else sequence("ids", options.ids)
        ids = [whole("an id", one, least=-(2**63), most=2**63 - 1) for one in given]
        if len(ids) != n or len(set(ids)) != n:
            raise ConfigError(
                f"{n} clients, but {len(set(ids))} different ids", hint="give every client its own id"
            )
        return ClientInputs(
            datasets,
            recipes_for(recipe, n),
            ids,
            states_for("start", options.start, n, self._start, self._start),
            states_for("anchor", options.anchor, n, self._start, None, self._trained),
            states_for("correction", options.corrections, n, self._params, None, self._trained),
        )

    def _train_loaded(
        self, plan: ClientPlan, loaded: LoadedClients, round: int, reasons: dict[str, str]
    ) -> Iterator[list[ClientResult]]:
        """Results of all loaded clients as they end; ``reasons`` gets why another strategy was taken."""
        yield loaded.ended
        tasks, strategy = loaded.tasks, plan.strategy
        if not tasks:
            return
        if strategy.inner == "merged":
            yield train_merged(self._dispatcher.worker().model, tasks)
            return
        self._dispatcher.open(strategy)  # an error about missing devices is for the caller
        traits = self._selector.traits(tasks)
        if traits is not None and traits.draws:
            tasks = [dataclasses.replace(task, draws=True) for task in tasks]
        together = [task for task in tasks if task.client not in plan.solo]
        alone = [task for task in tasks if task.client in plan.solo]
        yield from self._dispatcher.dispatch(Strategy(), None, alone, 1)
        replace = functools.partial(self._selector.replace, loaded.tasks)
        yield from self._train_with_fallback(strategy, traits, together, reasons, replace)

    def _train_with_fallback(
        self,
        strategy: Strategy,
        traits: ModelTraits | None,
        tasks: list[ClientTask],
        reasons: dict[str, str],
        replace: Callable[..., None],
    ) -> Iterator[list[ClientResult]]:
        """Train all tasks, by another strategy where one fails; no client that has ended is trained again.

        Out of memory: the others in chunks of half the size, which changes no result. Any other exception:
        the others serially, where a bad client harms no other. A strategy that failed though no client did is
        replaced for later calls.
        """
        statuses: dict[int, str] = {}
        blamed: tuple[Strategy, str] | None = None
        ended_before: set[int] = set()
        while True:
            rest = [task for task in tasks if task.client not in statuses]
            try:
                for batch in self._dispatcher.dispatch(strategy, traits, rest, n_workers(strategy)):
                    statuses.update({result.client: result.status for result in batch})
                    yield batch
                break
            except Exception as error:
                if strategy == Strategy() or isinstance(error, SharedByClients):
                    raise
                is_memory, trouble = _is_memory_error(error), f"it ended with {_first_line(error)}"
            # The exception is gone by now, and with its traceback the tensors of the run that failed.
            if is_memory and strategy.rows > 1:
                halved = dataclasses.replace(strategy, chunk=-(-strategy.chunk // 2))
                reasons[str(strategy)] = f"out of memory; the others went on as {halved}"
                replace(strategy, "out of memory", halved)
                strategy = halved
            else:
                reasons[str(strategy)] = f"{trouble}; the other clients were trained serially"
                blamed, strategy, ended_before = (strategy, trouble), Strategy(), set(statuses)
        if blamed and all(s != "failed" for c, s in statuses.items() if c not in ended_before):
            replace(*blamed)


def template_of(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """A private copy; a factory is called with generators seeded by ``seed``. ConfigError for neither."""
    if isinstance(model, nn.Module):
        return copy_model(model)
    if not callable(model):
        raise ConfigError(
            f"the model is a {type(model).__name__}", hint="give an nn.Module, or a function that makes one"
        )
    with seeded(seed):
        made = model()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the model's factory returned a {type(made).__name__}", hint="return an nn.Module")
    if any(isinstance(v, Tensor) and not v.is_leaf for m in made.modules() for v in vars(m).values()):
        return copy_model(made)  # says which attribute it is
    return made


def _windows(inputs: ClientInputs) -> Iterator[ClientInputs]:
    """The inputs of all clients at once, or of WINDOW clients at a time if functions are to load them."""
    n = len(inputs)
    size = WINDOW if any(is_lazy(d) for d in inputs.datasets) else max(1, n)
    for at in range(0, n, size):
        parts = {f.name: getattr(inputs, f.name)[at : at + size] for f in dataclasses.fields(inputs)}
        yield ClientInputs(**parts)


def _causes(results: Sequence[ClientResult]) -> str:
    """Why none of these clients was trained: the first one's reason, and how many others there are."""
    first = next((result for result in results if result.error is not None), results[0])
    error = _first_line(first.error) if first.error is not None else "it has no rows"
    more = f" (and {len(results) - 1} more)" if len(results) > 1 else ""
    return f"client {first.client}: {error}{more}"


def _notes(model: nn.Module, inputs: ClientInputs, n_fresh: int) -> Iterator[str]:
    """What a reader of the plan should know of the datasets and of this processor."""
    if n_fresh:
        yield (
            f"{n_fresh} of {len(inputs)} datasets were read again in each epoch: they give other examples"
            " each time (Recipe(augment=fn) augments without reading again)"
        )
    is_lower = any(recipe.precision is not None for recipe in inputs.recipes)
    if is_lower and any(isinstance(m, nn.LSTM) for m in model.modules()) and not has_bfloat16_lstm():
        yield (
            "on this CPU the LSTM is computed by torch's plain kernels: oneDNN has none in bfloat16 for it; "
            "precision=None may be faster"
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _is_memory_error(error: BaseException) -> bool:
    """Is it out of memory? A worker process's error has its type in the text only."""
    text = str(error).lower()
    said = any(part in text for part in ("out of memory", "not enough memory", "memoryerror"))
    return isinstance(error, MemoryError) or said
