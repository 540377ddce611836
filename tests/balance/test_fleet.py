"""Modelled devices against a slow twin that steps through time."""

from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evenload.balance.fleet import ModelDevice, fluid_bound
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


def test_no_work_takes_no_time():
    assert fluid_bound([ModelDevice("d")], 0.0) == 0.0


@pytest.mark.parametrize(
    "options", [{"speed": -1.0}, {"launch_s": -1.0}, {"profile": ((2.0, 1.0), (1.0, 1.0))}, {"speed": inf}]
)
def test_impossible_devices_are_refused(options):
    with pytest.raises(ConfigError, match="device d"):
        ModelDevice("d", **options)
