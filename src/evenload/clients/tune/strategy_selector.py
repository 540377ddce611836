"""Which strategy runs: the one asked for if it can be used here, else what the tuner picks."""

import dataclasses
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from evenload.clients.spread.dispatch_clients import Spread
from evenload.clients.spread.engine_cache import intra_op
from evenload.clients.spread.equivalence_check import Trial, count_operations, sample, try_engine
from evenload.clients.spread.streams import why_no_streams
from evenload.clients.step.model_probe import Survey, survey_model
from evenload.clients.tune.tuner import Tuner, Verdict
from evenload.clients.tune.tuning_cache import TuningCache, kind_of_work
from evenload.clients.values.strategy import Plan, Strategy, n_workers
from evenload.clients.values.task import Task

__all__ = ["Chooser", "why_not_compiled"]

GROWN = 8  # times the steps it was measured for, and a choice is made anew: what was not worth it may be now

# What is tried next if an inner strategy cannot be used.
NEXT = {
    "rules-compiled": "rules",
    "fused-compiled": "fused",
    "rules": "fused",
    "compiled": "eager",
    "fused": "eager",
}


class Chooser:
    """Plans for one model. ``asked`` is None for "auto"; ``rounds`` are how many calls are to come."""

    def __init__(
        self, model: nn.Module, spread: Spread, asked: Strategy | None, rounds: int, cache: str | Path | None
    ):
        self._model, self._spread, self._asked, self._rounds = model, spread, asked, rounds
        self._cache = TuningCache(cache, model) if cache else None
        self._surveys: dict[tuple, Survey | str] = {}
        self._trials: dict[tuple, Trial] = {}
        self._plans: dict[tuple, Plan] = {}
        self._n_steps: dict[tuple, int] = {}  # that each plan was measured for

    def plan(self, tasks: list[Task]) -> Plan:
        """For these tasks; measured once for all that are like them, about as many, and not far longer."""
        if not tasks:
            return Plan(self._asked or Strategy(), "there was no client to train")
        key, n_steps = _like(tasks), sum(task.batches.n_steps for task in tasks)
        has_grown = not self._asked and n_steps > GROWN * self._n_steps.get(key, n_steps)
        if key not in self._plans or has_grown:
            self._plans[key] = self._settle(self._asked, tasks) if self._asked else self._tune(tasks)
            self._n_steps[key] = n_steps
        plan = self._plans[key]
        return dataclasses.replace(plan, solo=self._solo(plan.strategy, tasks))

    def learn(self, tasks: list[Task], failed: Strategy, why: str, instead: Strategy | None = None) -> None:
        """Let such tasks not be trained by ``failed`` again, but by ``instead``, or by the next best."""
        plan = self._plans[_like(tasks)]
        reasons = {**plan.reasons, str(failed): why}
        if instead is None:
            measured = sorted(plan.probes, key=lambda row: row["ms per client-step"])
            names = [name for row in measured if (name := str(row["strategy"])) not in reasons]
            instead = Strategy.parse(names[0]) if names else Strategy()
        why = f"instead of {failed}: {why}"
        self._plans[_like(tasks)] = dataclasses.replace(
            plan, strategy=instead, why=why, reasons=reasons, check=None
        )
        if self._cache and not self._asked:
            self._cache.keep(self._together(tasks), self._rounds, Verdict(instead, why, {}, plan.probes))

    def survey(self, tasks: Sequence[Task]) -> Survey | str:
        """Of this kind of task; a text if not even one plain step can be done."""
        task = _typical(tasks)
        recipe = task.recipe
        key = (recipe.loss, recipe.step is None, recipe.augment, recipe.precision, task.rows.kind)
        if key not in self._surveys:
            try:
                self._surveys[key] = survey_model(self._model, task)
            except Exception as error:
                self._surveys[key] = f"a plain step fails: {type(error).__name__}: {error}".splitlines()[0]
        return self._surveys[key]

    def trial(self, strategy: Strategy, tasks: Sequence[Task]) -> Trial:
        """May the strategy's engine be used for these tasks? Tried once per engine and number of rows."""
        survey = self.survey(tasks)
        if isinstance(survey, str) or survey.refusal is not None:
            return Trial(survey if isinstance(survey, str) else survey.refusal)
        if strategy.is_compiled and (missing := why_not_compiled()):
            return Trial(missing)
        solo = self._solo(strategy, tasks)
        together = [task for task in tasks if task.client not in solo] or tasks
        engine = self._spread.bench(0, self._spread.device_of(strategy)).engine(survey, strategy, together)
        n_rows = strategy.rows_for(len(tasks), n_workers(strategy)) if strategy.is_compiled else None
        key = (id(engine), together[0].rows.kind, n_rows, _is_padded(together))
        if key not in self._trials:
            with intra_op(self._spread.threads):
                self._trials[key] = try_engine(engine, self._spread.bench().model, sample(together), n_rows)
        return self._trials[key]

    def _n_ops(self, strategy: Strategy, tasks: Sequence[Task]) -> int:
        """Operations in a fused step that was tried."""
        survey = self.survey(tasks)
        assert isinstance(survey, Survey)
        bench = self._spread.bench(0, self._spread.device_of(strategy))
        return count_operations(bench.engine(survey, strategy, tasks), sample(tasks))

    # --- inside -----------------------------------------------------------------------------------

    def _settle(self, strategy: Strategy, tasks: list[Task], why: str = "it was asked for") -> Plan:
        """The strategy, or the next one that can be used here and gives what serial gives."""
        reasons: dict[str, str] = {}
        if strategy.inner == "merged":
            return Plan(strategy, f"{why}: one model over all clients' rows, which is not training clients")
        survey = self.survey(tasks)
        if strategy.outer == "streams" and (missing := why_no_streams()):
            reasons["streams"] = missing
            strategy = dataclasses.replace(strategy, outer="threads")
        if isinstance(survey, Survey) and survey.draws and strategy.outer in ("threads", "streams"):
            reasons["threads"] = "the model draws from torch's own generator, which threads share"
            strategy = dataclasses.replace(strategy, outer="inline", workers=None)
        while strategy.takes_chunks:
            trial = self.trial(strategy, tasks)
            if trial.refusal is None:
                return Plan(strategy, why, reasons, check=trial.difference)
            reasons[strategy.inner] = trial.refusal
            strategy = dataclasses.replace(strategy, inner=NEXT[strategy.inner])
        why = f"instead of {next(iter(reasons))}: {next(iter(reasons.values()))}" if reasons else why
        return Plan(strategy, why, reasons)

    def _tune(self, tasks: list[Task]) -> Plan:
        together = self._together(tasks)
        known = self._cache.find(together, self._rounds) if self._cache else None
        if known is not None:
            plan = self._settle(known.strategy, tasks, "measured on this machine before")
            return dataclasses.replace(plan, probes=known.probes)
        survey = self.survey(tasks)
        known_survey = None if isinstance(survey, str) else survey
        tuner = Tuner(self._spread, known_survey, self.trial, self._n_ops, together, self._rounds)
        verdict: Verdict = tuner.decide()
        if self._cache:
            self._cache.keep(together, self._rounds, verdict)
        check = self.trial(verdict.strategy, together).difference if verdict.strategy.takes_chunks else None
        return Plan(verdict.strategy, verdict.why, verdict.reasons, verdict.probes, check=check)

    def _together(self, tasks: list[Task]) -> list[Task]:
        """Those that can be in one fused step."""
        solo = self._solo(Strategy(inner="fused"), tasks)
        return [task for task in tasks if task.client not in solo] or tasks

    def _solo(self, strategy: Strategy, tasks: Sequence[Task]) -> dict[int, str]:
        """Clients that cannot join a fused step with most others."""
        if not strategy.takes_chunks or not tasks:
            return {}
        survey, kind, solo = self.survey(tasks), _typical(tasks).rows.kind, {}
        has_norm = isinstance(survey, Survey) and survey.has_norm
        for task in tasks:
            if task.rows.kind != kind:
                solo[task.client] = f"its rows have shape {tuple(task.rows.kind[0])}, other clients' another"
            elif has_norm and (task.batches.counts == 1).any():
                solo[task.client] = "a batch of one row, and the model has batch statistics"
        return solo


def _like(tasks: Sequence[Task]) -> tuple:
    """Equal for tasks that one plan serves."""
    return kind_of_work(tasks), _typical(tasks).rows.kind, len(tasks).bit_length(), _is_padded(tasks)


def _typical(tasks: Sequence[Task]) -> Task:
    """The first of those whose examples are of the most common kind."""
    kind, _ = Counter(task.rows.kind for task in tasks).most_common(1)[0]
    return next(task for task in tasks if task.rows.kind == kind)


def _is_padded(tasks: Sequence[Task]) -> bool:
    """Is any batch short? Then a fused step has padding rows, and must be tried with some."""
    distinct = {id(task.batches.counts): task for task in tasks}  # clients of one size share their counts
    return any(bool((task.batches.counts < task.recipe.batch_size).any()) for task in distinct.values())


def why_not_compiled() -> str | None:
    """Why torch.compile has nothing to compile with here, or None."""
    if os.environ.get("CXX") or any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return None
    return "torch.compile needs a C++ compiler, and none is installed"
