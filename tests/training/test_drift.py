"""Shares that follow the ranks' speeds: quick, exact in the end, and calm under noise."""

import math
import random

import pytest

from evenload.errors import ConfigError
from evenload.training.drift import Drift, counts_of
from evenload.training.shares import Cost, share

SEEDS = range(12)


def seconds_of(costs, counts, noise=0.0, rng=None):
    return [
        cost.seconds(n) * (1 + (rng.uniform(-noise, noise) if rng else 0.0))
        for cost, n in zip(costs, counts, strict=True)
    ]


def over_bound(drift, costs):
    """Step time with the shares of now over the best of all whole numbers."""
    best = share(sum(drift.shares.counts), costs).step_s
    return max(seconds_of(costs, drift.shares.counts)) / best


def random_costs(rng, fixed=0.0):
    per_sample = [10 ** rng.uniform(-4, -2.7) for _ in range(rng.randint(2, 4))]
    return [Cost(fixed * one * 512 / len(per_sample), one) for one in per_sample]


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_steps_reach_the_best_also_with_fixed_costs_and_prefetched_steps(seed):
    rng = random.Random(seed)
    costs, ahead = random_costs(rng, rng.uniform(0, 0.5)), rng.randint(0, 8)
    drift = Drift(len(costs), 512)
    issued = [drift.shares.counts] * ahead
    for _ in range(10 + 2 * ahead):
        issued.append(drift.shares.counts)
        counts = issued.pop(0)
        drift.observe(counts, seconds_of(costs, counts, 0.01, rng))
    assert over_bound(drift, costs) <= 1.05


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_a_rank_that_changes_is_followed_within_five_steps(seed, factor):
    rng = random.Random(seed)
    costs = random_costs(rng)
    drift = Drift(len(costs), 512)
    for _ in range(12):
        drift.observe(drift.shares.counts, seconds_of(costs, drift.shares.counts, 0.02, rng))
    which = seed % len(costs)
    before = drift.shares.counts[which]
    costs[which] = Cost(0.0, costs[which].per_item_s * factor)
    for _ in range(5):
        drift.observe(drift.shares.counts, seconds_of(costs, drift.shares.counts, 0.02, rng))
    assert (drift.shares.counts[which] < before) == (factor > 1)
    assert over_bound(drift, costs) <= 1.06


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.08])
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_noise_does_not_move_shares_to_and_fro(seed, noise):
    rng = random.Random(seed)
    costs = random_costs(rng)
    drift, n_moved = Drift(len(costs), 512), 0
    for step in range(80):
        has_moved = drift.observe(drift.shares.counts, seconds_of(costs, drift.shares.counts, noise, rng))
        n_moved += has_moved and step >= 20
    assert n_moved <= 6
    assert over_bound(drift, costs) <= 1.03 + 1.2 * noise


def test_an_odd_step_is_forgotten():
    costs = [Cost(0.0, 1e-3), Cost(0.0, 2e-3)]
    drift = Drift(2, 300)
    for _ in range(5):
        drift.observe(drift.shares.counts, seconds_of(costs, drift.shares.counts))
    assert drift.shares.counts == (200, 100)
    for odd in (100.0, 1e-6, math.nan, math.inf, 0.0, -1.0):
        assert not drift.observe((200, 100), (0.2, odd))
        assert not drift.observe((200, 100), (0.2, 0.2))


def test_who_has_no_measurement_is_taken_for_usual():
    drift = Drift(3, 90, costs=[Cost(0.0, 1.0), None, Cost(0.0, 1.0)])
    assert drift.shares.counts == (30, 30, 30)
    assert drift.costs[1] is None
    assert sum(counts_of(drift.shares, 7)) == 7
    assert sorted(counts_of(drift.shares, 2)) == [0, 1, 1]
    with pytest.raises(ConfigError, match="2 costs for 3"):
        Drift(3, 90, costs=[None, None])
    with pytest.raises(ConfigError, match="from 3"):
        Drift(3, 2)


def test_memory_and_micro_batches_hold_while_shares_move():
    costs = [Cost(0.01, 1e-3), Cost(0.01, 4e-3)]
    drift = Drift(2, 64, most=[40, None], unit=8)
    for _ in range(6):
        drift.observe(drift.shares.counts, seconds_of(costs, drift.shares.counts))
        assert drift.shares.counts[0] <= 40
        assert all(n % 8 == 0 for n in drift.shares.counts)
    assert drift.shares.counts == (40, 24)
