"""What is chosen on simulated machines with neighbours, against the best fixed choice there.

The oracle is the machine: what each strategy truly takes is known before anything is measured.
"""

import math
import random
import statistics

import pytest
from clients.tune.noisy_machine import NoisyMachine, TrueCosts
from torch import nn

from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.clients.tune import tuner as tuner_module
from evenload.clients.tune.expected_cost import WorkSize, expect
from evenload.clients.tune.tuner import Tuner
from evenload.clients.values.strategy import Strategy, n_workers

WORTH_S = 2.0  # jobs of fewer seconds are not looked at
LOST = 0.05  # of serial training's CPU time, that choosing and what is chosen may take beyond it


def with_convolution():
    return with_keyed_dropout(nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 1), nn.Flatten()))


class Outcome:
    """One job on one machine: what was chosen, and what it and the choice truly took.

    taken_s    cost of all rounds by the choice, compiled if it has to be; spent_s: of choosing
    best_s     of all rounds by the best of all strategies, of those that may be chosen
    compiled_s of spent_s, for what was compiled in vain; is_measured: was the job long enough to be measured?
    """

    def __init__(self, tasks_of, seed, has_rules=False):
        draw = random.Random(seed)
        n, self.rounds = draw.choice([5, 20, 64]), draw.choice([20, 100, 100, 1000])
        model, tasks = tasks_of(n, with_convolution() if has_rules else None)
        self.costs = TrueCosts.drawn(draw, has_rules)
        machine = self.machine = NoisyMachine(model, find_traits(model, tasks[0]), self.costs, n, draw)
        self.serial_s = machine.job_s(Strategy(), self.rounds)
        if self.serial_s < WORTH_S:
            return
        steps = sum(t.batches.n_steps for t in tasks)
        expected = expect(WorkSize(self.costs.work, n, steps, self.rounds, is_fusable=not has_rules))
        chosen, self.is_measured = expected.strategy, expected.pays_measuring
        if expected.pays_measuring:
            clocks = machine.clock, machine.cpu_clock, machine.cpu_clock
            chosen = Tuner(machine, machine, tasks, self.rounds, expected, clocks).decide().strategy
        elif chosen.is_fused:
            machine.check(chosen, tasks)
        own_s = self.costs.compile_s if chosen.is_compiled else 0.0
        self.compiled_s, self.spent_s = machine.compiled_s - own_s, machine.spent_s - own_s
        self.taken_s, self.best_s = self._cost_s(chosen), min(map(self._cost_s, self._ways(n, has_rules)))
        self.cpu_s = machine.job_s(chosen, self.rounds)

    def _cost_s(self, way):
        """Between CPU seconds and those by the clock; endless if it takes more CPU time than serial."""
        cpu_s = self.machine.job_s(way, self.rounds)
        wall_s = self.costs.wall_s(way, cpu_s)
        return math.sqrt(cpu_s * wall_s) + (self.costs.compile_s if way.is_compiled else 0)

    def _ways(self, n, has_rules):
        outers = [("inline", None), ("threads", n_workers(Strategy("threads")))]
        inners = ["fused", "fused-compiled", *(["rules"] if has_rules else [])]
        sizes = {c for c in (1, 2, 4, 5, 8, 10, 16, 20, 32, n) if c <= n}
        ways = [Strategy(outer, inner, c, k) for outer, k in outers for inner in inners for c in sizes]
        ways += [Strategy(outer, workers=k) for outer, k in outers]
        return [
            way
            for way in ways
            if way.outer == "inline" or self.machine.job_s(way, self.rounds) <= 1.03 * self.serial_s
        ]


def outcomes(tasks_of, seeds, has_rules=False):
    found = [Outcome(tasks_of, seed, has_rules) for seed in seeds]
    return [one for one in found if one.serial_s >= WORTH_S]


@pytest.fixture(scope="module")
def no_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenload.clients.tune.tuner.why_no_streams", lambda: "there is none")
        patch.setattr("evenload.clients.tune.tuner.n_gpus", lambda: 0)
        yield


def lost(one):
    """CPU time lost against serial training; compiling in vain within what it may cost does not count."""
    return (one.cpu_s + one.spent_s - min(one.compiled_s, 0.25 * one.serial_s)) / one.serial_s - 1


def assert_is_good(found):
    assert statistics.mean((one.taken_s + one.spent_s) / one.best_s for one in found) < 1.2
    assert statistics.mean(map(lost, found)) < -0.15
    assert sum(lost(one) > LOST for one in found) <= 0.04 * len(found)
    assert max(map(lost, found)) < 0.6  # what was expected wrongly, and is too short a job to measure
    assert max(lost(one) for one in found if one.is_measured) < 0.2
    sampled = [(one.spent_s - one.compiled_s) / one.taken_s for one in found]
    assert statistics.mean(sampled) < 0.03
    assert max(sampled) < 0.15
    assert max(one.compiled_s / one.serial_s for one in found) < 0.3


@pytest.fixture(scope="module")
def sixty(tasks_of, no_gpu):
    """What was chosen on sixty machines of two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
        return outcomes(tasks_of, range(60))


def test_what_is_chosen_is_near_the_best_and_choosing_takes_little(sixty):
    assert_is_good(sixty)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_what_is_chosen_is_near_the_best_on_a_thousand_machines(part, tasks_of, two_cores, no_gpu):
    assert_is_good(outcomes(tasks_of, range(1000 + 250 * part, 1250 + 250 * part)))


def test_rules_are_found_where_they_are_faster(tasks_of, two_cores, no_gpu):
    found = [one for one in outcomes(tasks_of, range(60), has_rules=True) if one.serial_s > 20]
    assert statistics.mean((one.taken_s + one.spent_s) / one.best_s for one in found) < 1.2


def test_the_simulation_finds_a_rule_that_believes_its_samples(sixty, tasks_of, two_cores, monkeypatch):
    """A single sample counts as many."""
    before = [lost(one) for one in sixty]
    monkeypatch.setattr(tuner_module, "DOUBT", 0.0)
    after = [lost(one) for one in outcomes(tasks_of, range(60))]
    assert sum(one > LOST for one in after) > 2 * sum(one > LOST for one in before)
