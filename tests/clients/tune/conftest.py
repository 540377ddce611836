"""Work whose times are known."""

import pytest

from evenload.clients.spread.dispatch_clients import Streams
from evenload.clients.spread.equivalence_check import CheckResult
from evenload.clients.step.model_traits import find_traits
from evenload.clients.tune.expected_cost import Expectation
from evenload.clients.tune.tuner import Tuner
from evenload.clients.values.strategy import Strategy

COLD_S = 0.002  # of what runs for the first time, on top


class Modelled:
    """Stands where the workers stand; a step takes what ``cost`` says: (launch_s, per_client_s).

    Threads share what is compiled: once for so many rows.
    """

    def __init__(self, model, cost, compile_s=0.0):
        self.model, self.threads, self.now, self._cost, self._compile_s = model, 1, 0.0, cost, compile_s
        self.ran, self.cold, self.compiled = [], set(), set()
        self.streams, self.more = Streams("cuda:0"), 0.0

    def clock(self):
        return self.now

    def cpu_clock(self):
        """CPU seconds of all threads."""
        return self.now + self.more

    def dispatch(self, strategy, traits, tasks, workers):
        self.ran.append(str(strategy))
        launch_s, per_client_s = self._cost(strategy)
        if strategy not in self.cold:  # the first call of anything is slow, and must not be believed
            self.cold.add(strategy)
            self.now += COLD_S
        shape = strategy.inner, strategy.rows
        if strategy.is_compiled and shape not in self.compiled:
            self.compiled.add(shape)
            self.now += self._compile_s
        n_steps = tasks[0].batches.n_steps
        launches = -(-len(tasks) // (strategy.rows * workers))
        spent_s = n_steps * (launches * launch_s + len(tasks) * per_client_s / workers)
        self.now += spent_s
        self.more += spent_s * (workers - 1)
        yield []


class ModelledChecks:
    """Engine checks whose results are given: inner strategies to refuse."""

    def __init__(self, traits, refuse):
        self._traits, self._refuse = traits, refuse

    def traits(self, tasks):
        return self._traits

    def check(self, strategy, tasks):
        return CheckResult("it cannot" if strategy.inner in self._refuse else None, 0.0)


@pytest.fixture
def tuner(tasks_of):
    """Makes a tuner that expects nothing, and the modelled workers that it measures."""

    def make(cost, n=64, rounds=100, compile_s=0.0, refuse=(), n_ops=33, model=None):
        model, tasks = tasks_of(n, model)
        spread = Modelled(model, cost, compile_s)
        checks = ModelledChecks(find_traits(model, tasks[0]), refuse)
        clocks = spread.clock, spread.clock, spread.cpu_clock
        return Tuner(spread, checks, tasks, rounds, Expectation(Strategy(), "", n_ops=n_ops), clocks), spread

    return make


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def one_core(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
