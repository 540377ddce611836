"""The certificate of a placement: it says the placement's own imbalance, and no placement beats its bound."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from certificate_truth import is_true
from examples_count import examples
from hypothesis import given, settings

from evenload.certificate import check, parse
from evenload.errors import ConfigError
from evenload.moe.placement.bound import placement_certificate
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import rebalance_experts
from evenload.moe.search.plan import place


@given(
    st.integers(1, 3).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 2))),
    st.lists(st.one_of(st.integers(0, 40), st.floats(0, 40, width=32)), min_size=3, max_size=3),
)
@settings(max_examples=examples(40), deadline=None)
def test_small_placements_against_all_others(shape, loads):
    n_gpus, extra = shape
    weight = np.array([loads], np.float32).round(3)
    n_slots = -(-(3 + extra) // n_gpus) * n_gpus
    placement = rebalance_experts(weight, n_slots, 1, 1, n_gpus)
    if not weight.any():
        with pytest.raises(ConfigError, match="without load"):
            placement.certificate()
        return
    page = placement.certificate()
    assert page["claim"]["ratio"] == pytest.approx(placement.imbalance[0] / placement.bound[0], rel=1e-5)
    assert is_true(page)


def test_the_ratio_of_many_layers_is_the_placements():
    weight = np.random.default_rng(0).zipf(1.6, (4, 32)).clip(max=500)
    placement = rebalance_experts(weight, 40, 1, 1, 8)
    page = placement.certificate("a model")
    mean = weight.sum(axis=1) / 8
    assert page["claim"]["achieved"] == pytest.approx((placement.imbalance * mean).sum(), rel=1e-5)
    assert page["claim"]["bound"] == pytest.approx((placement.bound * mean).sum(), rel=1e-5)
    check(parse(json.dumps(page).encode()))


@pytest.mark.parametrize("objective", ["routed", "equal"])
def test_plans_of_the_search_over_windows(objective):
    windows = np.random.default_rng(1).integers(0, 50, (3, 2, 8))
    fleet = Fleet(slots=(4, 4, 2, 3), speeds=(1.0, 1.0, 0.5, 1.0), dead=frozenset({3}))
    plan = place(windows, fleet, objective=objective)
    page = plan.certificate(windows)
    speed = 2.5
    mean = windows.sum(axis=2) / speed
    assert len(page["evidence"]["layers"]) == 6
    reached = page["claim"]["achieved"] / mean.sum()
    assert reached >= page["claim"]["bound"] / mean.sum() >= 1 - 1e-9
    if objective == "equal":
        assert page["claim"]["achieved"] == pytest.approx((plan.judge(windows) * mean).sum(), rel=1e-6)


def test_a_loose_bound_is_not_given_away():
    page = placement_certificate(np.array([[0, 1]]), np.array([[[3.0, 1.0]]]), np.array([0, 1]), np.ones(2))
    assert (page["claim"]["achieved"], page["claim"]["bound"]) == (3, pytest.approx(3, rel=1e-9))
