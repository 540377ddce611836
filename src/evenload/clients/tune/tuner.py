"""Strategies measured on the user's own clients, by successive halving within a share of the job's seconds.

    serial ─► what differs in one thing from what is near: chunk, cores, compiled ─► the near ones in turns

Each strategy is sampled by itself at first. The near ones are then sampled in turns, so that what slows the
machine slows all of them alike; the worse half is dropped, and the rest get longer samples, up to whole
rounds (Jamieson and Talwalkar, Non-stochastic best arm identification, 2016). Samples take a small share of
the job by the cheapest strategy, and compiling a third of what it is expected to save.

Serial training is what a program would have taken anyway, so it loses nothing. Another strategy is taken if
it is faster by more than its samples can be wrong: each turn leaves less doubt. Hand-written rules, which are
there because they are faster, are believed.

What several cores gain by the clock is weighed against the CPU time that they take: the strategy with the
least product of the two is taken, so two cores have to save 30 % of the time that one takes. (Circuits and
programs are compared by such products of energy and delay: Horowitz, Indermaur and Gonzalez, Low-power
digital design, 1994.) None that may need more CPU time than serial training is taken unless it ends three
times as soon.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evenload._plain_text import seconds_text
from evenload.clients.fused.engine import longest_first
from evenload.clients.fused.rules import has_rules
from evenload.clients.spread.dispatch_clients import ClientDispatcher, free_bytes, n_gpus, why_no_streams
from evenload.clients.tune.engine_checks import EngineChecks
from evenload.clients.tune.expected_cost import DOUBT, FEW, SHARE, Expectation, even_chunk
from evenload.clients.tune.step_work import most_clients
from evenload.clients.values.strategy import ClientPlan, Strategy, halves, n_workers
from evenload.clients.values.task import ClientTask

# Seconds, assumed, of processes that import torch, or of compiling; a hundredth is always spent.
START_S = 5.0
NEARLY = 1 + SHARE  # times as much is as good: what is less than samples may take is not worth a change
FAR = 3.0  # times as good is far better: worth a compilation, or the CPU time of many cores


@dataclass(slots=True)
class Probe:
    """A measured strategy.

    step_s   seconds per client and step
    first_s  seconds before the first warm step: tracing, compiling, starting threads
    cpu_s    CPU seconds per client and step, of all threads
    proof    turns with others that show it; of whole rounds each counts as seven, as samples of a few clients
             may be off by a tenth, however many
    """

    strategy: Strategy
    step_s: float
    first_s: float
    cpu_s: float
    proof: float = 0.0

    @property
    def cost_s(self) -> float:
        """Between the seconds by the clock and those of all cores: their geometric mean."""
        return math.sqrt(self.step_s * self.cpu_s)

    @property
    def doubt(self) -> float:
        """Times its samples that the strategy may cost."""
        return 1 + DOUBT / (1 + self.proof)


class Tuner:
    """The search for the fastest strategy for one kind of tasks, of which ``rounds`` rounds are to come.

    expected  what is expected of these tasks: the chunk to begin with, what compiling gains, and the strategy
              to take where the budget pays for measuring no fused one
    clocks    seconds; this thread's CPU seconds; those of all threads
    probes    the measured strategies in order, serial training first
    reasons   strategy or inner name -> why it was not measured, or not to the end
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
        self._dispatcher, self._checks, self._traits = dispatcher, checks, checks.traits(tasks)
        self._clock, self._thread_clock, self._cpu_clock = clocks
        self._expected, self._rounds = expected, rounds
        self._tasks, self._n = list(longest_first(tasks)), len(tasks)
        self._round_steps = _steps(tasks)
        self._is_even = len({task.batches.n_steps for task in tasks}) == 1
        self.probes: list[Probe] = []
        self.reasons: dict[str, str] = {}
        self._sampled_s = self._compiled_s = 0.0
        self._usable: dict[tuple, bool] = {}
        self._room: dict[str, int] = {}  # outer strategy -> clients that fit into its memory

    def decide(self) -> ClientPlan:
        """Measure, and return the plan with the fastest strategy."""
        self._sample(Strategy())
        if self.job_s() < START_S / 100 or self._n == 1:
            return self._plan(
                f"all rounds take {seconds_text(self.job_s(), 2)} serially: there is nothing to gain"
            )
        self._search()
        self._halve()
        expected, probes = self._expected.strategy, self.probes
        if expected.is_fused and not any(p.strategy.is_fused for p in probes) and "fused" not in self.reasons:
            why = "expected to be the fastest; measuring it would not pay"
            return ClientPlan(expected, why, self.reasons, self._table())
        if self._why_not() and self._best() is probes[0]:
            return self._plan(f"none of {len(probes)} measured strategies is better beyond doubt")
        return self._plan(f"the fastest of {len(probes)} measured strategies")

    def _plan(self, why: str) -> ClientPlan:
        return ClientPlan(self._best().strategy, why, self.reasons | self._why_not(), self._table())

    # --- the search -------------------------------------------------------------------------------

    def _search(self) -> None:
        """Sample what is worth it of the moves, anew after each sample, until nothing is left."""
        tried: set[Strategy] = set()
        while new := [one for one in map(self._fitted, self._moves()) if one not in tried]:
            tried.add(new[0])
            if self._can_afford(new[0]) and self._is_usable(new[0]):
                self._sample(new[0])

    def _moves(self) -> Iterator[Strategy]:
        """What differs in one thing from the near ones, the best of each kind; the dear ones last."""
        cores, kinds = n_workers(Strategy("threads")), [p.strategy for p in self._kinds()]
        one_core = "this process may use one core only" if cores == 1 else None
        for at in kinds:
            if at == Strategy():
                yield from self._first_chunks()
            if at.outer == "inline" and not self._why_alone("streams", why_no_streams()):
                yield replace(at, outer="streams", workers=1)
            if at.is_fused:
                near = [p.strategy for p in self._near()]
                alike = [one.chunk for one in near if replace(one, chunk=at.chunk) == at]
                chunks = (*(4 * c for c in alike), *(c // 4 for c in alike), at.chunk // 2, 2 * at.chunk)
                yield from (replace(at, chunk=max(1, chunk)) for chunk in chunks)
            if at.outer == "inline" and not self._why_alone("threads", one_core):
                yield replace(at, outer="threads", workers=cores)
            if at.outer == "streams" and (at.workers or 1) < self._n:
                yield replace(at, workers=2 * (at.workers or 1))
        eager = (at for at in kinds if at.is_fused and not at.is_compiled)
        yield from (replace(at, inner=f"{at.inner}-compiled") for at in eager)
        # Processes share no interpreter lock.
        for outer, workers in (("processes", n_workers(Strategy("processes"))), ("devices", n_gpus())):
            if min(workers, self._n) > 1:
                number = workers if outer == "processes" else None
                yield replace(self._best().strategy, outer=outer, workers=number)

    def _first_chunks(self) -> Iterator[Strategy]:
        """The chunk that is expected to be the best, or one found, until there is one of each inner kind."""
        fused = [p for p in self.probes if p.strategy.is_fused]
        chunk = min(fused, key=lambda p: p.cost_s).strategy.chunk if fused else self._expected.chunk
        for inner in ("rules", "fused") if has_rules(self._dispatcher.model) else ("fused",):
            if not any(p.strategy.inner == inner for p in fused):
                yield from (Strategy(inner=inner, chunk=chunk >> i) for i in range(chunk.bit_length()))

    def _kinds(self) -> list[Probe]:
        """The cheapest of every kind in this process among the near ones, sorted."""
        kinds: dict[tuple[str, str], Probe] = {}
        for p in sorted((self.probes[0], *self._near()), key=lambda p: p.cost_s):
            if p.strategy.outer not in ("processes", "devices"):
                kinds.setdefault((p.strategy.outer, p.strategy.inner), p)
        return list(kinds.values())

    def _fitted(self, strategy: Strategy) -> Strategy:
        """The strategy with a chunk as far as clients and memory reach."""
        if not strategy.is_fused:
            return strategy
        workers = n_gpus() if strategy.outer == "devices" else n_workers(strategy)
        most = max(1, min(-(-self._n // workers), self._room_of(strategy.outer) // workers))
        chunk = min(strategy.chunk, most)
        return replace(strategy, chunk=even_chunk(chunk, most) if self._is_even else chunk)

    def _room_of(self, outer: str) -> int:
        """Clients that fit into the memory that such workers share."""
        if outer not in self._room:
            free = free_bytes(self._dispatcher.streams.device) if outer == "streams" else None
            self._room[outer] = most_clients(self._dispatcher.model, self._tasks[0], free)
        return self._room[outer]

    def _why_alone(self, outer: str, reason: str | None) -> str | None:
        """Why there are no such workers: ``reason``, or generators that they would share. Notes it."""
        if reason is None and self._traits is not None and self._traits.draws:
            reason = "the model draws from generators that threads share"
        if reason is not None:
            self.reasons[outer] = reason
        return reason

    # --- the choice -------------------------------------------------------------------------------

    def _best(self) -> Probe:
        """The allowed strategy of least believed cost; of nearly equal ones the first, which needs less."""
        found = [p for p in self.probes if self._is_allowed(p, p.doubt)]
        least_s = min(map(self._believed, found))
        return next(p for p in found if self._believed(p) <= NEARLY * least_s)

    def _believed(self, probe: Probe) -> float:
        """Seconds that the strategy is believed to cost: rules are written because they are faster."""
        is_sure = probe is self.probes[0] or probe.strategy.inner.startswith("rules")
        return probe.cost_s * (1.0 if is_sure else probe.doubt)

    def _is_allowed(self, probe: Probe, doubt: float) -> bool:
        """Is it in one thread, or beyond doubt in need of no more CPU time than serial, or far faster?"""
        serial = self.probes[0]
        return (
            probe.strategy.outer == "inline"
            or probe.cpu_s * doubt <= NEARLY * serial.cpu_s
            or FAR * probe.step_s <= serial.step_s
        )

    def _why_not(self) -> dict[str, str]:
        """Strategies that take less time than the best by their samples, and why they are not it."""
        best, reasons = self._best(), {}
        for p in self.probes:
            if NEARLY * p.step_s < best.step_s and p.cpu_s > best.cpu_s:
                reasons[str(p.strategy)] = (
                    f"{best.step_s / p.step_s:.2f} times as fast, for {p.cpu_s / best.cpu_s:.2f} times"
                    " the CPU time"
                )
            elif NEARLY * p.cost_s < best.cost_s:
                times = best.cost_s / p.cost_s
                reasons[str(p.strategy)] = f"{times:.2f} times as fast, in too few samples to take it"
        return reasons

    def _table(self) -> tuple[Mapping[str, str | float], ...]:
        """The rows of ``ClientPlan.probes``."""
        serial_s, best = self.probes[0].step_s, self._best()
        return tuple(
            {
                "strategy": str(p.strategy),
                "ms per client-step": p.step_s * 1e3,
                "times serial": serial_s / p.step_s,
                "first, s": p.first_s,
                "picked": "<-" if p is best else "",
            }
            for p in self.probes
        )

    # --- the budget -------------------------------------------------------------------------------

    def job_s(self) -> float:
        """Seconds that all rounds take by the cheapest strategy so far."""
        return self._rounds * self._round_steps * min(p.cost_s for p in self.probes)

    def _left_s(self) -> float:
        """Seconds left for samples."""
        return max(SHARE * self.job_s(), START_S / 100) - self._sampled_s

    def _can_afford(self, strategy: Strategy) -> bool:
        """Does the budget pay for starting, compiling, a cold step and a sample? Else notes the reason.

        Compiling has to save three times what it costs, by the operations of a step. Where nothing is
        expected of it, it may take what samples may.
        """
        start_s = START_S if strategy.outer in ("processes", "devices") else 0.0
        if start_s and strategy.is_compiled:  # each process compiles for itself
            start_s += self._best().first_s
        elif strategy.is_compiled:
            cost_s, gain = self._compiling(strategy)
            share = SHARE if gain is None else gain / FAR
            if not self._pays(strategy, cost_s, share * self.job_s() - self._compiled_s):
                return False
        n_steps = sum(_steps(self._some(strategy, at)) for at in (0, self._first_steps(strategy)))
        job_share = n_steps / (self._rounds * self._round_steps * math.sqrt(n_workers(strategy)))
        return self._pays(strategy, start_s + job_share * self.job_s(), self._left_s())

    def _compiling(self, strategy: Strategy) -> tuple[float, float | None]:
        """Seconds that compiling takes, and the part of the job that it is expected to save, if known.

        Threads share compiled graphs: each number of rows is compiled once. Clients of unequal length end in
        steps of many sizes.
        """

        def rows_of(one: Strategy) -> int:
            return one.rows_for(self._n, n_workers(one))

        kin = [p for p in self.probes if p.strategy.inner == strategy.inner]
        if any(rows_of(p.strategy) == rows_of(strategy) for p in kin):
            return 0.0, 1.0
        graphs = 1 + bool(self._n % strategy.chunk) if self._is_even else len(halves(strategy.chunk))
        if kin:
            return graphs * max(p.first_s for p in kin), None
        eager = [p for p in self.probes if f"{p.strategy.inner}-compiled" == strategy.inner]
        return graphs * START_S, self._expected.compiling(strategy.chunk, min(p.step_s for p in eager))

    def _pays(self, strategy: Strategy, cost_s: float, left_s: float) -> bool:
        if cost_s > left_s:
            job_s = f"all {self._rounds} rounds take {seconds_text(self.job_s(), 2)}"
            self.reasons[str(strategy)] = (
                f"to start and measure it would take {seconds_text(cost_s, 2)}, {job_s}"
            )
        return cost_s <= left_s

    # --- samples ----------------------------------------------------------------------------------

    def _is_usable(self, strategy: Strategy) -> bool:
        """Does its engine do what serial training does? Else notes the reason."""
        key = strategy.inner, strategy.chunk if strategy.is_compiled else None
        if strategy.is_fused and key not in self._usable:
            began = self._clock()
            refusal = self._checks.check(strategy, self._tasks).refusal
            self._compiled_s += (self._clock() - began) * strategy.is_compiled
            if refusal is not None:
                self.reasons[strategy.inner] = refusal
            self._usable[key] = refusal is None
        return not strategy.is_fused or self._usable[key]

    def _sample(self, strategy: Strategy) -> None:
        """Sample the strategy by itself, warm; notes the reason if it fails."""
        began, sampled_s = self._clock(), self._sampled_s
        cold = self._some(strategy, 0)
        is_done = self._time(strategy, cold, self._clock) is not None
        cold_s = self._clock() - began
        # In this thread a slow first step is torch's own start, which a program pays once.
        self._sampled_s = sampled_s + (0.0 if strategy.outer == "inline" or strategy.is_compiled else cold_s)
        self._compiled_s += cold_s if strategy.is_compiled else 0.0
        tasks, clock = self._some(strategy, self._first_steps(strategy)), self._clock_for([strategy])
        samples = [self._time(strategy, tasks, clock) for _ in range(2)] if is_done else [None]
        if None in samples:
            return
        step_s, cpu_s = (min(column) / _steps(tasks) for column in zip(*filter(None, samples), strict=True))
        self.reasons.pop(str(strategy), None)  # why it was too dear before
        self.probes.append(Probe(strategy, step_s, max(0.0, cold_s - _steps(cold) * step_s), cpu_s))

    def _halve(self) -> None:
        """Sample the near strategies in turns, drop the worse half, and so on with longer samples."""
        near = self._near()
        while near:
            self._take_turns(near, self._left_s() / (1 + math.ceil(math.log2(len(near)))))
            near = sorted(near, key=lambda p: p.cost_s)[: len(near) // 2]

    def _near(self) -> list[Probe]:
        """The strategies beside serial training that may be the best, if their samples are right; sorted."""
        allowed = [p for p in self.probes if self._is_allowed(p, 1.0)]
        least_s = min(p.cost_s for p in allowed)
        near = (p for p in allowed[1:] if p.cost_s <= (1 + DOUBT) * least_s)
        return sorted(near, key=lambda p: p.cost_s)

    def _take_turns(self, near: Sequence[Probe], until_s: float) -> None:
        """Sample in turns for ``until_s``, if that is enough; sets costs by ratios to serial's in each turn.

        Serial training is in every turn: costs from several rounds of turns are then comparable, however the
        machine was slowed in each.
        """
        serial, *_ = probes = [self.probes[0], *near]
        n_steps = until_s / (FEW * sum(p.step_s for p in probes))
        samples = [self._some(p.strategy, n_steps) for p in probes]
        sizes = [_steps(tasks) for tasks in samples]
        turn_s = sum(p.step_s * size for p, size in zip(probes, sizes, strict=True))
        if 2 * turn_s > until_s:  # one turn says nothing
            return
        clock, turns = self._clock_for([p.strategy for p in probes]), []
        for turn in range(min(FEW * FEW, int(until_s / turn_s))):
            order = range(len(probes))[:: -1 if turn % 2 else 1]
            found = {at: self._time(probes[at].strategy, samples[at], clock) for at in order}
            turns.append([found[at] for at in range(len(probes))])
        for at, probe in enumerate(probes):
            pairs = [(own, first) for turn in turns if (own := turn[at]) and (first := turn[0])]
            if len(pairs) < len(turns):  # it failed
                continue
            ratios = [[x / y for x, y in zip(*pair, strict=True)] for pair in pairs]
            step, cpu = (
                statistics.median(column) * sizes[0] / sizes[at] for column in zip(*ratios, strict=True)
            )
            probe.step_s, probe.cpu_s = serial.step_s * step, serial.cpu_s * cpu
            probe.proof += len(turns) * (1 + 6 * sizes[at] / self._round_steps)

    def _first_steps(self, strategy: Strategy) -> float:
        """Steps in the first sample of a strategy: of a few clients for each of its rows at most.

        A 64th of the budget: two samples of ten strategies are then a third of it.
        """
        n_steps = SHARE * self._rounds * self._round_steps / 64
        return min(n_steps, FEW * _steps(self._tasks[: strategy.rows * n_workers(strategy)]))

    def _some(self, strategy: Strategy, n_steps: float) -> list[ClientTask]:
        """Clients that fill every worker's rows, with about ``n_steps`` steps in all; 0: one of each."""
        most, whole = self._n, self._tasks[0].batches.n_steps
        rows = min(most, strategy.rows * n_workers(strategy))
        each = min(whole, max(FEW, int(n_steps / rows)) if n_steps else 1)
        if strategy.outer in ("processes", "devices"):  # a process gets and returns a whole client
            each = whole
        n = min(most, rows * max(1, int(n_steps / (rows * each))))
        if each == whole:
            return self._tasks[:n]
        return [dataclasses.replace(t, batches=t.batches.some(slice(each))) for t in self._tasks[:n]]

    def _clock_for(self, strategies: Sequence[Strategy]) -> Callable[[], float]:
        """This thread's CPU time if it does all by itself, as other programs may use the machine, too."""
        is_alone = all(strategy.outer == "inline" for strategy in strategies)
        return self._thread_clock if is_alone and self._dispatcher.threads == 1 else self._clock

    def _time(
        self, strategy: Strategy, tasks: Sequence[ClientTask], clock: Callable[[], float]
    ) -> tuple[float, float] | None:
        """Seconds for training ``tasks``, and CPU seconds; None if it fails, and a reason why."""
        is_alone = self._clock_for([strategy]) is self._thread_clock
        cpu_clock = self._thread_clock if is_alone else self._cpu_clock
        began_cpu, began = cpu_clock(), clock()
        try:
            for _ in self._dispatcher.dispatch(strategy, self._traits, tasks, n_workers(strategy)):
                pass
        except Exception as error:
            if strategy == Strategy():
                raise
            self.reasons[str(strategy)] = f"it fails: {type(error).__name__}: {error}".splitlines()[0]
            return None
        finally:
            self._sampled_s += clock() - began
        spent_s, cpu_s = clock() - began, cpu_clock() - began_cpu
        if strategy.outer in ("streams", "devices"):  # what computes is no core
            cpu_s = spent_s
        elif strategy.outer == "processes":
            cpu_s = spent_s * n_workers(strategy)
        return spent_s, cpu_s


def _steps(tasks: Sequence[ClientTask]) -> int:
    return sum(task.batches.n_steps for task in tasks)
