"""Federated rounds: draw a cohort, train it, aggregate, evaluate, write a checkpoint; again.

Everything in a round follows from (seed, round) and the server's state, so a run that was stopped and resumed
is bit for bit the run that was not.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenload._arguments import suggests_arguments, whole
from evenload._private_files import plain_file, whole_file
from evenload.clients.algorithms import FedAvg, FedBuff, PrivateFedAvg, Server
from evenload.clients.algorithms.base import Orders, usable
from evenload.clients.algorithms.cohort import Cohort
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.evaluation import evaluate
from evenload.clients.load.datasets import size_of
from evenload.clients.trainer import Trainer
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.clients.values.task import TrainOptions
from evenload.errors import ConfigError, FormatError, quoted, reason_of

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a federation: who took part, who came back, and how it went.

    loss     mean of the returned clients' last batch losses, weighted by rows; NaN if nobody came back
    test     what ``evaluate`` gave for the global model, if it was evaluated in this round
    failed   client -> what went wrong, for those that failed or diverged
    """

    round: int
    cohort: tuple[int, ...]
    returned: tuple[int, ...]
    loss: float
    seconds: float
    test: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FederatedResult:
    """The outcome of a federation.

    state   the global model
    server  the state with the algorithm's memory
    plan    how clients were trained
    """

    state: dict[str, Tensor]
    server: Server
    history: tuple[Round, ...]
    plan: ClientPlan | None


@suggests_arguments
def federate(
    model: nn.Module | Callable[[], nn.Module],
    datasets: Sequence[Any],
    recipe: Recipe,
    algorithm: Any = None,
    *,
    rounds: int,
    cohort: Cohort | int | float | None = None,
    test: Any = None,
    evaluate_every: int = 1,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
    exact: bool = False,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Round], None] | None = None,
) -> FederatedResult:
    """Train a global model over ``datasets``, one per client.

    algorithm       a value of ``evenload.clients.algorithms``; FedAvg by default
    rounds          in all, those before a resumed checkpoint included
    cohort          how many clients take part in a round, or a Cohort
    test            examples for the global model, of any kind that a client may have
    exact           the same weights, bit for bit, on any number of devices and in whatever order clients end;
                    needs a strategy that trains one client at a time
    checkpoint      file written after every round; ``resume`` begins after the last round in it
    Raises ConfigError for arguments that cannot be used, FormatError for a checkpoint of something else.
    A client that fails, diverges or is empty is left out of its round, which says why.
    """
    algorithm = FedAvg() if algorithm is None else algorithm
    rule = cohort if isinstance(cohort, Cohort) else Cohort(size=cohort)
    _check(algorithm, rule, rounds, evaluate_every, len(datasets))
    if exact and (str(strategy) in ("auto", "measured") or Strategy.parse(strategy).grade != "bitwise"):
        raise ConfigError(
            f"exact=True with strategy={quoted(str(strategy))}: clients that share a step have other bits",
            hint='use "serial", "processes/eager" or "devices/eager"',
        )
    with Trainer(model, strategy=strategy, devices=devices, seed=seed, rounds=rounds) as trainer:
        run = _FederatedRun(trainer, datasets, recipe, algorithm, rule, seed, exact)
        server = run.begin()
        saved = _Checkpoint(None if checkpoint is None else Path(checkpoint), run.made_with(server))
        server, history = (saved.load() if resume else None) or (server, [])
        while server.round < rounds:
            server, done = run.round(server)
            is_due = done.round % evaluate_every == evaluate_every - 1 or done.round == rounds - 1
            if test is not None and is_due:
                done = dataclasses.replace(done, test=evaluate(trainer.model, server.state, test, recipe))
            history.append(done)
            saved.save(server, history)
            if on_round is not None:
                on_round(done)
        return FederatedResult(server.state, server, tuple(history), run.plan)


def _check(algorithm: Any, rule: Cohort, rounds: int, evaluate_every: int, n_clients: int) -> None:
    """Raise ConfigError for arguments that cannot be used."""
    whole("rounds", rounds, least=1, most=None)
    whole("evaluate_every", evaluate_every, least=1, most=None)
    if not n_clients:
        raise ConfigError("there are no clients", hint="give a dataset for each")
    acts = (getattr(algorithm, name, None) for name in ("init", "orders", "step"))
    if isinstance(algorithm, type) or not all(map(callable, acts)):
        raise ConfigError(
            f"algorithm={quoted(algorithm)} is no algorithm",
            hint="give a value of evenload.clients.algorithms, such as FedAvg()",
        )
    if isinstance(rule.size, int) and rule.size > n_clients:
        warnings.warn(
            f"a cohort of {rule.size}, but there are {n_clients} clients: all take part", stacklevel=3
        )
    if isinstance(algorithm, PrivateFedAvg) and rule.poisson and algorithm.expected is None:
        raise ConfigError(
            "Poisson cohorts differ in size, and dividing by it would tell who came",
            hint=f"give PrivateFedAvg(expected=...): {rule.size} x {n_clients} clients",
        )


@dataclass(slots=True)
class _FederatedRun:
    """A federation under way: its trainer, its clients, and how the last round trained them."""

    trainer: Trainer
    datasets: Sequence[Any]
    recipe: Recipe
    algorithm: Any
    rule: Cohort
    seed: int
    is_exact: bool
    plan: ClientPlan | None = None

    def begin(self) -> Server:
        params = tuple(name for name, p in self.trainer.model.named_parameters() if p.requires_grad)
        return self.algorithm.init(Server(self.trainer.start, params, len(self.datasets), seed=self.seed))

    def made_with(self, server: Server) -> str:
        """A text of all that a checkpoint must have been made with to be resumed here."""
        shapes = {name: tuple(t.shape) for name, t in server.state.items()}
        parts = (self.algorithm, self.recipe, self.rule)
        fixed = (self.seed, len(self.datasets), shapes, str(self.trainer.model))
        return repr((*(_named(part) for part in parts), *fixed, *(["exact"] if self.is_exact else [])))

    def round(self, server: Server) -> tuple[Server, Round]:
        began = time.perf_counter()
        if isinstance(self.algorithm, FedBuff):
            server = self.algorithm.fill(server, {i: self._seconds(i) for i in range(server.n_clients)})
            ids = [entry[2] for entry in self.algorithm.next_to_return(server)]
            back = ids
        else:
            ids = self.rule.draw(server.n_clients, self.seed, server.round)
            came = self.rule.returns(ids, [self._steps(i) for i in ids], self.seed, server.round)
            back = [i for i, is_back in zip(ids, came, strict=True) if is_back]
        passes, results, failed = [], [], {}
        orders: list[Orders] = self.algorithm.orders(server, back, self.recipe) if back else []
        for number, order in enumerate(orders):
            trained = self._train(order, back, server.round * 8 + number)
            results = results or [r for r in trained if r.is_usable]
            failed |= {r.client: _reason(r) for r in trained if r.status in ("failed", "diverged")}
            passes.append(trained.reduced if order.reduce is not None else usable(trained))
            self.plan = trained.plan
        acts = bool(results) or getattr(self.algorithm, "acts_alone", False)
        fresh = self.algorithm.step(server, passes, self.recipe) if acts else server.after(server.state)
        fresh = self._with_ties(fresh)
        seconds = time.perf_counter() - began
        names = tuple(r.client for r in results)
        return fresh, Round(
            server.round, tuple(ids), names, _mean_loss(results), seconds, failed=dict(sorted(failed.items()))
        )

    def _with_ties(self, server: Server) -> Server:
        """Copy tied parameters to their other names: algorithms know the first one only."""
        own: dict[int, str] = {}
        state = dict(server.state)
        for name, t in self.trainer.model.state_dict(keep_vars=True).items():
            state[name] = state[own.setdefault(id(t), name)]
        return dataclasses.replace(server, state=state)

    def _train(self, order: Orders, ids: list[int], round: int) -> Any:
        reduce = order.reduce
        if self.is_exact and isinstance(reduce, Mean):
            reduce = reduce.exactly()
        reducer = _Tolerant(reduce) if reduce is not None else None
        options = TrainOptions(
            start=order.start,
            ids=ids,
            anchor=order.anchor,
            corrections=order.corrections,
            round=round,
            reduce=reducer,
            on_error="return",
        )
        return self.trainer.train_with([self.datasets[i] for i in ids], order.recipe, options)

    def _steps(self, client: int) -> int:
        return self.recipe.n_steps(size_of(self.datasets[client]) or 1)

    def _seconds(self, client: int) -> float:
        return self.rule.seconds(client, self._steps(client))


class _Tolerant:
    """A reducer whose value is None if no client ended well: the round then changes nothing."""

    def __init__(self, inner: Any):
        self._inner, self._any = inner, False

    def take(self, results: Sequence[ClientResult]) -> Any:
        self._any = self._any or any(r.is_usable for r in results)
        return self._inner.take(results)

    def value(self) -> Any:
        return self._inner.value() if self._any else None


def _named(value: Any) -> str:
    """Like repr, with functions by their names: their addresses differ between processes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ", ".join(f"{f.name}={_named(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({fields})"
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


def _reason(result: ClientResult) -> str:
    return str(result.error) if result.error is not None else f"{result.status} after {result.steps} steps"


def _mean_loss(results: Sequence[ClientResult]) -> float:
    rows = sum(r.n_rows for r in results)
    return float(np.sum([r.losses[-1] * r.n_rows for r in results]) / rows) if rows else float("nan")


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A file that holds a federation between two rounds; none if ``path`` is None.

    made_with  text of all that the federation depends on; another one's file is refused
    """

    path: Path | None
    made_with: str

    def save(self, server: Server, history: list[Round]) -> None:
        """Write the file whole or not at all: beside, flushed to disk, then renamed."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fields = {f.name: getattr(server, f.name) for f in dataclasses.fields(server)}
        rounds = [dataclasses.asdict(r) for r in history]
        with whole_file(self.path, 0o666) as file:
            torch.save({"format": FORMAT, "mark": self.made_with, "server": fields, "history": rounds}, file)

    def load(self) -> tuple[Server, list[Round]] | None:
        """What the file holds; None if there is none. Raises FormatError for a file of something else."""
        if self.path is None or not self.path.exists():
            return None
        try:
            with plain_file(self.path) as file:
                page = torch.load(file, weights_only=True)
        except Exception as error:
            raise FormatError(
                f"{self.path} is not a checkpoint: {type(error).__name__}: {reason_of(error)}"
            ) from error
        if not isinstance(page, dict) or page.get("format") != FORMAT:
            raise FormatError(f"{self.path} is not a checkpoint of this version")
        if page["mark"] != self.made_with:
            raise FormatError(
                f"{self.path} belongs to another run: its model, recipe, algorithm, cohort or seed differ",
                hint="resume with the same arguments, or name another checkpoint",
            )
        return Server(**page["server"]), [Round(**r) for r in page["history"]]
