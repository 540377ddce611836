"""Shares are possible, and the prices prove that nothing better is: both ends of the program meet."""

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.pipeline.planning.work_shares import Way, share_work


@st.composite
def programs(draw):
    n_tasks = [draw(st.sampled_from([0, 1, 10, 1000, 100_000])) for _ in range(draw(st.integers(1, 5)))]
    n_devices = [draw(st.integers(1, 100)) for _ in range(draw(st.integers(1, 6)))]
    ways = [
        Way(
            stage, draw(st.sampled_from([0.5, 17.3, 100.0, 1730.0])), ((kind, draw(st.sampled_from([1, 3]))),)
        )
        for stage in range(len(n_tasks))
        for kind in range(len(n_devices))
        if draw(st.integers(0, 4))
    ]
    return ways, n_tasks, n_devices


@settings(max_examples=examples(80), deadline=None)
@given(program=programs())
def test_shares_are_possible_and_proved_best(program) -> None:
    ways, n_tasks, n_devices = program
    shares = share_work(ways, n_tasks, n_devices)
    used = list(zip(ways, shares.used, strict=True))
    for stage, n in enumerate(n_tasks):
        done = sum(way.rate * times for way, times in used if way.stage == stage)
        assert done >= shares.done * n * (1 - 1e-6) - 1e-9
    for kind, n in enumerate(n_devices):
        taken = sum(each * times for way, times in used for one, each in way.uses if one == kind)
        assert taken <= n * (1 + 1e-6)
    worth = sum(price * n for price, n in zip(shares.prices, n_tasks, strict=True))
    if not shares.done:
        assert not any(n_tasks) or any(
            n and not any(way.stage == stage for way in ways) for stage, n in enumerate(n_tasks)
        )
        return
    most = 0.0  # what all devices can earn at these prices
    for kind, n in enumerate(n_devices):
        mine = [(way, each) for way in ways for one, each in way.uses if one == kind]
        most += n * max((shares.prices[way.stage] * way.rate / each for way, each in mine), default=0.0)
    assert most / worth == pytest.approx(shares.done, rel=1e-6)
