"""Which strategy runs: the one asked for if it can be used here, else what the tuner picks."""

import dataclasses
import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenload._private_files import read_plain, whole_file
from evenload._terminal import log_of
from evenload._version import __version__
from evenload.clients.fused.rules import has_rules
from evenload.clients.spread.dispatch_clients import ClientDispatcher, why_no_streams
from evenload.clients.step.model_traits import ModelTraits, form_of
from evenload.clients.tune.engine_checks import EngineChecks, short_batches, typical_task
from evenload.clients.tune.expected_cost import SHARE, Expectation, WorkSize, expect
from evenload.clients.tune.step_work import count_work
from evenload.clients.tune.tuner import Tuner
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.clients.values.task import ClientTask
from evenload.errors import ConfigError

MOST_BYTES = 1 << 26
log = log_of(__name__)


def kind_of_work(tasks: Sequence[ClientTask]) -> tuple:
    """The parts of tasks that decide which engine may train them and what a step costs; not rates."""
    recipes = list({id(task.recipe): task.recipe for task in tasks}.values())
    first = recipes[0]
    return (
        first.code,
        (first.batch_size, first.epochs, first.steps, first.clip is None, any(r.prox for r in recipes)),
        type(first.optimizer).__name__,
        type(first.optimizer).form([r.optimizer for r in recipes]),  # pyrefly: ignore
        any(task.correction is not None for task in tasks),
    )


class TuningCache:
    """A file of measured plans, read and written as a whole.

    A damaged file or entry counts as missing and is replaced. If the file cannot be written, strategies are
    measured again next time, and training goes on.
    """

    def __init__(self, path: str | Path, model: nn.Module):
        self._path = Path(path)
        self._model = f"{model}|{[(n, tuple(t.shape), str(t.dtype)) for n, t in model.state_dict().items()]}"

    def find(self, tasks: Sequence[ClientTask], rounds: int) -> ClientPlan | None:
        """The plan for such tasks and so many rounds, without its reasons; None if there is none."""
        entry: Any = self._read().get(self._key(tasks, rounds))
        try:
            return ClientPlan(
                Strategy.parse(entry["strategy"]), str(entry["why"]), {}, tuple(entry["probes"])
            )
        except (KeyError, TypeError, ConfigError):  # none, or not one that was written here
            return None

    def keep(self, tasks: Sequence[ClientTask], rounds: int, plan: ClientPlan) -> None:
        """Write the plan for such tasks and so many rounds."""
        page = self._read()
        page[self._key(tasks, rounds)] = {
            "strategy": str(plan.strategy),
            "why": plan.why,
            "probes": list(plan.probes),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self._path, 0o666, is_durable=False) as file:
                file.write(json.dumps(page, indent=1).encode())
        except OSError as error:
            log.warning("strategies are measured anew next time: %s", error)

    def _read(self) -> dict:
        try:
            page = json.loads(read_plain(self._path, MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return page if isinstance(page, dict) else {}

    def _key(self, tasks: Sequence[ClientTask], rounds: int) -> str:
        """A hash of all that measurements depend on; of clients, steps and rounds the power of two."""
        facts = (
            self._model,
            _named(kind_of_work(tasks)),
            str(tasks[0].rows.kind),
            len(tasks).bit_length(),
            sum(task.batches.n_steps for task in tasks).bit_length(),
            rounds.bit_length(),
            (platform.machine(), platform.processor(), len(os.sched_getaffinity(0))),
            [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            (torch.__version__, platform.python_version(), __version__),
        )
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _named(value: Any) -> Any:
    """The value with functions replaced by their names: their identities differ between programs."""
    if isinstance(value, tuple):
        return tuple(map(_named, value))
    return getattr(value, "__qualname__", value)


GROWN = 8  # times the steps that a plan was measured for: then it is measured anew

LOADING_S = 1.0  # seconds for loading torch's compiler, which gradients inside of vmap need
# What is tried next if an inner strategy cannot be used.
NEXT = {
    "rules-compiled": "rules",
    "fused-compiled": "fused",
    "rules": "fused",
    "fused": "eager",
}


class StrategySelector:
    """The plans for one model's clients: how they are trained, for each kind of tasks.

    asked     the strategy that the caller asked for; None for "auto" and "measured"
    rounds    how many calls are to come
    cache     file that remembers measurements, or None
    measures  measure strategies also where the job is too short to repay it
    """

    def __init__(
        self,
        model: nn.Module,
        dispatcher: ClientDispatcher,
        asked: Strategy | None,
        rounds: int,
        cache: str | Path | None,
        measures: bool = False,
    ):
        self._dispatcher, self._asked, self._rounds = dispatcher, asked, rounds
        self._measures = measures
        self._checks = EngineChecks(model, dispatcher)
        self._cache = TuningCache(cache, model) if cache else None
        self._plans: dict[tuple, ClientPlan] = {}
        self._n_steps: dict[tuple, int] = {}  # that each plan was measured for

    def plan(self, tasks: list[ClientTask]) -> ClientPlan:
        """The plan for these tasks; one measurement serves tasks of their kind, number and length."""
        if not tasks:
            return ClientPlan(self._asked or Strategy(), "there was no client to train")
        short = short_batches(tasks)
        key, n_steps = _like(tasks, bool(short)), sum(task.batches.n_steps for task in tasks)
        has_grown = not self._asked and n_steps > GROWN * self._n_steps.get(key, n_steps)
        if key not in self._plans or has_grown:
            self._plans[key] = self._first_usable(self._asked, tasks) if self._asked else self._tune(tasks)
            self._n_steps[key] = n_steps
        plan = self._plans[key]
        if plan.strategy.is_fused and self._checks.why_not_padded(tasks, short) is not None:
            plan = self._first_usable(plan.strategy, tasks)  # batches of these sizes are new
        return dataclasses.replace(plan, solo=self._checks.alone(plan.strategy, tasks))

    def traits(self, tasks: Sequence[ClientTask]) -> ModelTraits | None:
        """The model's traits with this kind of task; None if not even one plain step can be done."""
        return self._checks.traits(tasks)

    def replace(
        self, tasks: list[ClientTask], failed: Strategy, why: str, instead: Strategy | None = None
    ) -> None:
        """Train such tasks by ``instead`` from now on, or by the next best that was measured."""
        key = _like(tasks, bool(short_batches(tasks)))
        plan = self._plans[key]
        reasons = {**plan.reasons, str(failed): why}
        if instead is None:
            measured = sorted(plan.probes, key=lambda row: row["ms per client-step"])
            names = [name for row in measured if (name := str(row["strategy"])) not in reasons]
            instead = Strategy.parse(names[0]) if names else Strategy()
        plan = dataclasses.replace(
            plan, strategy=instead, why=f"instead of {failed}: {why}", reasons=reasons, check=None
        )
        self._plans[key] = plan
        if self._cache and not self._asked:
            self._cache.keep(self._together(tasks), self._rounds, plan)

    def _first_usable(
        self, strategy: Strategy, tasks: list[ClientTask], why: str = "it was asked for"
    ) -> ClientPlan:
        """The strategy, or the first after it in NEXT that can be used here and gives what serial gives."""
        reasons: dict[str, str] = {}
        if strategy.inner == "merged":
            return ClientPlan(
                strategy, f"{why}: one model over all clients' rows, which is not training clients"
            )
        traits = self._checks.traits(tasks)
        if strategy.outer == "streams" and (missing := why_no_streams()):
            reasons["streams"] = missing
            strategy = dataclasses.replace(strategy, outer="threads")
        if traits is not None and traits.draws and strategy.is_threaded:
            reasons["threads"] = "the model draws from generators that threads share"
            strategy = dataclasses.replace(strategy, outer="inline", workers=None)
        while strategy.is_fused:
            result = self._checks.check(strategy, tasks)
            if result.refusal is None:
                return ClientPlan(strategy, why, reasons, check=result.difference)
            reasons[strategy.inner] = result.refusal
            # One client alone is fused to be compiled only: else it is slower than without.
            inner = NEXT[strategy.inner] if strategy.chunk > 1 else "eager"
            strategy = dataclasses.replace(strategy, inner=inner)
        why = f"instead of {next(iter(reasons))}: {next(iter(reasons.values()))}" if reasons else why
        return ClientPlan(strategy, why, reasons)

    def _tune(self, tasks: list[ClientTask]) -> ClientPlan:
        """The plan that the cache remembers for such tasks, else the expected or the measured one."""
        together = self._together(tasks)
        known = self._cache.find(together, self._rounds) if self._cache else None
        if known is not None:
            plan = self._first_usable(known.strategy, tasks, "measured on this machine before")
            return dataclasses.replace(plan, probes=known.probes)
        expected = self._expect(together)
        if not (expected.pays_measuring or self._measures):
            return self._first_usable(expected.strategy, tasks, expected.why)
        plan = Tuner(self._dispatcher, self._checks, together, self._rounds, expected).decide()
        if self._cache:
            self._cache.keep(together, self._rounds, plan)
        if not plan.strategy.is_fused:
            return plan
        return dataclasses.replace(plan, check=self._checks.check(plan.strategy, together).difference)

    def _expect(self, tasks: list[ClientTask]) -> Expectation:
        """What these tasks, which can be in one fused step, are expected to take."""
        model, traits = self._dispatcher.model, self._checks.traits(tasks)
        n_steps = [task.batches.n_steps for task in tasks]
        step = None
        if traits is not None and len(tasks) > 1 and self._rounds * sum(n_steps) * SHARE >= 1:
            with suppress(Exception):  # not every model can be counted
                step = count_work(model, typical_task(tasks))
        is_loading = "torch._dynamo" not in sys.modules and not (traits and traits.has_plain_gradients)
        return expect(
            WorkSize(
                step=step,
                n_clients=len(tasks),
                n_steps=sum(n_steps),
                rounds=self._rounds,
                n_short=len(short_batches(tasks)),
                start_s=LOADING_S if is_loading else 0.0,
                is_even=len(set(n_steps)) == 1,
                is_fusable=traits is not None and traits.refusal is None and not has_rules(model),
                is_shared=traits is not None and _is_shared(traits, tasks),
            )
        )

    def _together(self, tasks: list[ClientTask]) -> list[ClientTask]:
        return self._checks.together(Strategy(inner="fused"), tasks)


def _is_shared(traits: ModelTraits, tasks: list[ClientTask]) -> bool:
    """Is most of what clients start with frozen, and the same for all of them?"""
    form, start = form_of(traits, tasks), tasks[0].start
    own = {own: start[name].numel() for name, own in traits.names.items()}
    return form.shares_frozen and 2 * sum(own[name] for name in form.frozen) > sum(own.values())


def _like(tasks: Sequence[ClientTask], is_padded: bool) -> tuple:
    """A key that is equal for tasks that one plan serves."""
    return kind_of_work(tasks), typical_task(tasks).rows.kind, len(tasks).bit_length(), is_padded
