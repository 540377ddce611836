"""Measure strategies on the user's own clients, then take the fastest; several cores have to be worth it.

    serial ─► chunks ─► streams of a GPU ─► cores ─► in turns ─► compiled ─► cores ─► processes ─► in turns

A strategy is measured only if the job is long enough to repay it (``race``): samples take a small share of
the job by the cheapest strategy, and compiling a third of what it is expected to save.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from evenload._plain_text import seconds_text
from evenload.clients.fused.rules import has_rules
from evenload.clients.spread.dispatch_clients import ClientDispatcher, free_bytes, n_gpus, why_no_streams
from evenload.clients.tune.engine_checks import EngineChecks
from evenload.clients.tune.expected_cost import Expectation, even_chunk
from evenload.clients.tune.race import DOUBT, FAR, TIE, WORTH_S, Probe, Race
from evenload.clients.tune.step_work import most_clients
from evenload.clients.values.strategy import ClientPlan, Strategy, halves, n_workers
from evenload.clients.values.task import ClientTask

START_S = 5.0  # seconds that starting processes that import torch takes, assumed


class Tuner:
    """The search for the fastest strategy for one kind of tasks, of which ``rounds`` rounds are to come.

    expected  what is expected of these tasks: the chunk to begin with, what compiling gains, and the strategy
              to take where the budget pays for measuring no fused one
    """

    def __init__(
        self,
        dispatcher: ClientDispatcher,
        checks: EngineChecks,
        tasks: Sequence[ClientTask],
        rounds: int,
        expected: Expectation,
        clocks: Sequence[Callable[[], float]] = (time.perf_counter, time.thread_time, time.process_time),
    ):
        self._expected = expected
        self.race = Race(dispatcher, checks, tasks, rounds, clocks, expected.strategy.is_fused)
        self._dispatcher, self._traits = dispatcher, checks.traits(tasks)
        self._n = len(tasks)
        self._room: dict[str, int] = {}  # outer strategy -> clients that fit into its memory
        self._is_even = len({task.batches.n_steps for task in tasks}) == 1

    def decide(self) -> ClientPlan:
        """Measure, and return the plan with the fastest strategy."""
        race, expected = self.race, self._expected.strategy
        race.enter(Strategy())
        if race.job_s() < WORTH_S or self._n == 1:
            return self._plan(
                f"all rounds take {seconds_text(race.job_s(), 2)} serially: there is nothing to gain"
            )
        if n_workers(Strategy("threads")) > FAR:  # they may be far better than any chunk
            self._try_threads()
        self._try_chunks()
        self._try_streams()
        self._try_threads()
        race.halve()  # what is compiled follows from the best
        self._try_compiled()
        self._try_streams()
        self._try_threads()
        self._try_processes()
        race.halve()
        is_untried = not any(p.strategy.is_fused for p in race.probes) and "fused" not in race.reasons
        if expected.is_fused and is_untried:
            why = "expected to be the fastest; measuring it would not pay"
            return ClientPlan(expected, why, race.reasons, race.table())
        n = len(race.probes)
        if race.why_not() and race.best().strategy == Strategy():
            return self._plan(f"none of {n} measured strategies is better beyond doubt")
        return self._plan(f"the fastest of {n} measured strategies")

    def _plan(self, why: str) -> ClientPlan:
        race = self.race
        return ClientPlan(race.best().strategy, why, race.reasons | race.why_not(), race.table())

    # --- the search -------------------------------------------------------------------------------

    def _try_chunks(self) -> None:
        """Climb to the best chunk of rules, where the model has some, and of plain fused steps from there."""
        chunk, has = self._expected.chunk, has_rules(self._dispatcher.model)
        for inner in ("rules", "fused") if has else ("fused",):
            if self.race.is_usable(Strategy(inner=inner, chunk=2)):
                found = self._climb(Strategy(inner=inner, chunk=chunk))
                chunk = found.strategy.chunk if found else chunk

    def _climb(self, first: Strategy) -> Probe | None:
        """The fastest chunk: quarters and fourfold ones while near, then halves and doubles while faster.

        None if not even one client in an eager step can be sampled.
        """
        best = self._enter(first)
        if best is None and first.is_fused and not first.is_compiled and first.chunk > 1:
            return self._climb(replace(first, chunk=first.chunk // 2))
        for times, near in ((0.25, 1 + DOUBT), (4.0, 1 + DOUBT), (0.5, 1.0), (2.0, 1.0)):
            at = best
            while at and best:
                other = self._enter(replace(first, chunk=max(1, int(times * at.strategy.chunk))))
                if other is None or other is at or other.step_s > near * best.step_s:
                    break
                at, best = other, min(best, other, key=lambda p: p.step_s)
        return best

    def _enter(self, strategy: Strategy) -> Probe | None:
        """Sample the strategy, its chunk as far as clients and memory reach; None if it is too dear."""
        race, workers = self.race, n_workers(strategy)
        if strategy.is_fused:
            most = max(1, min(-(-self._n // workers), self._room_of(strategy.outer) // workers))
            chunk = min(strategy.chunk, most)
            strategy = replace(strategy, chunk=even_chunk(chunk, most) if self._is_even else chunk)
        known = next((p for p in race.probes if p.strategy == strategy), None)
        if known or (strategy.is_compiled and not self._can_compile(strategy)):
            return known
        return race.enter(strategy) if race.can_afford(strategy) else None

    def _room_of(self, outer: str) -> int:
        """Clients that fit into the memory that such workers share."""
        if outer not in self._room:
            free = free_bytes(self._dispatcher.streams.device) if outer == "streams" else None
            self._room[outer] = most_clients(self._dispatcher.model, self.race.tasks[0], free)
        return self._room[outer]

    def _best_of_each_kind(self, outer: str) -> list[Probe]:
        """The cheapest of every inner strategy, sorted; without those far dearer than the first."""
        kinds: dict[str, Probe] = {}
        for probe in sorted(self.race.allowed(), key=lambda p: p.cost_s):
            if probe.strategy.outer == outer:
                kinds.setdefault(probe.strategy.inner, probe)
        found = list(kinds.values())
        return [p for p in found if p.cost_s <= (1 + DOUBT) * found[0].cost_s]

    def _try_streams(self) -> None:
        """Climb to the best chunk in one stream of a GPU; then double the streams that share the clients."""
        race, missing = self.race, why_no_streams()
        if missing is not None:
            race.reasons["streams"] = missing
        if missing is not None or self._draws("streams"):
            return
        alone = [replace(p.strategy, outer="streams", workers=1) for p in self._best_of_each_kind("inline")]
        eager = [s for s in alone if s.is_fused and not s.is_compiled]
        found = [self._climb(strategy) for strategy in eager if race.is_usable(strategy)]
        best = min((p for p in found if p), key=lambda p: p.step_s, default=None)
        at = best or self._enter(Strategy("streams", workers=1))
        while at and (at.strategy.workers or 1) < self._n:
            workers = 2 * (at.strategy.workers or 1)
            other = self._enter(replace(at.strategy, workers=workers))
            at = other if other and TIE * other.step_s < at.step_s else None

    def _try_threads(self) -> None:
        """Sample the best of each kind on all cores, and climb to the best chunk: cores share caches."""
        race, cores = self.race, n_workers(Strategy("threads"))
        if cores == 1:
            race.reasons["threads"] = "this process may use one core only"
        if cores == 1 or self._draws("threads"):
            return
        alone = [p.strategy for p in self._best_of_each_kind("inline")]
        found = [self._enter(replace(strategy, outer="threads", workers=cores)) for strategy in alone]
        best = min((p for p in found if p), key=lambda p: p.step_s, default=None)
        if best and best.strategy.is_fused and best.cost_s <= (1 + DOUBT) * race.best().cost_s:
            self._climb(best.strategy)

    def _try_compiled(self) -> None:
        """Compile the cheapest eager chunks, and climb on from there while that is worth it."""
        kinds = [p for outer in ("inline", "threads", "streams") for p in self._best_of_each_kind(outer)]
        for found in sorted(kinds, key=lambda p: p.cost_s):
            if found.strategy.is_fused and not found.strategy.is_compiled:
                self._climb(replace(found.strategy, inner=f"{found.strategy.inner}-compiled"))

    def _can_compile(self, strategy: Strategy) -> bool:
        """Is compiling worth it, by the operations of a step, or by what the first compilation took?

        Threads share compiled graphs: each number of rows is compiled once. Clients of unequal length end in
        steps of many sizes.
        """
        race, rows = self.race, strategy.rows_for(self._n, n_workers(strategy))
        kin = [p for p in race.probes if p.strategy.inner == strategy.inner]
        if any(p.strategy.rows_for(self._n, n_workers(p.strategy)) == rows for p in kin):
            return True
        graphs = 1 + bool(self._n % strategy.chunk) if self._is_even else len(halves(strategy.chunk))
        if kin:
            return race.can_compile(strategy, graphs * max(p.first_s for p in kin), None)
        eager = [p for p in race.probes if f"{p.strategy.inner}-compiled" == strategy.inner]
        cost_s, gain = self._expected.compiling(strategy.chunk, min(p.step_s for p in eager))
        return race.can_compile(strategy, graphs * cost_s, gain)

    def _try_processes(self) -> None:
        """Sample the best in processes, which share no interpreter lock, if the job repays their start."""
        race, best = self.race, self.race.best()
        for outer, workers in (("processes", n_workers(Strategy("processes"))), ("devices", n_gpus())):
            if min(workers, self._n) < 2:
                continue
            each = -(-self._n // workers)
            strategy = replace(
                best.strategy,
                outer=outer,
                workers=workers if outer == "processes" else None,
                chunk=min(best.strategy.chunk, each),
            )
            start_s = START_S + (best.first_s if strategy.is_compiled else 0.0)
            if race.can_afford(strategy, start_s):
                race.enter(strategy)

    def _draws(self, outer: str) -> bool:
        """Does the model draw from generators that such workers would share? Notes the reason."""
        if self._traits is None or not self._traits.draws:
            return False
        self.race.reasons[outer] = "the model draws from generators that threads share"
        return True
