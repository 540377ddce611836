"""Epsilon: against what mathematics says, and against the library's other accountant."""

import math
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Cohort, Recipe, federate
from evenload.clients.accountant import noise_for, spent_epsilon
from evenload.clients.algorithms import PrivateFedAvg
from evenload.errors import ConfigError

if not find_spec("dp_accounting"):  # which is imported by the worker of the runner that needs it: it is large
    pytest.skip("dp-accounting is not installed", allow_module_level=True)


def gaussian_delta(noise, epsilon):
    """Of one Gaussian release, exactly: Balle and Wang, ICML 2018 (arXiv:1805.06530), theorem 8."""

    def phi(t):
        return 0.5 * math.erfc(-t / math.sqrt(2))

    a, b = 1 / (2 * noise), epsilon * noise
    return phi(a - b) - math.exp(epsilon) * phi(-a - b)


@pytest.mark.parametrize("noise", [1.5, 8.0])
def test_one_round_with_everybody_is_the_gaussian_mechanism(noise):
    epsilon = spent_epsilon(noise, 1.0, 1, 1e-5)
    assert gaussian_delta(noise, epsilon) == pytest.approx(1e-5, rel=0.02)


def test_more_noise_fewer_rounds_and_rarer_clients_spend_less():
    base = spent_epsilon(4.0, 0.1, 20, 1e-5)
    assert spent_epsilon(8.0, 0.1, 20, 1e-5) < base
    assert spent_epsilon(4.0, 0.1, 10, 1e-5) < base
    assert spent_epsilon(4.0, 0.05, 20, 1e-5) < base
    assert spent_epsilon(0.0, 0.1, 20, 1e-5) == math.inf


@pytest.mark.parametrize("case", [(0.5, 0.1, 10, 1e-5), (1.0, 0.01, 200, 1e-6)])
def test_the_noise_that_is_needed_is_needed(case):
    noise, (epsilon, *told) = noise_for(*case), case
    assert spent_epsilon(noise, *told) <= epsilon < spent_epsilon(0.985 * noise, *told)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spent_epsilon(1.0, 0.0, 1, 1e-5), "rate=0.0"),
        (lambda: spent_epsilon(1.0, 0.1, 0, 1e-5), "rounds=0"),
        (lambda: spent_epsilon(-1.0, 0.1, 1, 1e-5), "not a number"),
        (lambda: noise_for(0.0, 0.1, 1, 1e-5), "endless noise"),
        (lambda: Cohort(size=3, poisson=True), "probability"),
        (lambda: PrivateFedAvg(expected=0), "expected=0"),
    ],
)
def test_values_out_of_range_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def test_poisson_cohorts_are_independent_draws():
    rule = Cohort(size=0.3, poisson=True)
    cohorts = [rule.draw(50, 7, r) for r in range(400)]
    assert len({len(c) for c in cohorts}) > 5
    each = [sum(i in c for c in cohorts) / 400 for i in range(50)]
    assert sum(each) / 50 == pytest.approx(0.3, abs=0.02)
    assert min(each) > 0.18
    assert max(each) < 0.42
    assert cohorts[3] == rule.draw(50, 7, 3)


def test_a_round_without_clients_gets_its_noise():
    data = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))]
    recipe = Recipe(optimizer=SGD(0.1), batch_size=2)
    model = nn.Linear(3, 2)
    private = PrivateFedAvg(clip=1.0, noise=1.0, expected=1e-3)
    found = federate(
        model, data, recipe, private, rounds=2, cohort=Cohort(size=1e-9, poisson=True), strategy="serial"
    )
    assert [r.cohort for r in found.history] == [(), ()]
    assert not torch.equal(found.state["weight"], model.state_dict()["weight"])
