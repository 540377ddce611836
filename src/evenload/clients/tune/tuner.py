"""Measure strategies on the user's own clients, then take the fastest; several cores have to be worth it.

    serial ──► rules, chunks growing ──► fused ──► streams of a GPU ──► cores ──► compiled ──► cores

A strategy is measured only if the job is long enough to repay it (``probe_timer``): all measuring costs a
small share of what the job takes by the fastest strategy, and so does compiling in vain.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evenload.clients.fused.memory import most_clients
from evenload.clients.fused.rules import has_rules
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.spread.streams import free_bytes, n_gpus, why_no_streams
from evenload.clients.tune.choice import Probe
from evenload.clients.tune.engine_checks import EngineChecks
from evenload.clients.tune.expected_cost import MOST_BY_STARTS, compile_gain, even_chunk
from evenload.clients.tune.probe_timer import SEARCH, SURE, WORTH_S, ProbeTimer
from evenload.clients.values.strategy import Strategy, TrainingPlan, halves, n_workers
from evenload.clients.values.task import ClientTask

__all__ = ["Tuner"]

START_S = 5.0  # assumed seconds for starting processes that import torch
COMPILE_S, COMPILE_OP_S = 2.0, 0.02  # assumed seconds for compiling a step, and for each of its operations
FEWEST, FEWEST_LIGHT = 4, 16  # clients in the first chunk that is measured; the second if steps are light
LIGHT_S = 1e-3  # a serial step of fewer seconds is light: starting its operations is much of it
FIRST_FAR, FAR = 4.0, 1.5  # no larger chunk is measured after one so many times slower than serial
NEAR = 1.5  # an inner strategy within this factor of the fastest in one thread is also measured on all cores
MOST_COMPILED = 6  # chunks that are compiled at most
OP_S = 1e-5  # assumed seconds for starting an operation, which a compiled step saves
FLAT, MOST_WALK = 1.05, 3  # go on for up to three chunks while within 5 % of the fastest
NEXT_GAIN = 0.1  # of the job, that another compiled chunk or inner strategy is expected to save
LAUNCH_BOUND = 0.35  # of a step for starting operations, above which more clients in a step are better
CORES_GAIN = 0.3  # of the job, that several cores are expected to save
SCALES = 0.8  # threads that reach this share of a linear speedup are not beaten by processes
STREAM_COUNTS = (2, 4, 8)


class Tuner:
    """The search for the fastest strategy for one kind of tasks, of which ``rounds`` rounds are to come.

    expected  the strategy to begin with, and to take where the budget pays for measuring no fused one
    """

    def __init__(
        self,
        dispatcher: ClientDispatcher,
        checks: EngineChecks,
        tasks: Sequence[ClientTask],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
        thread_clock: Callable[[], float] = time.thread_time,
        cpu_clock: Callable[[], float] = time.process_time,
        expected: Strategy | None = None,
    ):
        self._expected = expected if expected is not None and expected.is_fused else None
        is_expected = self._expected is not None
        clocks = (clock, thread_clock, cpu_clock)
        self.timer = ProbeTimer(dispatcher, checks, tasks, rounds, *clocks, expects_fused=is_expected)
        self._dispatcher, self._checks, self._traits = dispatcher, checks, checks.traits(tasks)
        self._n = len(tasks)
        self._room: dict[str, int] = {}  # outer strategy -> clients that fit into its memory
        self._is_even = len({task.batches.n_steps for task in tasks}) == 1

    def decide(self) -> TrainingPlan:
        """Measure, and return the plan with the fastest strategy."""
        timer = self.timer
        timer.probe(Strategy())
        job_s = timer.job_s()
        if job_s < WORTH_S or self._n == 1:
            return self._plan(f"all rounds take {job_s:.2g} s serially: there is nothing to gain")
        if timer.is_usable(Strategy(inner="fused", chunk=2)):
            ruled = None
            if has_rules(self._dispatcher.model) and timer.is_usable(Strategy(inner="rules", chunk=2)):
                ruled = self._search("inline", "rules")
            self._search("inline", "fused", near=ruled)
        if (missing := why_no_streams()) is None:
            self._try_streams()
        else:
            timer.reasons["streams"] = missing
        self._try_threads()
        self._try_compiled()
        self._try_threads()
        self._try_processes()
        timer.confirm()
        is_untried = not any(p.strategy.is_fused for p in timer.probes) and "fused" not in timer.reasons
        if self._expected is not None and is_untried:
            why = "expected to be the fastest; measuring it would not pay"
            return TrainingPlan(self._expected, why, timer.reasons, timer.table())
        n = len(timer.probes)
        if timer.doubted() and timer.best().strategy == Strategy():
            return self._plan(f"none of {n} measured strategies is faster beyond doubt")
        return self._plan(f"the fastest of {n} measured strategies")

    def _plan(self, why: str) -> TrainingPlan:
        reasons = self.timer.reasons | self.timer.faster_by_the_clock() | self.timer.doubted()
        return TrainingPlan(self.timer.best().strategy, why, reasons, self.timer.table())

    # --- the search -------------------------------------------------------------------------------

    def _search(
        self, outer: str, inner: str, workers: int | None = None, near: Probe | None = None
    ) -> Probe | None:
        """Measure chunks of 4 or 16, 64, ... until that gains nothing, then halves and doubles of the best.

        If ``near``, the fastest of another inner strategy, is given, start from its chunk, and stop there if
        this one is far slower.
        """
        most, size = self._most(outer), self._fewest() if near is None else near.strategy.chunk
        best: Probe | None = None
        serial_s = self.timer.probes[0].step_s
        while probe := self._try_chunk(outer, inner, size, workers, most):
            limit_s = FAR * near.step_s if near else (FIRST_FAR if best is None else FAR) * serial_s
            if probe.step_s > limit_s or (best is not None and probe.step_s > best.step_s):
                break
            best, size = probe, 4 * size
            if near is not None:
                break
        if best is None:
            return None
        for times in (0.5, 2.0):
            while probe := self._try_chunk(outer, inner, int(times * best.strategy.chunk), workers, most):
                if probe.step_s >= best.step_s:
                    break
                best = probe
        return best

    def _try_chunk(self, outer: str, inner: str, size: int, workers: int | None, most: int) -> Probe | None:
        """Measure a chunk of about ``size``; None if it was measured before, or the budget is too small."""
        strategy = Strategy(outer, inner, self._even(max(1, min(size, most)), most), workers)
        is_known = any(p.strategy == strategy for p in self.timer.probes)
        if is_known or not self.timer.can_afford(strategy, share=SEARCH):
            return None
        return self.timer.probe(strategy)

    def _fewest(self) -> int:
        if self._expected is not None:
            return self._expected.chunk
        return FEWEST_LIGHT if self.timer.probes[0].step_s < LIGHT_S else FEWEST

    def _most(self, outer: str) -> int:
        """Most clients in a step: those that there are and that fit into memory."""
        if outer not in self._room:
            free = free_bytes(self._dispatcher.streams.device) if outer == "streams" else None
            self._room[outer] = most_clients(self._dispatcher.model, self.timer.tasks[0], free)
        return min(self._n, self._room[outer])

    def _even(self, chunk: int, n: int) -> int:
        """A chunk near ``chunk`` that divides ``n`` clients of equal length: no step is then half empty."""
        if not self._is_even:
            return chunk
        return even_chunk(chunk, n)

    def _try_streams(self) -> None:
        """Measure streams of a GPU: one first, to find the chunk; then more, which share the clients."""
        timer = self.timer
        if self._draws("streams"):
            return
        known = len(timer.probes)
        fused = {p.strategy.inner for p in timer.probes if p.strategy.is_fused}
        for inner in sorted(fused):
            if timer.is_usable(Strategy("streams", inner, 2, 1)):
                self._search("streams", inner, 1)
        if not fused and timer.can_afford(alone := Strategy("streams", workers=1)):
            timer.probe(alone)
        found = timer.probes[known:]
        if not found:
            return
        best = min(found, key=lambda p: p.step_s).strategy
        for workers in STREAM_COUNTS:
            each = max(1, min(best.chunk, -(-self._n // workers)))
            strategy = replace(best, workers=workers, chunk=each)
            if not timer.can_afford(strategy) or timer.probe(strategy) is None:
                return

    def _try_compiled(self) -> None:
        """Compile the fastest eager chunk of each inner strategy, and search on from there."""
        kinds, timer = self._eager_kinds(), self.timer
        if not kinds:
            return
        first = kinds[0].strategy
        least = replace(first, inner=f"{first.inner}-compiled")
        if MOST_BY_STARTS * timer.job_s() / SURE < COMPILE_S and not timer.can_afford(
            least, start_s=COMPILE_S
        ):
            return
        timer.confirm(is_last=False)  # what is compiled follows from the best
        for at, found in enumerate(self._eager_kinds()):
            if not self._search_compiled(found, is_first=at == 0):
                return

    def _eager_kinds(self) -> list[Probe]:
        """The fastest eager chunks of each inner strategy, in this thread or in streams."""
        fused = [p for p in self.timer.probes if p.strategy.is_fused and p.strategy.outer != "threads"]
        return _best_of_each_kind([p for p in fused if not p.strategy.is_compiled])

    def _search_compiled(self, found: Probe, is_first: bool) -> bool:
        """Compile chunks, that of ``found`` first, which shows what compiling costs. Was any compiled?"""
        timer, eager = self.timer, found.strategy
        most = self._most(eager.outer)
        least = replace(eager, inner=f"{eager.inner}-compiled")
        if not timer.can_afford(least, start_s=COMPILE_S, gain=MOST_BY_STARTS if is_first else NEXT_GAIN):
            return False
        n_ops = self._checks.n_operations(replace(eager, workers=None), timer.tasks)
        cost_s = COMPILE_S + COMPILE_OP_S * n_ops
        launch_share = n_ops * OP_S / (eager.chunk * found.step_s)
        first = eager.chunk if launch_share > LAUNCH_BOUND else self._shared_chunk(eager)
        gain = compile_gain(launch_share) if is_first else NEXT_GAIN
        tried: dict[int, float] = {}  # chunk -> seconds of a step
        while len(tried) < MOST_COMPILED and (chunk := self._next_compiled(tried, first, most)):
            strategy = replace(eager, inner=f"{eager.inner}-compiled", chunk=chunk)
            if not timer.can_afford(strategy, start_s=cost_s * self._graphs(strategy), gain=gain):
                break
            probe = timer.probe(strategy, is_checked=True)
            if probe is None:
                break
            tried[chunk], cost_s, gain = probe.step_s, max(0.05, probe.first_s), NEXT_GAIN
        return bool(tried)

    def _shared_chunk(self, strategy: Strategy) -> int:
        """The strategy's chunk, or a smaller one that keeps all cores busy: one graph then serves both."""
        if strategy.outer != "inline":
            return strategy.chunk
        return self._chunk_for(strategy, n_workers(Strategy("threads")))

    def _next_compiled(self, tried: Mapping[int, float], first: int, most: int) -> int | None:
        """Half or double the fastest chunk so far; None if both were tried."""
        best = min(tried, key=lambda chunk: tried[chunk], default=None)
        sizes = (first,) if best is None else (best // 2, 2 * best)
        near = [self._even(max(2, min(most, size)), most) for size in sizes]
        return next((chunk for chunk in near if chunk not in tried), None)

    def _graphs(self, strategy: Strategy) -> int:
        """Number of graphs that all clients need: clients of unequal length end in steps of many sizes."""
        if not self._is_even:
            return len(halves(strategy.chunk))
        return 1 + bool(self._n % strategy.chunk)

    def _try_threads(self) -> None:
        """Measure threads: the fastest of each inner strategy on all cores, then other chunks of the best.

        The inner strategy that gains most from cores need not be the fastest in one thread; and cores share
        caches, so the best chunk may be smaller.
        """
        timer, cores = self.timer, n_workers(Strategy("threads"))
        if cores == 1:
            timer.reasons["threads"] = "this process may use one core only"
            return
        if self._draws("threads"):
            return
        known, gain = len(timer.probes), CORES_GAIN
        for found in _best_of_each_kind([p for p in timer.probes if p.strategy.outer == "inline"]):
            self._probe_threads(self._on_workers(found, "threads", cores), gain)
            gain = 0.0  # another inner strategy is expected to save nothing beyond that
        best = min(timer.probes[known:], key=lambda p: p.step_s, default=None)
        if best is None or not best.strategy.is_fused or best.cost_s > FLAT * timer.best().cost_s:
            return
        for times in (0.5, 2.0):
            best = self._walk_threads(best, times, cores)

    def _walk_threads(self, best: Probe, times: float, cores: int) -> Probe:
        """Halve or double the chunk, for up to MOST_WALK sizes while within FLAT of the fastest."""
        each = min(-(-self._n // cores), max(1, self._most("inline") // cores))
        gain = NEXT_GAIN if best.strategy.is_compiled else 0.0
        at = best
        for _ in range(MOST_WALK):
            chunk = self._even(max(1, min(int(times * at.strategy.chunk), each)), each)
            if chunk == at.strategy.chunk:
                break
            other = self._probe_threads(replace(best.strategy, chunk=chunk), gain)
            if other is None or other.step_s > FLAT * best.step_s:
                break
            at, best = other, min(best, other, key=lambda p: p.step_s)
        return best

    def _probe_threads(self, strategy: Strategy, gain: float = 0.0) -> Probe | None:
        """Measure the strategy unless it is known; None if the budget does not pay for it, or it fails.

        Threads share compiled graphs: each number of rows is compiled once.
        """
        timer, start_s, made_s = self.timer, 0.0, 0.0
        if strategy.is_compiled:
            rows = strategy.rows_for(self._n, n_workers(strategy))
            here = [p for p in timer.probes if p.strategy.outer in ("inline", "threads")]
            kin = {p.strategy.rows: p for p in here if p.strategy.inner == strategy.inner}
            start_s = 0.0 if rows in kin else max(p.first_s for p in kin.values())
            made_s = kin[rows].first_s if rows in kin else 0.0
        probe = next((p for p in timer.probes if p.strategy == strategy), None)
        if probe is None and timer.can_afford(strategy, start_s=start_s, gain=gain):
            probe = timer.probe(strategy, is_checked=strategy.is_compiled)
            if probe is not None:
                probe.first_s += made_s
        return probe

    def _try_processes(self) -> None:
        """Measure the fastest in processes, which share no interpreter lock, if the job repays it."""
        timer, best = self.timer, self.timer.best()
        cores = n_workers(Strategy("processes"))
        gpus = n_gpus()
        for outer, workers in (("processes", cores), ("devices", gpus)):
            if min(workers, self._n) < 2:
                continue
            strategy = self._on_workers(best, outer, workers)
            if outer == "processes" and best.strategy.outer == "threads":
                alone_s = min(p.step_s for p in timer.probes if p.strategy.outer == "inline")
                if alone_s / best.step_s > SCALES * workers:
                    timer.reasons[str(strategy)] = "threads keep the cores busy as well"
                    continue
            start_s = START_S + (best.first_s if strategy.is_compiled else 0.0)
            if timer.can_afford(strategy, start_s=start_s):
                timer.probe(strategy)

    def _on_workers(self, probe: Probe, outer: str, workers: int) -> Strategy:
        """The measured strategy on so many workers."""
        chunk = self._chunk_for(probe.strategy, workers)
        known = workers if outer != "devices" else None
        return replace(probe.strategy, outer=outer, workers=known, chunk=chunk)

    def _chunk_for(self, strategy: Strategy, workers: int) -> int:
        """The strategy's chunk, or a smaller one that keeps so many workers busy."""
        each = -(-self._n // workers)
        chunk = strategy.chunk
        return self._even(max(1, min(chunk, each)), each) if strategy.is_fused else chunk

    def _draws(self, outer: str) -> bool:
        """Does the model draw from generators that such workers would share? Notes the reason."""
        if self._traits is None or not self._traits.draws:
            return False
        self.timer.reasons[outer] = "the model draws from generators that threads share"
        return True


def _best_of_each_kind(probes: Sequence[Probe]) -> list[Probe]:
    """The fastest of every inner strategy, sorted; without those far slower than the first."""
    kinds: dict[str, Probe] = {}
    for probe in sorted(probes, key=lambda p: p.step_s):
        kinds.setdefault(probe.strategy.inner, probe)
    found = list(kinds.values())
    return [p for p in found if p.step_s <= NEAR * found[0].step_s]
