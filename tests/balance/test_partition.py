import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.balance import partition
from evenload.errors import ConfigError, UnknownName

n_items = st.integers(0, 10**6)
scores = st.lists(st.floats(0, 1e12), min_size=1, max_size=8)
shares = st.one_of(st.none(), st.floats(0, 1))


def test_the_sources_examples():
    assert partition.equal(10, 3) == [4, 3, 3]
    assert partition.equal(9, 3) == [3, 3, 3]
    assert partition.proportional(1000, [95, 80]) == [543, 457]
    counts = partition.dynamic(1000, [95, 80], [0.9, 0.3])
    assert counts[1] > 800
    assert counts == partition.proportional(1000, [9.5, 56])


def test_corners_are_defined():
    assert partition.equal(0, 3) == partition.proportional(0, [1, 2, 3]) == [0, 0, 0]
    assert partition.equal(0, 0) == partition.proportional(0, []) == partition.dynamic(0, [], []) == []
    assert partition.equal(7, 1) == partition.proportional(7, [0.0]) == [7]
    assert partition.equal(2, 4) == [1, 1, 0, 0]
    assert partition.proportional(2, [1, 1, 1, 1]) == [1, 1, 0, 0]
    assert partition.proportional(10, [0, 0, 0]) == [4, 3, 3]
    assert partition.proportional(10, [0, 5, 0]) == [0, 10, 0]
    assert partition.dynamic(1000, [95, 80], [1.0, 1.0]) == [543, 457], "all saturated: only scores differ"
    assert partition.dynamic(1000, [95, 80], [None, None]) == [543, 457], "unknown counts as idle"
    assert partition.dynamic(10, [0, 0], [0.1, 0.9]) == [5, 5]


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: partition.equal(1, 0),
        lambda: partition.equal(-1, 2),
        lambda: partition.proportional(1, []),
        lambda: partition.proportional(1, [1, -1]),
        lambda: partition.proportional(1, [math.nan]),
        lambda: partition.proportional(1, [math.inf]),
        lambda: partition.dynamic(1, [1, 1], [0.5]),
        lambda: partition.dynamic(1, [1], [90]),
        lambda: partition.water_filling(1, [], []),
        lambda: partition.water_filling(1, [1], [1, 2]),
        lambda: partition.water_filling(1, [-1], [1]),
        lambda: partition.water_filling(1, [0], [math.nan]),
        lambda: partition.water_filling(1, [math.inf], [1]),
        lambda: partition.water_filling(3, [0, 0], [1, 1], [1, 1]),
        lambda: partition.water_filling(3, [0, 0], [1, 1], [None]),
    ],
)
def test_nonsense_is_refused(refuse):
    with pytest.raises(ConfigError):
        refuse()


def test_by_name():
    assert partition.split("equal", 10, [9, 1]) == [5, 5]
    assert partition.split("proportional", 10, [9, 1]) == [9, 1]
    assert partition.split("dynamic", 10, [9, 1]) == [9, 1]
    assert partition.split("dynamic", 10, [1, 1], [0.0, 0.75]) == [8, 2]
    with pytest.raises(UnknownName, match="proportional"):
        partition.split("proportionl", 10, [1])


@given(n_items, scores, st.data())
def test_slices_cover_everything_once(n, device_scores, data):
    utilisation = data.draw(st.lists(shares, min_size=len(device_scores), max_size=len(device_scores)))
    for counts in (
        partition.equal(n, len(device_scores)),
        partition.proportional(n, device_scores),
        partition.dynamic(n, device_scores, utilisation),
    ):
        assert len(counts) == len(device_scores)
        assert min(counts) >= 0
        assert sum(counts) == n
        ranges = partition.slices(counts)
        assert [len(r) for r in ranges] == counts
        edges = [0, *itertools.chain.from_iterable((r.start, r.stop) for r in ranges), n]
        assert all(left == right for left, right in zip(edges[::2], edges[1::2], strict=True))


@given(n_items, scores.filter(any))
def test_proportional_is_within_one_of_the_exact_share(n, device_scores):
    total = math.fsum(device_scores)
    for count, score in zip(partition.proportional(n, device_scores), device_scores, strict=True):
        assert abs(count - n * score / total) < 1 + 1e-6 * n
        assert score > 0 or count == 0


def test_proportional_is_exact_where_floats_are_not():
    n = 10**30 + 1
    assert sum(partition.proportional(n, [1e-300, 1e300, 0.1])) == n
    assert partition.proportional(10**18, [1, 1, 1]) == [
        333333333333333334,
        333333333333333333,
        333333333333333333,
    ]


def finish(counts, launch, per_item):
    return max((a + b * n for n, a, b in zip(counts, launch, per_item, strict=True) if n), default=0.0)


def best_by_brute_force(n, launch, per_item, most):
    ranges = [range(min(n, n if limit is None else limit) + 1) for limit in most]
    splits = (c for c in itertools.product(*ranges) if sum(c) == n)
    return min((finish(c, launch, per_item) for c in splits), default=math.inf)


small_costs = st.lists(
    st.tuples(st.floats(0, 10).map(lambda x: round(x, 2)), st.floats(0, 3).map(lambda x: round(x, 2))),
    min_size=1,
    max_size=3,
)


@given(st.integers(0, 9), small_costs, st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3))
def test_water_filling_is_the_best_of_all_splits(n, costs, limits):
    launch, per_item = [a for a, _ in costs], [b for _, b in costs]
    most = limits[: len(costs)]
    best = best_by_brute_force(n, launch, per_item, most)
    if math.isinf(best):
        with pytest.raises(ConfigError, match="the devices can have"):
            partition.water_filling(n, launch, per_item, most)
        return
    counts = partition.water_filling(n, launch, per_item, most)
    assert sum(counts) == n
    assert min(counts) >= 0
    assert all(limit is None or count <= limit for count, limit in zip(counts, most, strict=True))
    assert finish(counts, launch, per_item) <= best + 1e-9
    assert partition.water_level(n, launch, per_item, most) <= best + 1e-9, "a bound of all"


@given(
    st.integers(0, 10**9),
    st.lists(st.tuples(st.floats(0, 10), st.floats(1e-9, 1e-3)), min_size=1, max_size=8),
)
def test_water_filling_finishes_all_used_devices_together(n, costs):
    launch, per_item = [a for a, _ in costs], [b for _, b in costs]
    counts = partition.water_filling(n, launch, per_item)
    assert sum(counts) == n
    last = finish(counts, launch, per_item)
    for count, (a, b) in zip(counts, costs, strict=True):
        # one more item anywhere would not have finished before the last device does
        assert a + b * (count + 1) >= last * (1 - 1e-9)


def test_water_filling_leaves_out_what_cannot_help():
    assert partition.water_filling(10, [0.0, 100.0], [1.0, 0.001]) == [10, 0]
    assert partition.water_filling(10, [0.0, math.inf], [1.0, 0.001]) == [10, 0]
    assert partition.water_filling(1000, [0.01, 0.01], [1e-3, 3e-3]) == [750, 250]
    assert partition.water_filling(10, [5.0, 0.0], [0.0, 1.0]) == [5, 5], "an item free of charge after 5 s"
    assert partition.water_filling(0, [], []) == []
    assert partition.water_filling(10, [0, 0, 0], [1, 1, 4], [2, None, None]) == [2, 7, 1], "others fill up"
    assert partition.water_level(10, [0, 0, 0], [1, 1, 4], [2, None, None]) == 6.4
