"""A simulated machine with neighbours: every strategy has true costs, and what is measured of them is noisy.

neighbours  slow all that computes for a while, by the clock and in CPU time (shared caches, stolen time)
pauses      of a heavy-tailed length, by the clock alone
samples     of a few clients have other caches than whole rounds, and a few per cent of their own
"""

import math
import random
from dataclasses import dataclass

from evenload.clients.spread.equivalence_check import CheckResult
from evenload.clients.tune.step_work import StepWork
from evenload.clients.values.strategy import Strategy, n_workers

# A common core: seconds for starting an operation, serially and of many clients; in arithmetic; in compiling.
OP_S, FUSED_OP_S = 3.5e-6, 1.2e-5
FLOP_S, ELEMENT_S = 1 / 7e10, 2e-10
BATCHED = 1.15  # times as long takes arithmetic on stacks of small matrices
COMPILE_S, COMPILE_OP_S = 2.0, 0.06
CHECKED_STEPS = 12  # serial steps that comparing an engine with serial training takes, about


@dataclass(frozen=True)
class TrueCosts:
    """What strategies take with nothing else running: CPU seconds of a step and client, in whole rounds.

    work       what is known of a step beforehand
    start_s    of a serial step's operations; arithmetic_s: the rest of it
    begin      steps that a client's start takes
    launch_s   of a fused step's operations, whatever its clients; each: of a client in it, in arithmetic_s
    cached     clients whose numbers fit into the caches; spilled: times as long beyond that
    shared     times the CPU time that two threads take; busy: share of the cores that they keep busy
    compiled   share of the launch that is left if the step is compiled, which takes ``compile_s``
    few        times as long takes a sample of few clients, in fused steps and threads
    by_rules   of a client in a step by hand-written rules, in arithmetic_s; rules_cached: as cached
    """

    work: StepWork
    start_s: float
    arithmetic_s: float
    begin: float
    launch_s: float
    each: float
    cached: int
    spilled: float
    shared: float
    busy: float
    compiled: float
    compile_s: float
    few: float
    by_rules: float
    rules_cached: int

    @classmethod
    def drawn(cls, draw: random.Random, rules=False) -> "TrueCosts":
        n_ops = int(30 * 10 ** draw.uniform(0, 1))
        arithmetic_s = 10 ** draw.uniform(-5, -2)
        work = StepWork(n_ops, arithmetic_s / FLOP_S, int(arithmetic_s / 1e-9))

        def off() -> float:
            return math.exp(draw.gauss(0, 0.2))

        return cls(
            work=work,
            start_s=OP_S * n_ops * off(),
            arithmetic_s=(FLOP_S * work.flops + ELEMENT_S * work.elements) * off(),
            begin=draw.uniform(0, 2),
            launch_s=FUSED_OP_S * n_ops * off(),
            each=BATCHED * off() * (draw.uniform(1.5, 4) if rules else 1),
            cached=draw.choice([2, 8, 32, 1000]),
            spilled=draw.uniform(1, 1.4),
            shared=draw.uniform(1.0, 1.35),
            busy=draw.uniform(0.6, 1),
            compiled=draw.uniform(0.1, 0.5),
            compile_s=draw.uniform(0.7, 1.5) * (COMPILE_S + COMPILE_OP_S * n_ops),
            few=draw.uniform(0.88, 1.05),
            by_rules=draw.uniform(0.3, 1.0) if rules else 1.0,
            rules_cached=draw.choice([1, 2, 4, 8, 1000]) if rules else 1,
        )

    def cpu_s(self, strategy: Strategy, n_clients: int, n_steps: int, n_all: int) -> float:
        """CPU seconds for so many clients, each of so many steps, of a round of ``n_all`` clients."""
        workers, serial_s = n_workers(strategy), self.start_s + self.arithmetic_s
        if strategy.is_fused:
            rows = min(strategy.chunk, -(-n_clients // workers))
            launch_s = self.launch_s * (self.compiled if strategy.is_compiled else 1)
            if strategy.inner.startswith("rules"):
                each_s = (
                    self.by_rules
                    * self.arithmetic_s
                    * (self.spilled if rows * workers > self.rules_cached else 1)
                )
            else:
                each_s = self.each * self.arithmetic_s * (self.spilled if rows * workers > self.cached else 1)
            cpu_s = n_steps * (-(-n_clients // rows) * launch_s + n_clients * each_s) + self.begin * serial_s
        else:
            cpu_s = n_clients * (n_steps + self.begin) * serial_s
        is_few = n_clients < n_all and (strategy.is_fused or workers > 1)
        return cpu_s * (self.shared if workers > 1 else 1) * (self.few if is_few else 1) + 1e-4 * (
            workers - 1
        )

    def wall_s(self, strategy: Strategy, cpu_s: float) -> float:
        workers = n_workers(strategy)
        return cpu_s / (workers * self.busy) if workers > 1 else cpu_s


class NoisyMachine:
    """Stands where the workers stand, and for the checks of engines; its clocks move by what runs."""

    def __init__(self, model, traits, costs: TrueCosts, n_clients: int, draw: random.Random):
        self.model, self.threads, self._traits = model, 1, traits
        self.costs, self._n, self._draw = costs, n_clients, draw
        self.now = self.spent_s = self.compiled_s = 0.0
        self._factor, self._until, self._warm, self._graphs = 1.0, 0.0, set(), set()

    def clock(self) -> float:
        return self.now

    def cpu_clock(self) -> float:
        return self.spent_s

    def dispatch(self, strategy, traits, tasks, workers):
        n_steps = tasks[0].batches.n_steps
        cpu_s = self.costs.cpu_s(strategy, len(tasks), n_steps, self._n)
        if strategy not in self._warm:
            self._warm.add(strategy)
            cpu_s += 1e-3
        if strategy.is_compiled and (strategy.inner, strategy.rows) not in self._graphs:
            self._graphs.add((strategy.inner, strategy.rows))
            cpu_s += self.costs.compile_s
            self.compiled_s += self.costs.compile_s
        self._pass(strategy, cpu_s)
        yield []

    def _pass(self, strategy: Strategy, cpu_s: float) -> None:
        cpu_s = self._slowed(cpu_s) * math.exp(self._draw.gauss(0, 0.03))
        cpu_s += self._tail(2.0 * cpu_s, 5e-4, 0.02)
        self.spent_s += cpu_s
        wall_s = self.costs.wall_s(strategy, cpu_s)
        self.now += wall_s + self._tail(3.0 * wall_s, 1e-3, 1.0)

    def _slowed(self, cpu_s: float) -> float:
        """What so many seconds become beside neighbours, who come and go."""
        at, taken = self.now, 0.0
        while True:
            if at >= self._until:
                self._factor = 1.0 if self._factor > 1 else self._draw.uniform(1.1, 1.5)
                self._until = at + self._draw.expovariate(1 / 0.5)
            step = min(cpu_s * self._factor, self._until - at)
            at, taken, cpu_s = at + step, taken + step, cpu_s - step / self._factor
            if cpu_s <= 1e-12:
                return taken

    def _tail(self, expected: float, least_s: float, most_s: float) -> float:
        """The sum of so many expected pauses, each of a Pareto-distributed length."""
        total, left = 0.0, self._draw.expovariate(1.0)
        while left < expected:
            total += min(most_s, least_s * self._draw.paretovariate(0.9))
            left += self._draw.expovariate(1.0)
        return total

    # --- the checks of engines ---

    def traits(self, tasks):
        return self._traits

    def check(self, strategy, tasks):
        self._pass(Strategy(), CHECKED_STEPS * (self.costs.start_s + self.costs.arithmetic_s))
        return CheckResult(None, 0.0)

    # --- the truth ---

    def job_s(self, strategy: Strategy, rounds: int) -> float:
        """CPU seconds of all rounds by the strategy, on a quiet machine."""
        return rounds * self.costs.cpu_s(strategy, self._n, 10, self._n)
