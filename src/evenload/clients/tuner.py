"""Measure, then pick: warm, timed trials of strategies on the user's own clients.

    serial ──► fused chunks, doubling until it gets slower ──► rules ──► compiled, if it pays ──► cores

A probe is spent only where the time that is still to come could repay it: probes cost a small share of what
the job would take by the best strategy so far, and compiling is tried only if halving the rest repays it.
No cold sample counts: each probe runs once unmeasured, then the least of several repetitions is taken.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .batches import Batches
from .engine import longest_first
from .memory import most_clients
from .rules import has_rules
from .spread import Spread
from .strategy import Strategy, n_workers
from .survey import Survey
from .task import Task
from .trial import Trial

__all__ = ["Tuner", "Verdict"]

SHARE = 0.04  # of the job's time, by the best strategy so far, that one probe may take
STEPS = 3  # of each client in a probe
REPEATS = 3
START_S = 3.0  # what starting processes that import torch is taken to cost
COMPILE_S = 6.0  # what compiling a step is taken to cost before it was measured once
WORTH_S = 0.05  # less work than this is done before anything could be measured


@dataclass(frozen=True, slots=True)
class Verdict:
    strategy: Strategy
    why: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[Mapping[str, Any], ...] = ()


@dataclass(slots=True)
class _Probe:
    strategy: Strategy
    step_s: float  # per client and step
    first_s: float  # before the first warm step: tracing, compiling, starting threads


class Tuner:
    """For one kind of tasks. ``trial`` says whether an engine may be used at all, and why not."""

    def __init__(
        self,
        spread: Spread,
        survey: Survey | None,
        trial: Callable[[Strategy, Sequence[Task]], Trial],
        tasks: Sequence[Task],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._spread, self._survey, self._trial, self._clock = spread, survey, trial, clock
        self._tasks = list(longest_first(tasks))
        self._job_steps = rounds * sum(task.batches.n_steps for task in tasks)
        self._rounds = rounds
        self._most = min(len(tasks), most_clients(spread.model, self._tasks[0]))
        self.probes: list[_Probe] = []
        self._reasons: dict[str, str] = {}

    def decide(self) -> Verdict:
        """The fastest strategy that was measured."""
        self._probe(Strategy())
        job_s = self._best_s()
        if job_s < WORTH_S or len(self._tasks) == 1:
            return self._verdict(f"all rounds take {job_s:.2g} s serially: there is nothing to gain")
        if self._may("fused"):
            self._search("fused")
            if has_rules(self._spread.model) and self._may("rules"):
                self._search("rules")
            self._try_compiled()
        self._try_threads()
        self._try_processes()
        self._confirm()
        return self._verdict(f"the fastest of {len(self.probes)} measured strategies")

    # --- the search -------------------------------------------------------------------------------

    def _may(self, inner: str) -> bool:
        refusal = self._trial(Strategy(inner=inner, chunk=2), self._tasks).refusal
        if refusal is not None:
            self._reasons[inner] = refusal
        return refusal is None

    def _search(self, inner: str) -> None:
        """Chunks of 4, 8, 16, ... until the time per client gets worse twice, or memory or clients end."""
        chunk, worse, best = 4, 0, float("inf")
        while worse < 2:
            chunk = min(chunk, self._most)
            strategy = Strategy("inline", inner, chunk)
            if not self._affordable(strategy):
                self._reasons[str(strategy)] = "measuring it would cost more than it could save"
                return
            probe = self._probe(strategy)
            if probe is None:
                return
            step_s = probe.step_s
            worse = worse + 1 if step_s > best else 0
            best = min(best, step_s)
            if chunk == self._most:
                return
            chunk *= 2

    def _try_compiled(self) -> None:
        """The best eager chunk's neighbours, compiled; the first shows what compiling costs here."""
        fused = [p for p in self.probes if p.strategy.is_fused]
        if not fused:
            return
        eager = min(fused, key=lambda p: p.step_s).strategy
        inner = f"{eager.inner}-compiled"
        cost_s = COMPILE_S
        for chunk in dict.fromkeys((eager.chunk, min(self._most, 2 * eager.chunk), max(4, eager.chunk // 2))):
            strategy = Strategy("inline", inner, chunk)
            gain_s = self._best_s() * (0.5 if len(self._compiled()) == 0 else 0.1)
            if gain_s < cost_s:
                self._reasons[str(strategy)] = (
                    f"compiling takes about {cost_s:.1f} s, {self._rounds} rounds take {self._best_s():.2g} s"
                )
                return
            began = self._clock()
            refusal = self._trial(strategy, self._tasks).refusal
            if refusal is not None:
                self._reasons[inner] = refusal
                return
            first_s = self._clock() - began
            probe = self._probe(strategy)
            if probe is None:
                return
            probe.first_s += first_s
            cost_s = max(0.05, probe.first_s)

    def _compiled(self) -> list[_Probe]:
        return [p for p in self.probes if p.strategy.is_compiled]

    def _try_threads(self) -> None:
        """The best strategies, spread over the cores."""
        cores = n_workers(Strategy("threads"))
        if cores == 1:
            self._reasons["threads"] = "this process may use one core only"
            return
        if self._survey is not None and self._survey.draws:
            self._reasons["threads"] = "the model draws from torch's own generator, which threads share"
            return
        ranked = sorted(self.probes, key=lambda p: p.step_s)
        for probe in ranked[:2]:
            chunk = max(1, min(probe.strategy.chunk, -(-len(self._tasks) // cores)))
            strategy = dataclasses.replace(probe.strategy, outer="threads", workers=cores, chunk=chunk)
            if strategy.is_compiled and self._best_s() * 0.3 < probe.first_s:
                self._reasons[str(strategy)] = "each thread compiles for itself, which would not be repaid"
            elif not self._affordable(strategy):
                self._reasons[str(strategy)] = "measuring it would cost more than it could save"
            else:
                self._probe(strategy)

    def _try_processes(self) -> None:
        """The best strategy in processes, which share no interpreter lock; their starting must be repaid."""
        cores = n_workers(Strategy("processes"))
        if cores == 1 or len(self._tasks) == 1:
            return
        best = min(self.probes, key=lambda p: p.step_s)
        chunk = max(1, min(best.strategy.chunk, -(-len(self._tasks) // cores)))
        strategy = dataclasses.replace(best.strategy, outer="processes", workers=cores, chunk=chunk)
        start_s = START_S + (best.first_s if strategy.is_compiled else 0.0)
        if self._best_s() * 0.3 < start_s:
            self._reasons[str(strategy)] = (
                f"starting workers takes about {start_s:.1f} s: it would not be repaid"
            )
        elif not self._affordable(strategy):
            self._reasons[str(strategy)] = "measuring it would cost more than it could save"
        else:
            self._probe(strategy)

    def _confirm(self) -> None:
        """The three best again, in turns: what disturbed the machine meanwhile then disturbs all of them."""
        ranked = sorted(self.probes, key=lambda p: p.step_s)[:3]
        for _ in range(REPEATS):
            for probe in ranked:
                if self._affordable(probe.strategy):
                    tasks, workers = self._sample(probe.strategy)
                    spent = self._time(probe.strategy, tasks, workers)
                    steps = sum(t.batches.n_steps for t in tasks)
                    probe.step_s = float("inf") if spent is None else min(probe.step_s, spent / steps)

    # --- measuring --------------------------------------------------------------------------------

    def _probe(self, strategy: Strategy) -> _Probe | None:
        """None if the strategy fails."""
        tasks, workers = self._sample(strategy)
        steps = sum(task.batches.n_steps for task in tasks)
        samples: list[float] = []
        for _ in range(1 + REPEATS):
            sample = self._time(strategy, tasks, workers)
            if sample is None:
                return None
            samples.append(sample)
        probe = _Probe(strategy, min(samples[1:]) / steps, max(0.0, samples[0] - min(samples[1:])))
        self.probes.append(probe)
        return probe

    def _sample(self, strategy: Strategy) -> tuple[list[Task], int]:
        """Clients that fill every worker's rows once, cut to a few steps; and the number of workers."""
        workers = n_workers(strategy)
        tasks = self._tasks[: max(2, strategy.rows) * workers]
        # What goes to another process and back is all of a client: its steps must then count in full.
        return list(tasks if strategy.outer == "processes" else map(_cut, tasks)), workers

    def _time(self, strategy: Strategy, tasks: Sequence[Task], workers: int) -> float | None:
        """Seconds, or None if the strategy fails: why is then among the reasons."""
        began = self._clock()
        try:
            for _ in self._spread.run(strategy, self._survey, tasks, workers):
                pass
        except Exception as error:
            if strategy == Strategy():
                raise
            self._reasons[str(strategy)] = f"it fails: {type(error).__name__}: {error}".splitlines()[0]
            return None
        return self._clock() - began

    def _best_s(self) -> float:
        """What is left of the job, by the best strategy so far."""
        return self._job_steps * min(p.step_s for p in self.probes)

    def _affordable(self, strategy: Strategy) -> bool:
        steps = sum(task.batches.n_steps for task in self._sample(strategy)[0])
        cost_s = steps * (1 + REPEATS) * min(p.step_s for p in self.probes)
        return cost_s < max(SHARE * self._best_s(), WORTH_S)

    def _verdict(self, why: str) -> Verdict:
        best = min(self.probes, key=lambda p: p.step_s)
        serial = self.probes[0].step_s
        rows = tuple(
            {
                "strategy": str(p.strategy),
                "ms per client-step": p.step_s * 1e3,
                "times serial": serial / p.step_s,
                "first, s": p.first_s,
                "picked": "<-" if p is best else "",
            }
            for p in self.probes
        )
        return Verdict(best.strategy, why, self._reasons, rows)


def _cut(task: Task) -> Task:
    b = task.batches
    return dataclasses.replace(task, batches=Batches(b.rows[:STEPS], b.counts[:STEPS], b.draws[:STEPS]))
