import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.balance import metrics, pack
from evenload.errors import ConfigError

weights = st.lists(st.integers(0, 50), max_size=6)
speeds = st.lists(st.integers(1, 8), min_size=1, max_size=3)


def finish(item_weights, item2device, device_speeds):
    return metrics.makespan(pack.loads(item_weights, item2device, len(device_speeds)), device_speeds)


def best_by_brute_force(item_weights, device_speeds):
    everywhere = itertools.product(range(len(device_speeds)), repeat=len(item_weights))
    return min(finish(item_weights, item2device, device_speeds) for item2device in everywhere)


def test_lpt_examples():
    assert pack.pack_lpt([5, 4, 3, 3, 3], [1, 1]) == [0, 1, 1, 0, 1]
    assert pack.pack_lpt([8, 1], [8, 1]) == [0, 1]
    assert pack.pack_lpt([], [1]) == []
    assert pack.pack_lpt([], []) == []
    assert pack.pack_lpt([3, 2], [0, 1]) == [1, 1], "a device of speed zero gets nothing"


@given(weights, speeds)
def test_lpt_is_between_the_bound_and_its_proven_factor(item_weights, device_speeds):
    item2device = pack.pack_lpt(item_weights, device_speeds)
    made = finish(item_weights, item2device, device_speeds)
    best = best_by_brute_force(item_weights, device_speeds)
    m = len(device_speeds)
    factor = 4 / 3 - 1 / (3 * m) if len(set(device_speeds)) == 1 else 2 * m / (m + 1)
    assert metrics.lower_bound(item_weights, device_speeds) <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= made <= factor * best * (1 + 1e-9)


@given(weights, speeds, st.randoms(use_true_random=False))
def test_lpt_does_not_depend_on_the_order_of_items(item_weights, device_speeds, random):
    shuffled = random.sample(item_weights, len(item_weights))
    assert finish(item_weights, pack.pack_lpt(item_weights, device_speeds), device_speeds) == pytest.approx(
        finish(shuffled, pack.pack_lpt(shuffled, device_speeds), device_speeds)
    )


@pytest.mark.parametrize("device_speeds", [[], [0.0, 0.0]])
def test_lpt_needs_a_device(device_speeds):
    with pytest.raises(ConfigError, match="no device"):
        pack.pack_lpt([1.0], device_speeds)
