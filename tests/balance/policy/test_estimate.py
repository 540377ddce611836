"""The estimate finds launch and per-item cost, forgets warm-up, and tells a hiccup from a change."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evenload.balance.policy.estimate import Cost, CostEstimate

SECONDS = st.floats(1e-5, 10.0)


def feed(estimate: CostEstimate, cost: Cost, sizes, shows_busy: bool, inside_s: float = 0.0) -> Cost:
    for n in sizes:
        busy_s = inside_s + n * cost.per_item_s
        estimate.observe(n, cost.launch_s + busy_s, busy_s if shows_busy else None)
    found = estimate.cost
    assert found is not None
    return found


@given(SECONDS, SECONDS, st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_with_busy_time_both_parts_are_exact(launch_s, per_item_s, sizes):
    found = feed(CostEstimate(), Cost(launch_s, per_item_s), sizes, shows_busy=True)
    assert found.launch_s == pytest.approx(launch_s)
    assert found.per_item_s == pytest.approx(per_item_s)


@given(SECONDS, SECONDS, st.permutations([1, 2, 4, 8, 16]))
def test_without_busy_time_chunks_of_several_sizes_tell_them_apart(launch_s, per_item_s, sizes):
    # Beyond this, where no busy time is shown, an order of sizes can make a launch pass for a hiccup.
    assume(launch_s <= 16 * per_item_s)
    cost = Cost(launch_s, per_item_s)
    found = feed(CostEstimate(), cost, [1, *sizes, *sizes], shows_busy=False)
    for n in (1, 16):
        assert found.seconds(n) == pytest.approx(cost.seconds(n), rel=0.01)


@given(SECONDS, SECONDS)
def test_chunks_of_one_size_cannot_tell_and_the_estimate_says_so(launch_s, per_item_s):
    estimate = CostEstimate()
    found = feed(estimate, Cost(launch_s, per_item_s), [3] * 9, shows_busy=False)
    assert not estimate.knows_launch
    assert found.seconds(3) == pytest.approx(launch_s + 3 * per_item_s)


def test_a_kernel_that_is_launched_inside_the_function_is_seen_through():
    estimate = CostEstimate(whole=True)
    found = feed(estimate, Cost(0.001, 1e-4), [1, 4, 16, 64, 64, 64], shows_busy=True, inside_s=0.02)
    assert found.launch_s == pytest.approx(0.021, rel=0.01)
    assert found.per_item_s == pytest.approx(1e-4, rel=0.01)


def test_the_first_sample_counts_until_there_is_a_second():
    estimate = CostEstimate()
    assert estimate.cost is None
    estimate.observe(1, 30.0, 29.0)
    assert estimate.cost == Cost(1.0, 29.0)
    estimate.observe(1, 0.3, 0.2)
    assert estimate.cost.launch_s == pytest.approx(0.1)
    assert estimate.cost.per_item_s == pytest.approx(0.2)


def test_with_a_history_the_warm_up_never_counts():
    estimate = CostEstimate(Cost(0.01, 0.1))
    assert estimate.cost == Cost(0.01, 0.1)
    estimate.observe(1, 30.0, 29.0)
    assert estimate.cost == Cost(0.01, 0.1)
    found = feed(estimate, Cost(0.02, 0.2), [1] * 30, shows_busy=True)
    assert found.launch_s == pytest.approx(0.02, rel=0.05)
    assert found.per_item_s == pytest.approx(0.2, rel=0.05)


def test_one_sample_out_of_line_is_a_hiccup_and_two_are_a_change():
    def after(n_slow: int) -> float:
        estimate = CostEstimate()
        feed(estimate, Cost(0.0, 1.0), [1] * 8, shows_busy=True)
        return feed(estimate, Cost(0.0, 1000.0), [1] * n_slow, shows_busy=True).per_item_s

    assert after(1) < 3.0
    assert after(2) > 100.0


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), max_size=30)
)
def test_no_sample_breaks_it(samples):
    estimate = CostEstimate()
    for work, elapsed_s, busy_s in samples:
        estimate.observe(work, elapsed_s, busy_s)
        cost = estimate.cost
        assert cost.launch_s >= 0
        assert cost.per_item_s > 0
