"""Strategies raced on the user's own clients, by successive halving within a share of the job's seconds.

Each strategy is sampled by itself at first. The near ones are then sampled in turns, so that what slows the
machine slows all of them alike; the worse half is dropped, and the rest get longer samples, up to whole
rounds (Jamieson and Talwalkar, Non-stochastic best arm identification, 2016).

Serial training is what a program would have taken anyway, so it loses nothing. Another strategy is taken if
it was expected to be faster, or is so by more than its samples can be wrong: each turn leaves less doubt.

What several cores gain by the clock is weighed against the CPU time that they take: the strategy with the
least product of the two is taken, so two cores have to save 30 % of the time that one takes. (Circuits and
programs are compared by such products of energy and delay: Horowitz, Indermaur and Gonzalez, Low-power
digital design, 1994.) None that may need more CPU time than serial training is taken unless it ends three
times as soon.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evenload._plain_text import seconds_text
from evenload.clients.fused.engine import longest_first
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.tune.engine_checks import EngineChecks
from evenload.clients.tune.expected_cost import FEW, SHARE
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.clients.values.task import ClientTask

WORTH_S = 0.05  # seconds that may be spent on samples however short the job is
DOUBT = 0.6  # of its cost, that a strategy may cost more which was sampled by itself; turns divide it
TIE = 1.03  # within this factor of the best, the one that was sampled first is taken: it needs less
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


class Race:
    """The samples of strategies on one kind of tasks, and the seconds that may be spent on them.

    rounds   rounds of these tasks that are to come: the job
    clock    gives seconds;  thread_clock  this thread's CPU seconds;  cpu_clock  those of all threads
    expects_fused  are fused steps expected to be faster, by the model's operations and sizes?
    probes   the measured strategies in order, serial training first
    reasons  strategy or inner name -> why it was not measured, or not to the end
    """

    def __init__(
        self,
        dispatcher: ClientDispatcher,
        checks: EngineChecks,
        tasks: Sequence[ClientTask],
        rounds: int,
        clocks: Sequence[Callable[[], float]],
        expects_fused: bool,
    ):
        self._dispatcher, self._checks, self._traits = dispatcher, checks, checks.traits(tasks)
        self._clock, self._thread_clock, self._cpu_clock = clocks
        self._expects_fused = expects_fused
        self.tasks = list(longest_first(tasks))
        self._rounds = rounds
        self._round_steps = sum(task.batches.n_steps for task in tasks)
        self.probes: list[Probe] = []
        self.reasons: dict[str, str] = {}
        self._open = 0.5  # of the budget: the rest is for what is tried after the first turns
        self._sampled_s = self._compiled_s = 0.0
        self._failed: set[Strategy] = set()

    # --- the choice -------------------------------------------------------------------------------

    def best(self) -> Probe:
        """The allowed strategy of least believed cost; the first of nearly equal ones."""
        found = [p for p in self.probes if self._is_allowed(p, p.doubt)]
        costs = [self._believed(p) for p in found]
        return next(p for p, cost_s in zip(found, costs, strict=True) if cost_s <= TIE * min(costs))

    def _believed(self, probe: Probe) -> float:
        """Seconds that the strategy is believed to cost: rules are written because they are faster."""
        is_expected = self._expects_fused or probe.strategy.inner.startswith("rules")
        return probe.cost_s * (1.0 if is_expected or probe is self.probes[0] else probe.doubt)

    def allowed(self) -> list[Probe]:
        """What may be taken if its samples are right, in order."""
        return [p for p in self.probes if self._is_allowed(p, 1.0)]

    def _is_allowed(self, probe: Probe, doubt: float) -> bool:
        """Is it in one thread, or beyond doubt in need of no more CPU time than serial, or far faster?"""
        serial = self.probes[0]
        return (
            probe.strategy.outer == "inline"
            or probe.cpu_s * doubt <= TIE * serial.cpu_s
            or FAR * probe.step_s <= serial.step_s
        )

    def why_not(self) -> dict[str, str]:
        """Strategies that take less time than the best by their samples, and why they are not it."""
        best, reasons = self.best(), {}
        for p in self.probes:
            if TIE * p.step_s < best.step_s and p.cpu_s > best.cpu_s:
                reasons[str(p.strategy)] = (
                    f"{best.step_s / p.step_s:.2f} times as fast, for {p.cpu_s / best.cpu_s:.2f} times"
                    " the CPU time"
                )
            elif TIE * p.cost_s < best.cost_s:
                times = best.cost_s / p.cost_s
                reasons[str(p.strategy)] = f"{times:.2f} times as fast, in too few samples to take it"
        return reasons

    def table(self) -> tuple[Mapping[str, str | float], ...]:
        """The rows of ``TrainingPlan.probes``."""
        serial_s, best = self.probes[0].step_s, self.best()
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

    def left_s(self) -> float:
        """Seconds left for samples, of what is open of the budget."""
        return self._open * max(SHARE * self.job_s(), WORTH_S) - self._sampled_s

    def can_afford(self, strategy: Strategy, start_s: float = 0.0) -> bool:
        """Does the budget pay for ``start_s``, a cold step and a sample? Else notes the reason."""
        n_steps = sum(_steps(self._tasks(strategy, at)) for at in (0, self._first_steps(strategy)))
        job_share = n_steps / (self._rounds * self._round_steps * math.sqrt(n_workers(strategy)))
        return self._can(strategy, start_s + job_share * self.job_s(), self.left_s())

    def can_compile(self, strategy: Strategy, cost_s: float, gain: float | None) -> bool:
        """Does a compilation cost little of what it is expected to save, the part ``gain`` of the job?

        Where nothing is expected of it (None), it may take what samples may. Else notes the reason.
        """
        share = SHARE if gain is None else gain / FAR
        return self._can(strategy, cost_s, share * self.job_s() - self._compiled_s)

    def _can(self, strategy: Strategy, cost_s: float, left_s: float) -> bool:
        if cost_s > left_s:
            job_s = f"all {self._rounds} rounds take {seconds_text(self.job_s(), 2)}"
            self.reasons[str(strategy)] = (
                f"to start and measure it would take {seconds_text(cost_s, 2)}, {job_s}"
            )
        return cost_s <= left_s

    # --- samples ----------------------------------------------------------------------------------

    def is_usable(self, strategy: Strategy) -> bool:
        """Does its engine do what serial training does? Else notes the reason."""
        refusal = self._checks.check(strategy, self.tasks).refusal
        if refusal is not None:
            self.reasons[strategy.inner] = refusal
        return refusal is None

    def enter(self, strategy: Strategy) -> Probe | None:
        """Sample the strategy by itself, warm; None if it may not be used or fails."""
        began, sampled_s = self._clock(), self._sampled_s
        cold = self._tasks(strategy, 0)
        is_usable = strategy not in self._failed and (not strategy.is_compiled or self.is_usable(strategy))
        is_usable = is_usable and self._time(strategy, cold, self._clock) is not None
        cold_s = self._clock() - began
        # In this thread a slow first step is torch's own start, which a program pays once.
        self._sampled_s = sampled_s + (0.0 if strategy.outer == "inline" or strategy.is_compiled else cold_s)
        self._compiled_s += cold_s if strategy.is_compiled else 0.0
        tasks, clock = self._tasks(strategy, self._first_steps(strategy)), self._clock_for([strategy])
        samples = [self._time(strategy, tasks, clock) for _ in range(2)] if is_usable else [None]
        if None in samples:
            self._failed.add(strategy)
            return None
        step_s, cpu_s = (min(column) / _steps(tasks) for column in zip(*filter(None, samples), strict=True))
        self.reasons.pop(str(strategy), None)  # why it was too dear before
        self.probes.append(Probe(strategy, step_s, max(0.0, cold_s - _steps(cold) * step_s), cpu_s))
        return self.probes[-1]

    def halve(self) -> None:
        """Sample the near strategies in turns, drop the worse half, and so on with longer samples."""
        near, serial = self._near(), self.probes[0]
        while len(near) > 1:
            n_rungs = math.ceil(math.log2(len(near)))
            self._take_turns(near, self.left_s() / n_rungs)
            kept = sorted(near, key=lambda p: p.cost_s)[: len(near) // 2]
            if n_rungs > 1 and serial in near and self.best() is serial:
                kept = [serial, *(p for p in kept if p is not serial)]
            near = kept
        self._open = 1.0

    def _near(self) -> list[Probe]:
        """Serial training, and what may be the best."""
        serial, *others = self.allowed()
        least_s = min(p.cost_s for p in (serial, *others))
        near = (p for p in others if p.cost_s <= (1 + DOUBT) * least_s)
        return [serial, *sorted(near, key=lambda p: p.cost_s)]

    def _take_turns(self, near: Sequence[Probe], until_s: float) -> None:
        """Sample in turns for ``until_s``, if that is enough; sets costs by ratios to the first in a turn."""
        n_steps = until_s / (FEW * sum(p.step_s for p in near))
        samples = [self._tasks(p.strategy, n_steps) for p in near]
        sizes = [_steps(tasks) for tasks in samples]
        turn_s = sum(p.step_s * size for p, size in zip(near, sizes, strict=True))
        if 2 * turn_s > until_s:  # one turn says nothing
            return
        clock, turns = self._clock_for([p.strategy for p in near]), []
        for turn in range(min(FEW * FEW, int(until_s / turn_s))):
            order = range(len(near))[:: -1 if turn % 2 else 1]
            found = {at: self._time(near[at].strategy, samples[at], clock) for at in order}
            turns.append([found[at] for at in range(len(near))])
        firsts = [turn[0] for turn in turns]
        own_s = [statistics.median(column) for column in zip(*filter(None, firsts), strict=True)]
        for at, probe in enumerate(near):
            pairs = [(turn[at], first) for turn, first in zip(turns, firsts, strict=True)]
            ratios = [[x / y for x, y in zip(a, b, strict=True)] for a, b in pairs if a and b]
            if len(ratios) < len(turns):  # it failed
                continue
            step, cpu = (statistics.median(column) / sizes[at] for column in zip(*ratios, strict=True))
            probe.step_s, probe.cpu_s = own_s[0] * step, own_s[1] * cpu
            probe.proof += len(turns) * (1 + 6 * sizes[at] / self._round_steps)

    def _first_steps(self, strategy: Strategy) -> float:
        """Steps in the first sample of a strategy: of a few clients for each of its rows at most.

        A 64th of the budget: two samples of ten strategies are then a third of it.
        """
        n_steps = SHARE * self._rounds * self._round_steps / 64
        return min(n_steps, FEW * _steps(self.tasks[: strategy.rows * n_workers(strategy)]))

    def _tasks(self, strategy: Strategy, n_steps: float) -> list[ClientTask]:
        """Clients that fill every worker's rows, with about ``n_steps`` steps in all; 0: one of each."""
        most, whole = len(self.tasks), self.tasks[0].batches.n_steps
        rows = min(most, strategy.rows * n_workers(strategy))
        each = min(whole, max(FEW, int(n_steps / rows)) if n_steps else 1)
        if strategy.outer in ("processes", "devices"):  # a process gets and returns a whole client
            each = whole
        n = min(most, rows * max(1, int(n_steps / (rows * each))))
        return self.tasks[:n] if each == whole else [_cut(task, each) for task in self.tasks[:n]]

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


def _cut(task: ClientTask, n: int) -> ClientTask:
    return dataclasses.replace(task, batches=task.batches.some(slice(n)))
