"""The figures of a pool's work, against worlds whose times are known beforehand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.integrations.script.measured_work import Done, MeasuredWork, plain_seconds

SECONDS = st.floats(0.01, 10.0)


def work_of(*tasks):
    """Work of ``(place, begun_s, over_s, chunk)``, one item each, all of them put at the start."""
    work = MeasuredWork("a pool", ("cpu:0", "cpu:1"))
    for place, begun_s, over_s, chunk in tasks:
        work.add(Done("f", f"cpu:{place}", 1, chunk, 0.0, begun_s, over_s))
    return work


def test_even_work_is_at_its_bound():
    wall_s, bound_s, plain_s = work_of((0, 0, 1, 0), (1, 0, 1, 1), (0, 1, 2, 2), (1, 1, 2, 3)).seconds()
    assert (wall_s, bound_s, plain_s) == pytest.approx((2.0, 2.0, 2.0))


def test_chunks_are_dealt_whole_where_the_pool_would():
    """Three chunks of two seconds on two workers: the third begins when the first is over."""
    tasks = [(at % 2, at // 2, at // 2 + 1, at // 2) for at in range(6)]
    wall_s, bound_s, plain_s = work_of(*tasks).seconds()
    assert (wall_s, bound_s, plain_s) == pytest.approx((3.0, 3.0, 4.0))


def test_time_without_work_is_nobodys():
    work = work_of((0, 0, 1, 0), (1, 0, 1, 1))
    work.pause()
    for place in range(2):
        work.add(Done("f", f"cpu:{place}", 1, 2 + place, 100.0, 100.0, 101.0))
    assert work.seconds() == pytest.approx((2.0, 2.0, 2.0))


@given(st.lists(SECONDS, min_size=1, max_size=20), st.floats(0.1, 10.0))
def test_one_after_another_is_what_a_single_worker_takes(each, speed):
    """The oracle is the sum."""
    tasks = [Done("f", "cpu:0", 1, at, 0.0, 0.0, seconds) for at, seconds in enumerate(each)]
    assert plain_seconds(tasks, ["cpu:0"], {"f": {"cpu:0": speed}}) == pytest.approx(sum(each))


@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_as_pools_deal_is_never_below_the_bound_nor_twice_it(each):
    """The oracle is Graham's theorem: a list dealt to who is free takes less than twice the least."""
    tasks = [Done("f", f"cpu:{at % 3}", 1, at, 0.0, 0.0, seconds) for at, seconds in enumerate(each)]
    places = [f"cpu:{place}" for place in range(3)]
    plain_s = plain_seconds(tasks, places, {"f": dict.fromkeys(places, 1.0)})
    least_s = max(max(each), sum(each) / 3)
    assert least_s - 1e-9 <= plain_s <= 2 * least_s + 1e-9
