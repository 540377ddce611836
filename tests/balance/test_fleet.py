"""Modelled devices against a slow twin that steps through time; fleets and items as people write them."""

import math
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evenload.balance.fleet import MOST_ITEMS, ModelDevice, draw_costs, draw_hints, fluid_bound, parse_fleet
from evenload.errors import ConfigError

SPEEDS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
CHANGES = st.lists(st.tuples(st.integers(0, 12), SPEEDS), max_size=4).map(lambda c: tuple(sorted(c)))


def stepped(device: ModelDevice, start_s: int, stop_s: int) -> float:
    """Work between two whole seconds, second by second (all changes are at whole seconds)."""
    total = 0.0
    for second in range(start_s, stop_s):
        now = [speed for t, speed in device.profile if t <= second]
        dead = device.dies_s is not None and second >= device.dies_s
        back = device.back_s is not None and second >= (device.dies_s or 0.0) + device.back_s
        total += 0.0 if dead and not back else now[-1] if now else device.speed
    return total


@given(SPEEDS, CHANGES, st.integers(0, 15), st.none() | st.integers(0, 10), st.none() | st.integers(1, 5))
def test_work_until_is_the_sum_of_the_seconds(speed, changes, until, dies_s, back_s):
    device = ModelDevice("d", speed, changes, dies_s=dies_s, back_s=back_s)
    assert device.work_until(until) == pytest.approx(stepped(device, 0, until))


@given(SPEEDS, CHANGES, st.integers(0, 15), st.floats(0, 20))
def test_finish_is_the_first_moment_at_which_the_work_is_done(speed, changes, start_s, work):
    device = ModelDevice("d", speed, changes)
    stop_s = device.finish(start_s, work)
    assert stop_s >= start_s
    if stop_s == inf:
        assert device.work_until(1e6) - device.work_until(start_s) < work
        return
    assert device.work_until(stop_s) - device.work_until(start_s) == pytest.approx(work, abs=1e-9)
    if work > 1e-6 and stop_s - start_s > 1e-3:
        assert device.work_until(stop_s - 1e-3) - device.work_until(start_s) < work


@given(
    st.lists(st.tuples(SPEEDS, CHANGES, st.none() | st.integers(0, 9)), min_size=1, max_size=3),
    st.floats(0.1, 60),
)
def test_the_fluid_bound_is_when_all_together_are_through(fleet, work):
    devices = [ModelDevice(f"d{at}", s, c, dies_s=dies_s) for at, (s, c, dies_s) in enumerate(fleet)]
    bound_s = fluid_bound(devices, work)
    if bound_s == inf:
        assert sum(d.work_until(1e6) for d in devices) < work
        return
    assume(bound_s > 1e-2)
    assert sum(d.work_until(bound_s) for d in devices) == pytest.approx(work)
    assert sum(d.work_until(bound_s - 1e-2) for d in devices) < work


def test_groups_speeds_changes_and_deaths() -> None:
    fleet = parse_fleet("2, 1x0.5, 1x8@2:4@3:1!10", launch_s=0.01)
    assert [device.name for device in fleet] == ["d0", "d1", "d2", "d3"]
    assert [device.speed for device in fleet] == [1, 1, 0.5, 8]
    assert fleet[3].profile == ((2, 4), (3, 1))
    assert [device.dies_s for device in fleet] == [None, None, None, 10]
    assert {device.launch_s for device in fleet} == {0.01}


@pytest.mark.parametrize(
    ("text", "mean"),
    [("2.5", 2.5), ("uniform:1:3", 2), ("lognormal:0.5", 1), ("lognormal:1:5", 5), ("exponential:2", 2)],
)
def test_costs_have_the_mean_they_say(text: str, mean: float) -> None:
    costs = draw_costs(text, 20_000, seed=3)
    assert len(costs) == 20_000
    assert math.fsum(costs) / len(costs) == pytest.approx(mean, rel=0.05)
    assert costs == draw_costs(text, 20_000, seed=3)


@pytest.mark.parametrize(
    ("make", "nonsense"),
    [
        (
            parse_fleet,
            ["", "0", "x2", "1x", "1x-1", "two", "1@2", "1@3:1@2:1", "1;2", "1,,2", "1025", "1xinf"],
        ),
        (
            lambda text: draw_costs(text, 3, 0),
            ["", "fast", "uniform:3:1", "uniform:1", "lognormal", "-1", "nan"],
        ),
        (
            lambda text: draw_costs(text, 3, 0),
            ["exponential:0", "inf", "lognormal:99", "1e308", "uniform:1:1e300"],
        ),
        (lambda n: draw_costs("1", n, 0), [MOST_ITEMS + 1, -1]),
        (lambda error: draw_hints([1.0], error, 0), [1.5]),
        (
            lambda options: ModelDevice("d", **options),
            [{"speed": -1.0}, {"launch_s": -1.0}, {"profile": ((2.0, 1.0), (1.0, 1.0))}, {"speed": inf}],
        ),
    ],
)
def test_nonsense_is_refused(make, nonsense) -> None:
    for one in nonsense:
        with pytest.raises(ConfigError):
            make(one)


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0, 1), st.integers(0, 99))
def test_hints_are_off_by_no_more_than_said(costs: list[float], error: float, seed: int) -> None:
    hints = draw_hints(costs, error, seed)
    assert len(hints) == len(costs)
    for cost, hint in zip(costs, hints, strict=True):
        assert cost * (1 - error) - 1e-9 <= hint <= cost * (1 + error) + 1e-9
