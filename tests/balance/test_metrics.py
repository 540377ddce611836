import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.balance import metrics
from evenload.errors import ConfigError

amounts = st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 3))
loads = st.lists(amounts, max_size=8)
speeds = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=3)


def brute_force_makespan(costs, device_speeds):
    """The best over every assignment of whole items."""
    best = math.inf
    for item2device in itertools.product(range(len(device_speeds)), repeat=len(costs)):
        finish = [0.0] * len(device_speeds)
        for cost, device in zip(costs, item2device, strict=True):
            finish[device] += cost / device_speeds[device]
        best = min(best, max(finish, default=0.0))
    return best


def test_examples():
    assert metrics.imbalance([4, 2, 3]) == 4 / 3
    assert metrics.spread([4, 2, 3]) == 0.5
    assert metrics.makespan([8, 3]) == 8
    assert metrics.makespan([8, 3], [8, 1]) == 3
    assert metrics.utilisation([5, 10], 10) == [0.5, 1.0]
    assert metrics.utilisation_deviation([5, 10], 10) == 0.25
    assert metrics.speed_up(10, 4) == 2.5
    assert metrics.efficiency(10, 4, 5) == 0.5


def test_nothing_to_balance_is_even():
    assert metrics.imbalance([]) == metrics.imbalance([0, 0]) == 1.0
    assert metrics.spread([]) == metrics.spread([0, 0]) == 0.0
    assert metrics.makespan([]) == metrics.makespan([], []) == 0.0
    assert metrics.utilisation([1], 0) == [0.0]
    assert metrics.utilisation_deviation([], 1) == 0.0
    assert metrics.speed_up(0, 0) == 1.0
    assert metrics.speed_up(1, 0) == math.inf


@given(loads.filter(any), st.floats(0.001, 1000))
def test_imbalance_is_between_even_and_all_on_one_and_knows_no_unit(load, unit):
    value = metrics.imbalance(load)
    assert 1 - 1e-9 <= value <= len(load) + 1e-9
    assert metrics.imbalance([x * unit for x in load]) == pytest.approx(value)
    assert 0 <= metrics.spread(load) <= 1


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_amounts_that_are_none_are_refused_with_their_position(bad):
    for refuse in (
        lambda: metrics.imbalance([1, bad]),
        lambda: metrics.makespan([1, 1], [1, bad]),
        lambda: metrics.lower_bound([1, bad], [1]),
        lambda: metrics.lower_bound([1], [1, bad]),
    ):
        with pytest.raises(ConfigError, match="position 1"):
            refuse()


def test_lengths_and_scales_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="2 loads but 1 speeds"):
        metrics.makespan([1, 2], [1])
    with pytest.raises(ConfigError, match="0 devices"):
        metrics.efficiency(1, 1, 0)
    for share, n in ((-0.1, 2), (1.1, 2), (math.nan, 2), (0.5, 0)):
        with pytest.raises(ConfigError):
            metrics.amdahl(share, n)


def test_bounds_by_hand():
    costs, device_speeds = [6, 5, 1], [2, 1]
    assert metrics.work_bound(costs, device_speeds) == 4
    assert metrics.longest_item_bound(costs, device_speeds) == 3
    assert metrics.sorted_prefix_bound([6, 5], device_speeds) == pytest.approx(11 / 3)
    assert metrics.lower_bound(costs, device_speeds) == 4
    # two equal giants over one fast and several slow devices: only the prefix of two sees it
    assert metrics.sorted_prefix_bound([8, 8], [8, 1, 1, 1]) == pytest.approx(16 / 9)


@given(st.lists(st.integers(0, 20), max_size=6), speeds)
def test_no_assignment_beats_the_lower_bound(costs, device_speeds):
    best = brute_force_makespan(costs, device_speeds)
    assert metrics.lower_bound(costs, device_speeds) <= best * (1 + 1e-9)
    assert metrics.longest_item_bound(costs, device_speeds) <= metrics.lower_bound(costs, device_speeds) * (
        1 + 1e-9
    )


def test_amdahls_law_at_its_known_values():
    # the multi-GPU report's table: 95 % parallel over 2, 4, 8 devices
    assert [round(metrics.amdahl(0.95, n), 2) for n in (2, 4, 8)] == [1.90, 3.48, 5.93]
    assert (metrics.amdahl(0, 8), metrics.amdahl(1, 8)) == (1, 8)
