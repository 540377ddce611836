"""A plan of a training: costs from measured steps, and the gain over equal shares."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.training.plan import Card, cost_through, fitting_samples, plan_training, sheet_costs
from evenload.training.shares import Cost

SECONDS = st.floats(1e-4, 10.0)


@given(st.floats(0, 5), SECONDS, st.integers(1, 400), st.integers(1, 400))
def test_two_sizes_say_both_costs(fixed_s, sample_s, n, more):
    cost = Cost(fixed_s, sample_s)
    found = cost_through([(size, cost.seconds(size)) for size in (n + more, n)])
    assert math.isclose(found.seconds(n), cost.seconds(n), rel_tol=1e-6)
    assert math.isclose(found.seconds(n + more), cost.seconds(n + more), rel_tol=1e-6)


def test_one_size_and_times_that_fall_per_sample():
    assert cost_through([(4, 2.0)]) == Cost(0.0, 0.5)
    assert cost_through([(4, 1.0), (8, 4.0)]) == Cost(0.0, 0.5), "below zero there is no fixed cost"


@pytest.mark.parametrize("times", [[(4, 1.0), (4, 2.0)], [(4, 1.0), (8, 1.0)]])
def test_sizes_that_say_nothing_are_refused(times):
    with pytest.raises(ConfigError, match="took"):
        cost_through(times)


@given(st.lists(SECONDS, min_size=1, max_size=6), st.integers(6, 200))
def test_no_plan_is_slower_than_equal_shares_and_all_numbers_agree(seconds, batch):
    cards = [Card(f"cuda:{at}", "gpu", Cost(0.0, one)) for at, one in enumerate(seconds)]
    found = plan_training(cards, batch)
    page = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert page["gain"] >= 1 - 1e-9
    assert page["ratio_to_bound"] >= 1 - 1e-9
    assert sum(card["samples"] for card in page["cards"]) == sum(found.equal_counts) == batch
    assert math.isclose(page["gain"] * page["step_s"], page["equal_step_s"])


def test_memory_bounds_a_share_and_an_equal_share_may_not_fit():
    cards = [Card("cuda:0", "large", Cost(0.0, 0.1)), Card("cuda:1", "small", Cost(0.0, 0.1), most=3)]
    found = plan_training(cards, 10)
    assert found.shares.counts == (7, 3)
    assert [card.id for card in found.too_small] == ["cuda:1"]
    assert not found.to_json()["equal_fits"]
    with pytest.raises(ConfigError, match="6 fit"):
        plan_training([Card(one.id, one.name, one.cost, 3) for one in cards], 10)


def test_data_sheets_give_ratios_only():
    cards = [Card(str(at), "gpu", cost) for at, cost in enumerate(sheet_costs([10.0, 30.0]))]
    found = plan_training(cards, 40, is_relative=True).to_json()
    assert [card["samples"] for card in found["cards"]] == [10, 30]
    assert (found["gain"], found["ratio_to_bound"]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert found["step_s"] is None


@pytest.mark.parametrize(("model", "sample", "n"), [(4, 2, 3), (4, 7, 0), (10, 1, 0), (99, 1, 0)])
def test_what_fits_beside_the_model(model, sample, n):
    assert fitting_samples(10, model, sample) == n
