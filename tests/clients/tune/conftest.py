"""Work whose times are known, and small clients."""

from collections import defaultdict

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks
from evenload.clients.spread.equivalence_check import CheckResult
from evenload.clients.spread.streams import Streams
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.clients.tune.tuner import Tuner

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)
COLD_S = 0.002  # of what runs for the first time, on top


def make_tasks(n, model=None):
    model = model or with_keyed_dropout(nn.Linear(3, 2))
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]
    start = model.state_dict()
    wanted = ClientInputs(data, [RECIPE] * n, range(n), [start] * n, [None] * n, [None] * n)
    return model, load_tasks(DatasetReader(model), wanted, 0, 0).tasks


@pytest.fixture
def tasks_of():
    """Makes a model and tasks of so many clients."""
    return make_tasks


def make_clients(n, width=3):
    g = torch.Generator().manual_seed(n)
    return [(torch.randn(8, width, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]


@pytest.fixture
def linear_clients():
    """Makes so many clients' examples for a linear model."""
    return make_clients


class Modelled:
    """Stands where the workers stand; a step takes what ``cost`` says: (launch_s, per_client_s).

    Threads share what is compiled: once for so many rows.
    """

    def __init__(self, model, cost, compile_s=0.0):
        self.model, self.threads, self.now, self._cost, self._compile_s = model, 1, 0.0, cost, compile_s
        self.ran, self.cold, self.sizes, self.compiled = [], set(), defaultdict(list), set()
        self.streams, self.more = Streams("cuda:0"), 0.0

    def clock(self):
        return self.now

    def cpu_clock(self):
        """CPU seconds of all threads."""
        return self.now + self.more

    def run(self, strategy, traits, tasks, workers):
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
        self.sizes[str(strategy)].append((len(tasks), n_steps))
        spent_s = n_steps * (launches * launch_s + len(tasks) * per_client_s / workers)
        self.now += spent_s
        self.more += spent_s * (workers - 1)
        yield []


class ModelledChecks:
    """Engine checks whose results are given: inner strategies to refuse, and operations of a step."""

    def __init__(self, traits, refuse, n_ops):
        self._traits, self._refuse, self._n_ops = traits, refuse, n_ops

    def traits(self, tasks):
        return self._traits

    def check(self, strategy, tasks):
        return CheckResult("it cannot" if strategy.inner in self._refuse else None, 0.0)

    def n_operations(self, strategy, tasks):
        return self._n_ops


def make_tuner(cost, n=64, rounds=100, compile_s=0.0, refuse=(), n_ops=100, model=None):
    model, tasks = make_tasks(n, model)
    spread = Modelled(model, cost, compile_s)

    checks = ModelledChecks(find_traits(model, tasks[0]), refuse, n_ops)
    return Tuner(spread, checks, tasks, rounds, spread.clock, spread.clock, spread.cpu_clock), spread


@pytest.fixture
def tuner():
    """Makes a tuner, and the modelled workers that it measures."""
    return make_tuner


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture
def one_core(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
