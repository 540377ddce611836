"""Warm, timed samples of strategies on the user's own clients, and a budget for taking them.

No cold sample counts: a strategy runs once unmeasured, then the least of some repetitions is taken. All the
time spent counts against the budget, except for starting the fastest strategy, which the job needs anyway.
Clients one by one are sampled whole: beginning and ending one costs as much as several of its steps, and a
sample of a few steps would say that serial training is slower than it is.

A strategy in this thread alone is timed by the thread's CPU time, as other programs may use the machine, too;
one with several workers by the clock, and so are all strategies that are compared with it in the end.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from evenload.clients.fused.engine import longest_first
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.tune.choice import MOST_CPU, TIE, Probe, Proof, believed, best_of, compare
from evenload.clients.tune.engine_checks import EngineChecks
from evenload.clients.values.batches import Batches
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.clients.values.task import ClientTask

__all__ = ["ProbeTimer"]

# Shares are of the time that the job takes by the fastest strategy so far, if nothing else is said.
SHARE = 0.018  # the budget for finding the fastest strategy
WORTH_S = 0.05  # a budget of at least so many seconds
STEPS, MOST_STEPS = 3, 10  # of each client in a short sample: the least, and the most if the job is long
SAMPLE_SHARE = 0.0002  # of the job's steps, in a short sample of more than STEPS
ALONE_SHARE = 0.002  # of the job's steps, in a sample of clients one by one: whole ones, as far as it reaches
MOST_ALONE = 4  # clients of such a sample, for each worker
CONFIRM_SHARE = 0.006  # for comparing the fastest, whatever was spent before
REPEATS, MOST_REPEATS = 2, 4  # of a short sample: the usual, and the most if the job is long
REPEAT_SHARE = 0.001  # for all samples of one strategy, if there are more than REPEATS
TURNS_SHARE = 0.0004  # for one sample of threads that fill their rows several times
ENOUGH_S = 0.03  # a sample of so many seconds is repeated in a long job only
SURE = 3.0  # a strategy that exceeds the budget must be expected to save so many times its cost
RISK = 0.08  # of the job, that compiling may take before anything has been won
SEARCH = 0.5  # of the budget, for the search of a chunk
WHOLE_REPEATS, MOST_WHOLE = 3, 6  # of whole rounds, when the fastest are compared; the most in a long job
CLOSE = 1.3  # strategies within this factor of the fastest are compared with it again
DISTURBED = 1.3  # times CLOSE, if a strategy was timed by the clock: other programs may have slowed it
MOST_CLOSE = 4  # strategies that are compared again, serial training among them
FEWEST_TURNS, FEWEST_ROUNDS = 3, 2  # that are compared: fewer say little
BY_FAR = 1.6  # times as good as serial training, a strategy is not compared with it again
MOST_TURNS = 4  # of short samples in turns, beyond the first


class ProbeTimer:
    """The measurements of strategies on one kind of tasks, and the budget for them.

    rounds   rounds of these tasks that are to come: the job
    clock    gives seconds;  thread_clock  this thread's CPU seconds;  cpu_clock  those of all threads
    expects_fused  are fused steps expected to be faster, by the model's operations and sizes? Samples that
             say so are doubted otherwise: see ``choice``
    probes   the measured strategies, in order
    reasons  strategy or inner name -> why it was not measured, or not to the end
    """

    def __init__(
        self,
        dispatcher: ClientDispatcher,
        checks: EngineChecks,
        tasks: Sequence[ClientTask],
        rounds: int,
        clock: Callable[[], float],
        thread_clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        *,
        expects_fused: bool = True,
    ):
        self._expects_fused = expects_fused
        self._dispatcher, self._checks, self._traits = dispatcher, checks, checks.traits(tasks)
        self._clock, self._thread_clock, self._cpu_clock = clock, thread_clock, cpu_clock
        self.tasks = list(longest_first(tasks))
        self._rounds = rounds
        self.job_steps = rounds * sum(task.batches.n_steps for task in tasks)
        self.probes: list[Probe] = []
        self.reasons: dict[str, str] = {}
        self._spent_s = 0.0
        self._compiled_s = 0.0  # of that, for compiled strategies

    # --- cost and budget --------------------------------------------------------------------------

    def best(self) -> Probe:
        """The strategy to take, by what was measured so far: see ``choice``."""
        return best_of(self.probes, self._expects_fused)

    def faster_by_the_clock(self) -> dict[str, str]:
        """Strategies that take less time than the best, and what they take for it."""
        best = self.best()
        return {
            str(
                p.strategy
            ): f"{best.step_s / p.step_s:.2f} times as fast, for {p.cpu_s / best.cpu_s:.2f} times"
            " the CPU time"
            for p in self.probes
            if TIE * p.step_s < best.step_s and p.cpu_s > best.cpu_s
        }

    def doubted(self) -> dict[str, str]:
        """Strategies that cost less than the best by their samples, and why they are not it."""
        best = self.best()
        return {
            str(p.strategy): f"{best.cost_s / p.cost_s:.2f} times as fast, in too few samples to take it"
            for p in self.probes
            if p is not best and TIE * p.cost_s < best.cost_s and p.cpu_s <= MOST_CPU * self.probes[0].cpu_s
        }

    def least_s(self) -> float:
        """Seconds per client and step of the fastest strategy."""
        return min(p.step_s for p in self.probes)

    def job_s(self) -> float:
        """Seconds that all rounds take by the fastest strategy so far."""
        return self.job_steps * self.least_s()

    def left_s(self, share: float = 1.0, *, is_sample: bool = False) -> float:
        """Seconds left of such a share of the budget.

        Time spent compiling in vain does not count for samples: what it was expected to save has paid for it.
        """
        fastest = min(self.probes, key=lambda p: p.step_s)
        own_s = 0.0 if _starts_with_torch(fastest.strategy) else fastest.first_s
        own_s = max(own_s, self._compiled_s) if is_sample else own_s
        return share * max(SHARE * self.job_s(), WORTH_S) - (self._spent_s - own_s)

    def risk_s(self) -> float:
        """CPU seconds that compiling may take in vain: what is believed to be won, or RISK of the job."""
        serial_s = self.probes[0].cpu_s
        cpu_s = min(believed(p, self._expects_fused) * p.cpu_s for p in self.probes)
        won_s = self.job_steps * (serial_s - cpu_s) - self._spent_s
        return max(won_s, RISK * self.job_steps * serial_s - self._compiled_s)

    def can_afford(
        self, strategy: Strategy, *, start_s: float = 0.0, gain: float = 0.0, share: float = 1.0
    ) -> bool:
        """Does the budget pay for ``start_s``, a cold step and timed samples? Else notes the reason.

        share  of the budget that may be used
        gain   the part of the job that the strategy is expected to save, which may pay for more
        """
        timed_s = self._sample_s(self._short(strategy))
        cost_s = start_s + self._sample_s(self._short(strategy, 1))
        cost_s += timed_s * (1 if timed_s > ENOUGH_S else REPEATS)
        left_s = self.left_s(share, is_sample=start_s == 0)
        risked_s = min(gain * self.job_s() / SURE, self.risk_s())
        is_enough = cost_s <= max(left_s, risked_s)
        if not is_enough:
            job_s = f"all {self._rounds} rounds take {self.job_s():.2g} s"
            self.reasons[str(strategy)] = f"to start and measure it would take {cost_s:.2g} s, {job_s}"
        return is_enough

    def _sample_s(self, tasks: Sequence[ClientTask]) -> float:
        return sum(t.batches.n_steps for t in tasks) * self.least_s()

    # --- measuring --------------------------------------------------------------------------------

    def is_usable(self, strategy: Strategy) -> bool:
        """Does its engine do what serial training does? Else notes the reason."""
        began = self._clock()
        refusal = self._checks.check(strategy, self.tasks).refusal
        if not _starts_with_torch(strategy):
            self._spent_s += self._clock() - began
        if refusal is not None:
            self.reasons[strategy.inner] = refusal
        return refusal is None

    def probe(self, strategy: Strategy, *, is_checked: bool = False) -> Probe | None:
        """Measure the strategy; None if it may not be used or fails. ``is_checked``: its engine first."""
        began = self._clock()
        is_usable = not is_checked or self.is_usable(strategy)
        is_usable = is_usable and self._time(strategy, self._short(strategy, 1), self._clock) is not None
        cold_s, samples = self._clock() - began, []
        if strategy.is_compiled:
            self._compiled_s += cold_s
        if not is_usable:
            return None
        tasks, clock = self._short(strategy), self._clock_for([strategy])
        steps, cpu_s = sum(task.batches.n_steps for task in tasks), math.inf
        while not samples or not self._is_enough(samples, tasks, steps):
            found = self._time(strategy, tasks, clock)
            if found is None:
                return None
            samples.append(found[0])
            cpu_s = min(cpu_s, found[1])
        probe = Probe(strategy, min(samples) / steps, max(0.0, cold_s - min(samples)), cpu_s / steps)
        if _starts_with_torch(strategy):
            self._spent_s -= probe.first_s
        self.probes.append(probe)
        return probe

    def _is_enough(self, samples: Sequence[float], tasks: Sequence[ClientTask], steps: int) -> bool:
        """Is the strategy clearly not the fastest, or does the job not pay for another sample?"""
        spent_s, n = samples[-1], len(samples)
        job_s = self.job_s() if self.probes else self.job_steps * spent_s / steps
        is_far = bool(self.probes) and min(samples) > CLOSE * self._sample_s(tasks)
        if n < (REPEATS if is_far else MOST_REPEATS) and sum(samples) + spent_s <= REPEAT_SHARE * job_s:
            return False
        if is_far or n >= REPEATS or spent_s > ENOUGH_S:
            return True
        if not self.probes:
            return (1 + REPEATS) * spent_s > max(SHARE * job_s, WORTH_S)
        return 2 * spent_s > self.left_s(is_sample=True)

    def confirm(self, is_last: bool = True) -> None:
        """Measure the best strategies again, in turns with serial training, so that other load slows all.

        By whole rounds if the budget pays for these: starting and ending clients then count as they do in the
        job. The last time CONFIRM_SHARE of the job may be spent, whatever was spent before.
        """
        near = self._near()
        own_s = CONFIRM_SHARE * self.job_s() if is_last else 0.0
        until_s = self._spent_s + max(self.left_s(is_sample=True), own_s)
        is_whole = self._spent_s + (1 + FEWEST_ROUNDS) * len(near) * self._sample_s(self.tasks) <= until_s

        def sample_of(probe: Probe) -> Sequence[ClientTask]:
            return self.tasks if is_whole else self._short(probe.strategy)

        turn_s = sum(self._sample_s(sample_of(probe)) for probe in near)
        if len(near) < 2 or self._spent_s + FEWEST_TURNS * turn_s > until_s:
            return
        clock = self._clock_for([probe.strategy for probe in near])
        is_long = (1 + MOST_WHOLE) * turn_s <= CONFIRM_SHARE * self.job_s()
        turns: list[list[tuple[float, float] | None]] = []
        for turn in range(1 + ((MOST_WHOLE if is_long else WHOLE_REPEATS) if is_whole else MOST_TURNS)):
            if turn > FEWEST_ROUNDS and self._spent_s + turn_s > until_s:
                break
            found = {}
            for at in range(len(near))[:: -1 if turn % 2 else 1]:
                found[at] = self._per_step(near[at].strategy, sample_of(near[at]), clock)
            if turn or not is_whole:  # a whole round may bring new shapes
                turns.append([found[at] for at in range(len(near))])
        compare(near, turns, Proof.ROUNDS if is_whole else Proof.TURNS)

    def _near(self) -> list[Probe]:
        """The strategies that are compared again: what may be the best, after serial training.

        Without serial training if all of them are better by far, as its rounds would take most of the time.
        """
        serial, least_s = self.probes[0], min(p.cost_s for p in self.probes)
        ranked = sorted(self.probes[1:], key=lambda p: p.cost_s)
        near = [p for p in ranked if p.cost_s <= self._close(p.strategy) * least_s][: MOST_CLOSE - 1]
        is_far = near and all(BY_FAR * max(p.cost_s, p.cpu_s) <= serial.cost_s for p in near)
        return near if is_far else [serial, *near]

    def _per_step(
        self, strategy: Strategy, tasks: Sequence[ClientTask], clock: Callable[[], float]
    ) -> tuple[float, float] | None:
        taken, n_steps = self._time(strategy, tasks, clock), sum(t.batches.n_steps for t in tasks)
        return None if taken is None else (taken[0] / n_steps, taken[1] / n_steps)

    def _close(self, strategy: Strategy) -> float:
        """Factor within which the strategy is compared again: larger if it was timed by the clock."""
        return CLOSE if self._clock_for([strategy]) is self._thread_clock else DISTURBED * CLOSE

    def _short(self, strategy: Strategy, n_steps: int | None = None) -> list[ClientTask]:
        """Clients that fill every worker's rows, cut to ``n_steps``, or to as many as the job pays for."""
        n = min(len(self.tasks), strategy.rows * n_workers(strategy))
        if n_steps is None:
            n_steps = max(STEPS, min(MOST_STEPS, int(SAMPLE_SHARE * self.job_steps / n)))
            if strategy.rows == 1:
                n, n_steps = self._alone(n)
            n = self._longer(n, n_steps) if strategy.outer == "threads" else n
        tasks = self.tasks[:n]
        # A process gets and returns a whole client: all of its steps must then count.
        is_whole = strategy.outer in ("processes", "devices")
        return list(tasks) if is_whole else [_cut(task, n_steps) for task in tasks]

    def _alone(self, n: int) -> tuple[int, int]:
        """Clients one by one on ``n`` workers, and steps of each: whole clients as far as the job pays."""
        most, whole = int(ALONE_SHARE * self.job_steps / n), self.tasks[0].batches.n_steps
        n_steps = max(STEPS, min(whole, most))
        return min(len(self.tasks), n * max(1, min(MOST_ALONE, most // n_steps))), n_steps

    def _longer(self, n: int, n_steps: int) -> int:
        """Clients that fill the rows several times, if the job pays for them.

        With fewer clients, the start of the threads would count against small chunks.
        """
        if not self.probes:
            return n
        most = TURNS_SHARE * self.job_s() / (n_steps * self.least_s())
        return min(len(self.tasks), n * max(1, int(most / n)))

    def _clock_for(self, strategies: Sequence[Strategy]) -> Callable[[], float]:
        is_alone = (
            all(strategy.outer == "inline" for strategy in strategies) and self._dispatcher.threads == 1
        )
        return self._thread_clock if is_alone else self._clock

    def _time(
        self, strategy: Strategy, tasks: Sequence[ClientTask], clock: Callable[[], float]
    ) -> tuple[float, float] | None:
        """Seconds for training ``tasks``, and CPU seconds; None if it fails, and a reason why."""
        is_alone = self._clock_for([strategy]) is self._thread_clock
        cpu_clock = self._thread_clock if is_alone else self._cpu_clock
        began_cpu, began = cpu_clock(), clock()
        try:
            for _ in self._dispatcher.run(strategy, self._traits, tasks, n_workers(strategy)):
                pass
        except Exception as error:
            if strategy == Strategy():
                raise
            self.reasons[str(strategy)] = f"it fails: {type(error).__name__}: {error}".splitlines()[0]
            return None
        finally:
            self._spent_s += clock() - began
        spent_s, cpu_s = clock() - began, cpu_clock() - began_cpu
        if strategy.outer in ("streams", "devices"):  # what computes is no core
            cpu_s = spent_s
        elif strategy.outer == "processes":
            cpu_s = spent_s * n_workers(strategy)
        return spent_s, cpu_s

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


def _starts_with_torch(strategy: Strategy) -> bool:
    """Is a slow first step torch's own start, which a program pays once, and not the strategy's?"""
    return strategy.outer == "inline" and not strategy.is_compiled


def _cut(task: ClientTask, n: int) -> ClientTask:
    b = task.batches
    return dataclasses.replace(task, batches=Batches(b.rows[:n], b.counts[:n], b.draws[:n]))
