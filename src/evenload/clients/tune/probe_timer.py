"""Warm, timed samples of strategies on the user's own clients, and a budget for taking them.

No cold sample counts: a strategy runs once unmeasured, then the least of some repetitions is taken. All
that is spent on the way counts against the budget, but for what the fastest strategy needs to get going:
that is part of its work.

What trains in this thread alone is timed by what the thread computes, as others may use the machine, too;
what has several workers by the clock, and so is all that is compared with it in the end.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evenload.clients.fused.engine import longest_first
from evenload.clients.spread.dispatch_clients import Spread
from evenload.clients.spread.equivalence_check import Trial
from evenload.clients.step.model_probe import Survey
from evenload.clients.values.batches import Batches
from evenload.clients.values.strategy import Strategy, n_workers
from evenload.clients.values.task import Task

__all__ = ["Meter", "Probe"]

SHARE = 0.018  # of the job's time, by the best strategy so far, that finding it may take
WORTH_S = 0.05  # less than this may always be spent
STEPS, MOST_STEPS = 3, 10  # of each client in a short sample, as far as the job pays for these
SAMPLE_SHARE = 0.0002  # of the steps of the job, that a sample may have
CONFIRM_SHARE = 0.008  # of the job's time, that comparing the best may take whatever was spent before
REPEATS, MOST_REPEATS = 2, 4  # more than two as far as the job pays for these
REPEAT_SHARE = 0.001  # of the job's time, that the samples of one strategy may then take
TURNS_SHARE = 0.0004  # and one sample, with rows that are filled several times
ENOUGH_S = 0.03  # a sample so long is not repeated otherwise
SURE = 4.0  # times its cost must something dear be expected to save
SEARCH = 0.5  # of the budget may go to looking for a chunk
WHOLE_REPEATS, MOST_WHOLE = 3, 6  # of whole rounds, which decide
CLOSE = 1.3  # strategies within this factor of the best are compared again
DISTURBED = 1.3
MOST_CLOSE = 4
TIE = 1.02  # of two that are so near, the one that was thought of first: it needs less


@dataclass(slots=True)
class Probe:
    strategy: Strategy
    step_s: float  # per client and step
    first_s: float  # before the first warm step: tracing, compiling, starting threads
    is_confirmed: bool = False


class Meter:
    """For one kind of tasks, of which ``rounds`` rounds are to come.

    clock    gives seconds;  thread_clock  those that this thread has computed
    probes   what was measured, in order
    reasons  strategy or inner name -> why it was not measured, or not to the end
    """

    def __init__(
        self,
        spread: Spread,
        survey: Survey | None,
        trial: Callable[[Strategy, Sequence[Task]], Trial],
        tasks: Sequence[Task],
        rounds: int,
        clock: Callable[[], float],
        thread_clock: Callable[[], float],
    ):
        self._spread, self._survey, self._trial = spread, survey, trial
        self._clock, self._thread_clock = clock, thread_clock
        self.tasks = list(longest_first(tasks))
        self._rounds = rounds
        self.job_steps = rounds * sum(task.batches.n_steps for task in tasks)
        self.probes: list[Probe] = []
        self.reasons: dict[str, str] = {}
        self._spent_s = 0.0
        self._compiled_s = 0.0  # of that, for what was compiled

    # --- what it costs ----------------------------------------------------------------------------

    def best(self) -> Probe:
        """The fastest, of those that were confirmed if any was; of nearly equal ones the first."""
        probes = [p for p in self.probes if p.is_confirmed] or self.probes
        least_s = min(p.step_s for p in probes)
        return next(p for p in probes if p.step_s <= TIE * least_s)

    def least_s(self) -> float:
        """Seconds per client and step of the fastest."""
        return min(p.step_s for p in self.probes)

    def job_s(self) -> float:
        """All rounds by the fastest so far."""
        return self.job_steps * self.least_s()

    def left_s(self, share: float = 1.0, *, is_sample: bool = False) -> float:
        """Of such a share of the budget. What was compiled in vain is paid for by what it was expected to
        save, and leaves no less for mere samples.
        """
        fastest = min(self.probes, key=lambda p: p.step_s)
        own_s = 0.0 if _starts_with_torch(fastest.strategy) else fastest.first_s
        own_s = max(own_s, self._compiled_s) if is_sample else own_s
        return share * max(SHARE * self.job_s(), WORTH_S) - (self._spent_s - own_s)

    def can_afford(
        self, strategy: Strategy, *, start_s: float = 0.0, gain: float = 0.0, share: float = 1.0
    ) -> bool:
        """``start_s``, a cold step and the timed samples; else the reason is noted.

        They may take ``share`` of the budget, or more if ``gain`` is the part of the job that the strategy is
        expected to save.
        """
        timed_s = self._sample_s(self._short(strategy))
        cost_s = start_s + self._sample_s(self._short(strategy, 1))
        cost_s += timed_s * (1 if timed_s > ENOUGH_S else REPEATS)
        left_s = self.left_s(share, is_sample=start_s == 0)
        is_enough = cost_s <= max(left_s, gain * self.job_s() / SURE)
        if not is_enough:
            job_s = f"all {self._rounds} rounds take {self.job_s():.2g} s"
            self.reasons[str(strategy)] = f"to start and measure it would take {cost_s:.2g} s, {job_s}"
        return is_enough

    def _sample_s(self, tasks: Sequence[Task]) -> float:
        return sum(t.batches.n_steps for t in tasks) * self.least_s()

    # --- measuring --------------------------------------------------------------------------------

    def may(self, strategy: Strategy) -> bool:
        """Does its engine do what serial training does? Else the reason is noted."""
        began = self._clock()
        refusal = self._trial(strategy, self.tasks).refusal
        if not _starts_with_torch(strategy):
            self._spent_s += self._clock() - began
        if refusal is not None:
            self.reasons[strategy.inner] = refusal
        return refusal is None

    def probe(self, strategy: Strategy, *, has_trial: bool = False) -> Probe | None:
        """None if the strategy may not be used or fails. ``has_trial``: let its engine be tried first."""
        began = self._clock()
        is_usable = not has_trial or self.may(strategy)
        is_usable = is_usable and self._time(strategy, self._short(strategy, 1), self._clock) is not None
        cold_s, samples = self._clock() - began, []
        if strategy.is_compiled:
            self._compiled_s += cold_s
        if not is_usable:
            return None
        tasks, clock = self._short(strategy), self._clock_for([strategy])
        steps = sum(task.batches.n_steps for task in tasks)
        while not samples or not self._is_enough(samples, tasks, steps):
            spent_s = self._time(strategy, tasks, clock)
            if spent_s is None:
                return None
            samples.append(spent_s)
        probe = Probe(strategy, min(samples) / steps, max(0.0, cold_s - min(samples)))
        if _starts_with_torch(strategy):
            self._spent_s -= probe.first_s
        self.probes.append(probe)
        return probe

    def _is_enough(self, samples: Sequence[float], tasks: Sequence[Task], steps: int) -> bool:
        """Is it clearly not the best, or does the job not pay for another sample?"""
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

    def confirm(self, share: float = 1.0) -> None:
        """The best again, in turns: what disturbs the machine meanwhile disturbs all of them.

        Whole rounds if ``share`` of the budget can pay for these: starting and ending clients then count as
        they do in the job.
        """
        ranked = sorted(self.probes, key=lambda p: p.step_s)
        near = [p for p in ranked if p.step_s <= self._close(p.strategy) * self.least_s()][:MOST_CLOSE]
        for probe in self.probes:
            probe.is_confirmed = False
        until_s = self._spent_s + max(self.left_s(share, is_sample=True), CONFIRM_SHARE * self.job_s())
        is_whole = self._spent_s + 2 * len(near) * self._sample_s(self.tasks) <= until_s

        def turn_s() -> float:
            return sum(self._sample_s(sample_of(probe)) for probe in near)

        def sample_of(probe: Probe) -> Sequence[Task]:
            return self.tasks if is_whole else self._short(probe.strategy)

        if len(near) == 1 or self._spent_s + 2 * turn_s() > until_s:
            return
        clock = self._clock_for([probe.strategy for probe in near])
        found = dict.fromkeys((str(probe.strategy) for probe in near), float("inf"))
        is_long = (1 + MOST_WHOLE) * turn_s() <= CONFIRM_SHARE * self.job_s()
        for turn in range(1 + ((MOST_WHOLE if is_long else WHOLE_REPEATS) if is_whole else REPEATS)):
            if turn > 1 and self._spent_s + turn_s() > until_s:
                break
            for probe in near:
                tasks, name = sample_of(probe), str(probe.strategy)
                spent_s = self._time(probe.strategy, tasks, clock)
                if spent_s is not None and (turn or not is_whole):  # a whole round may bring new shapes
                    found[name] = min(found[name], spent_s / sum(t.batches.n_steps for t in tasks))
        for probe in near:
            probe.step_s = found[str(probe.strategy)]
            probe.is_confirmed = probe.step_s < float("inf")

    def _close(self, strategy: Strategy) -> float:
        """What is timed by the clock may have been disturbed, beside what is not."""
        return CLOSE if self._clock_for([strategy]) is self._thread_clock else DISTURBED * CLOSE

    def _short(self, strategy: Strategy, n_steps: int | None = None) -> list[Task]:
        """Clients that fill every worker's rows, cut to a few steps.

        To begin and to end with a client costs something, too; with more steps it counts as in the job.
        """
        n = min(len(self.tasks), strategy.rows * n_workers(strategy))
        if n_steps is None:
            n_steps = max(STEPS, min(MOST_STEPS, int(SAMPLE_SHARE * self.job_steps / n)))
            n = self._longer(n, n_steps) if strategy.outer == "threads" else n
        tasks = self.tasks[:n]
        # What goes to another process and back is all of a client: its steps must then count in full.
        is_whole = strategy.outer in ("processes", "devices")
        return list(tasks) if is_whole else [_cut(task, n_steps) for task in tasks]

    def _longer(self, n: int, n_steps: int) -> int:
        """Clients that fill the rows several times, if the job pays for so many: to start threads would else
        count against small chunks.
        """
        if not self.probes:
            return n
        most = TURNS_SHARE * self.job_s() / (n_steps * self.least_s())
        return min(len(self.tasks), n * max(1, int(most / n)))

    def _clock_for(self, strategies: Sequence[Strategy]) -> Callable[[], float]:
        is_alone = all(strategy.outer == "inline" for strategy in strategies) and self._spread.threads == 1
        return self._thread_clock if is_alone else self._clock

    def _time(self, strategy: Strategy, tasks: Sequence[Task], clock: Callable[[], float]) -> float | None:
        """Seconds, or None if the strategy fails: why is then among the reasons."""
        began = clock()
        try:
            for _ in self._spread.run(strategy, self._survey, tasks, n_workers(strategy)):
                pass
        except Exception as error:
            if strategy == Strategy():
                raise
            self.reasons[str(strategy)] = f"it fails: {type(error).__name__}: {error}".splitlines()[0]
            return None
        finally:
            self._spent_s += clock() - began
        return clock() - began

    def table(self) -> tuple[Mapping[str, str | float], ...]:
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
    """What its first step takes longer than the next is torch's own start, once in a program."""
    return strategy.outer == "inline" and not strategy.is_compiled


def _cut(task: Task, n: int) -> Task:
    b = task.batches
    return dataclasses.replace(task, batches=Batches(b.rows[:n], b.counts[:n], b.draws[:n]))
