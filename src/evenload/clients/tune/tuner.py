"""Measure, then pick: warm, timed trials of strategies on the user's own clients.

    serial ──► rules, chunks growing ──► fused ──► streams of a GPU ──► cores ──► compiled ──► cores

A probe is spent only where the time that is still to come could repay it (``meter``): all of them together
cost a small share of what the job takes by the best strategy, and so does what was compiled in vain.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenload.clients.fused.memory import most_clients
from evenload.clients.fused.rules import has_rules
from evenload.clients.spread.dispatch_clients import Spread
from evenload.clients.spread.equivalence_check import Trial
from evenload.clients.spread.streams import free_bytes, n_gpus, why_no_streams
from evenload.clients.step.model_probe import Survey
from evenload.clients.tune.probe_timer import SEARCH, WORTH_S, Meter, Probe
from evenload.clients.values.strategy import Strategy, halves, n_workers
from evenload.clients.values.task import Task

__all__ = ["Tuner", "Verdict"]

START_S = 5.0  # what starting processes that import torch is taken to cost
COMPILE_S, COMPILE_OP_S = 2.0, 0.02  # what compiling a step and each of its operations is taken to cost
FEWEST, FEWEST_LIGHT = 4, 16  # clients in the first chunk that is measured; where steps are mostly launches
LIGHT_S = 1e-3  # seconds of such a step: starting the operations of a small network takes a third of this
FIRST_FAR, FAR = 4.0, 1.5  # times serial: chunks so slow do not promise anything of larger ones
NEAR = 1.5  # times the fastest of one thread: another kind so slow may still be the fastest on all cores
MOST_COMPILED = 6  # chunks that are compiled at most
OP_S = 1e-5  # what starting an operation costs, and a compiled step does not pay
MOST_GAIN = 0.6  # of the job, that compiling is expected to save
FLAT, MOST_WALK = 1.05, 3  # times the best: a chunk so near may lie on the way to a better one; on so far
NEXT_GAIN = 0.1  # of the job, that another compiled chunk or kind is expected to save
LAUNCH_BOUND = 0.35  # of a step is spent starting operations: the more clients in it, the better
CORES_GAIN = 0.3  # of the job, that several cores are expected to save
SCALES = 0.8  # of so many times the speed is as good as threads get
STREAM_COUNTS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Verdict:
    strategy: Strategy
    why: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[Mapping[str, Any], ...] = ()


class Tuner:
    """For one kind of tasks.

    trial   says whether an engine may be used at all, and why not
    n_ops   how many operations a step of a strategy has, which is what compiling it depends on
    """

    def __init__(
        self,
        spread: Spread,
        survey: Survey | None,
        trial: Callable[[Strategy, Sequence[Task]], Trial],
        n_ops: Callable[[Strategy, Sequence[Task]], int],
        tasks: Sequence[Task],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
        thread_clock: Callable[[], float] = time.thread_time,
    ):
        self.meter = Meter(spread, survey, trial, tasks, rounds, clock, thread_clock)
        self._spread, self._survey, self._n_ops = spread, survey, n_ops
        self._n = len(tasks)
        self._room: dict[str, int] = {}  # outer strategy -> clients that fit into its memory
        self._is_even = len({task.batches.n_steps for task in tasks}) == 1

    def decide(self) -> Verdict:
        """The fastest strategy that was measured."""
        meter = self.meter
        meter.probe(Strategy())
        job_s = meter.job_s()
        if job_s < WORTH_S or self._n == 1:
            return self._verdict(f"all rounds take {job_s:.2g} s serially: there is nothing to gain")
        if meter.may(Strategy(inner="fused", chunk=2)):
            ruled = None
            if has_rules(self._spread.model) and meter.may(Strategy(inner="rules", chunk=2)):
                ruled = self._search("inline", "rules")
            self._search("inline", "fused", near=ruled)
        if (missing := why_no_streams()) is None:
            self._try_streams()
        else:
            meter.reasons["streams"] = missing
        self._try_threads()
        meter.confirm(share=SEARCH)  # what is compiled follows from the best
        self._try_compiled()
        self._try_threads()
        self._try_processes()
        meter.confirm()
        return self._verdict(f"the fastest of {len(meter.probes)} measured strategies")

    def _verdict(self, why: str) -> Verdict:
        return Verdict(self.meter.best().strategy, why, self.meter.reasons, self.meter.table())

    # --- the search -------------------------------------------------------------------------------

    def _search(
        self, outer: str, inner: str, workers: int | None = None, near: Probe | None = None
    ) -> Probe | None:
        """Chunks of 4 or 16, 64, ... until that gains nothing, then from the best on by halves and doubles.

        Beside another kind, whose best is ``near``, from that chunk on, if it is no slower there by far.
        """
        most, size = self._most(outer), self._fewest() if near is None else near.strategy.chunk
        best: Probe | None = None
        serial_s = self.meter.probes[0].step_s
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
        """None if about so many rows were measured already, or are not worth it."""
        strategy = Strategy(outer, inner, self._even(max(1, min(size, most)), most), workers)
        is_known = any(p.strategy == strategy for p in self.meter.probes)
        if is_known or not self.meter.can_afford(strategy, share=SEARCH):
            return None
        return self.meter.probe(strategy)

    def _fewest(self) -> int:
        return FEWEST_LIGHT if self.meter.probes[0].step_s < LIGHT_S else FEWEST

    def _most(self, outer: str) -> int:
        """Clients that there are and that fit into memory."""
        if outer not in self._room:
            free = free_bytes(self._spread.streams.device) if outer == "streams" else None
            self._room[outer] = most_clients(self._spread.model, self.meter.tasks[0], free)
        return min(self._n, self._room[outer])

    def _even(self, chunk: int, n: int) -> int:
        """Rows, about ``chunk``, that divide ``n`` clients of equal length: no step is then half empty."""
        if not self._is_even:
            return chunk
        near = [c for c in range(1, n + 1) if n % c == 0 and chunk / 1.5 <= c <= chunk * 1.5]
        return min(near, key=lambda c: (max(c / chunk, chunk / c), -c), default=chunk)

    def _try_streams(self) -> None:
        """A GPU: one stream first, for the chunk; then more streams, which share the clients."""
        meter = self.meter
        if self._draws("streams"):
            return
        known = len(meter.probes)
        fused = {p.strategy.inner for p in meter.probes if p.strategy.is_fused}
        for inner in sorted(fused):
            if meter.may(Strategy("streams", inner, 2, 1)):
                self._search("streams", inner, 1)
        if not fused and meter.can_afford(alone := Strategy("streams", workers=1)):
            meter.probe(alone)
        found = meter.probes[known:]
        if not found:
            return
        best = min(found, key=lambda p: p.step_s).strategy
        for workers in STREAM_COUNTS:
            each = max(1, min(best.chunk, -(-self._n // workers)))
            strategy = replace(best, workers=workers, chunk=each)
            if not meter.can_afford(strategy) or meter.probe(strategy) is None:
                return

    def _try_compiled(self) -> None:
        """The best eager chunk of each kind, compiled, and on from there."""
        fused = [p for p in self.meter.probes if p.strategy.is_fused and p.strategy.outer != "threads"]
        kinds = _best_of_each_kind([p for p in fused if not p.strategy.is_compiled])
        for at, found in enumerate(kinds):
            if not self._search_compiled(found, is_first=at == 0):
                return

    def _search_compiled(self, found: Probe, is_first: bool) -> bool:
        """Says whether anything was compiled; the first chunk shows what that costs here."""
        meter, eager = self.meter, found.strategy
        most = self._most(eager.outer)
        least = replace(eager, inner=f"{eager.inner}-compiled")
        if not meter.can_afford(least, start_s=COMPILE_S, gain=MOST_GAIN if is_first else NEXT_GAIN):
            return False
        n_ops = self._n_ops(replace(eager, workers=None), meter.tasks)
        cost_s = COMPILE_S + COMPILE_OP_S * n_ops
        launch_share = n_ops * OP_S / (eager.chunk * found.step_s)
        first = eager.chunk if launch_share > LAUNCH_BOUND else self._shared_chunk(eager)
        # Of a step, what starting its operations takes; fused loops save about as much again, and again.
        gain = min(MOST_GAIN, 3 * launch_share) if is_first else NEXT_GAIN
        tried: dict[int, float] = {}  # chunk -> seconds of a step
        while len(tried) < MOST_COMPILED and (chunk := self._next_compiled(tried, first, most)):
            strategy = replace(eager, inner=f"{eager.inner}-compiled", chunk=chunk)
            if not meter.can_afford(strategy, start_s=cost_s * self._graphs(strategy), gain=gain):
                break
            probe = meter.probe(strategy, has_trial=True)
            if probe is None:
                break
            tried[chunk], cost_s, gain = probe.step_s, max(0.05, probe.first_s), NEXT_GAIN
        return bool(tried)

    def _shared_chunk(self, strategy: Strategy) -> int:
        """Its chunk, or a smaller one that keeps all cores busy: what is compiled then serves these, too."""
        if strategy.outer != "inline":
            return strategy.chunk
        return self._chunk_for(strategy, n_workers(Strategy("threads")))

    def _next_compiled(self, tried: Mapping[int, float], first: int, most: int) -> int | None:
        """A neighbour, half or double, of the best chunk so far. None if all are known."""
        best = min(tried, key=lambda chunk: tried[chunk], default=None)
        sizes = (first,) if best is None else (best // 2, 2 * best)
        near = [self._even(max(2, min(most, size)), most) for size in sizes]
        return next((chunk for chunk in near if chunk not in tried), None)

    def _graphs(self, strategy: Strategy) -> int:
        """How many shapes of a compiled step all clients need: the tail of ragged ones needs many."""
        if not self._is_even:
            return len(halves(strategy.chunk))
        return 1 + bool(self._n % strategy.chunk)

    def _try_threads(self) -> None:
        """What is fast in one thread, spread over the cores.

        The best of each kind: what gains most from that need not be what was fastest. Then other chunks of
        the best, as cores share caches.
        """
        meter, cores = self.meter, n_workers(Strategy("threads"))
        if cores == 1:
            meter.reasons["threads"] = "this process may use one core only"
            return
        if self._draws("threads"):
            return
        known, gain = len(meter.probes), CORES_GAIN
        for found in _best_of_each_kind([p for p in meter.probes if p.strategy.outer == "inline"]):
            self._probe_threads(self._spread_over(found, "threads", cores), gain)
            gain = 0.0  # of another kind, beyond that of the first
        best = min(meter.probes[known:], key=lambda p: p.step_s, default=None)
        if best is None or not best.strategy.is_fused or best.step_s > FLAT * meter.least_s():
            return
        for times in (0.5, 2.0):
            best = self._walk_threads(best, times, cores)

    def _walk_threads(self, best: Probe, times: float, cores: int) -> Probe:
        """Other chunks, on by halves or doubles while they are about as fast: cores share caches."""
        each = min(-(-self._n // cores), max(1, self._most("inline") // cores))
        gain = NEXT_GAIN if best.strategy.is_compiled else 0.0
        at: Probe | None = best
        for _ in range(MOST_WALK):
            chunk = self._even(max(1, min(int(times * at.strategy.chunk), each)), each)
            if chunk == at.strategy.chunk:
                break
            at = self._probe_threads(replace(best.strategy, chunk=chunk), gain)
            if at is None or at.step_s > FLAT * best.step_s:
                break
            best = min(best, at, key=lambda p: p.step_s)
        return best

    def _probe_threads(self, strategy: Strategy, gain: float = 0.0) -> Probe | None:
        """Measured if it is not known; None if that is not affordable, or fails.

        Threads share what is compiled, for so many rows once.
        """
        meter, start_s, made_s = self.meter, 0.0, 0.0
        if strategy.is_compiled:
            rows = strategy.rows_for(self._n, n_workers(strategy))
            here = [p for p in meter.probes if p.strategy.outer in ("inline", "threads")]
            kin = {p.strategy.rows: p for p in here if p.strategy.inner == strategy.inner}
            start_s = 0.0 if rows in kin else max(p.first_s for p in kin.values())
            made_s = kin[rows].first_s if rows in kin else 0.0
        probe = next((p for p in meter.probes if p.strategy == strategy), None)
        if probe is None and meter.can_afford(strategy, start_s=start_s, gain=gain):
            probe = meter.probe(strategy, has_trial=strategy.is_compiled)
            if probe is not None:
                probe.first_s += made_s
        return probe

    def _try_processes(self) -> None:
        """The best in processes, which share no interpreter lock; their starting must be repaid."""
        meter, best = self.meter, self.meter.best()
        cores = n_workers(Strategy("processes"))
        gpus = n_gpus()
        for outer, workers in (("processes", cores), ("devices", gpus)):
            if min(workers, self._n) < 2:
                continue
            strategy = self._spread_over(best, outer, workers)
            if outer == "processes" and best.strategy.outer == "threads":
                alone_s = min(p.step_s for p in meter.probes if p.strategy.outer == "inline")
                if alone_s / best.step_s > SCALES * workers:
                    meter.reasons[str(strategy)] = "threads keep the cores busy as well"
                    continue
            start_s = START_S + (best.first_s if strategy.is_compiled else 0.0)
            if meter.can_afford(strategy, start_s=start_s):
                meter.probe(strategy)

    def _spread_over(self, probe: Probe, outer: str, workers: int) -> Strategy:
        chunk = self._chunk_for(probe.strategy, workers)
        known = workers if outer != "devices" else None
        return replace(probe.strategy, outer=outer, workers=known, chunk=chunk)

    def _chunk_for(self, strategy: Strategy, workers: int) -> int:
        """Its chunk, or what keeps so many workers busy."""
        each = -(-self._n // workers)
        chunk = strategy.chunk
        return self._even(max(1, min(chunk, each)), each) if strategy.is_fused else chunk

    def _draws(self, outer: str) -> bool:
        if self._survey is None or not self._survey.draws:
            return False
        self.meter.reasons[outer] = "the model draws from torch's own generator, which threads share"
        return True


def _best_of_each_kind(probes: Sequence[Probe]) -> list[Probe]:
    """The fastest of every inner strategy, the fastest of all first; none that is far slower than that."""
    kinds: dict[str, Probe] = {}
    for probe in sorted(probes, key=lambda p: p.step_s):
        kinds.setdefault(probe.strategy.inner, probe)
    found = list(kinds.values())
    return [p for p in found if p.step_s <= NEAR * found[0].step_s]
