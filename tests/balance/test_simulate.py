"""The simulator runs the real dealer: nothing beats its bound, nothing is lost, Measured keeps its level."""

import functools
import random
import statistics
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.balance.fleet import ModelDevice
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Measured
from evenload.balance.policy.estimate import Cost
from evenload.balance.policy.measured import UNMEASURED_S
from evenload.balance.simulate import Simulation, simulate
from evenload.errors import ConfigError

POLICIES = ["measured", "pull", "pull:16", "guided", "factoring", "factoring:weighted", "static"]
SPEEDS = (1.0, 2.0, 4.0, 8.0)


def fleet(launch_s: float = 0.001, drift: float | None = None) -> list[ModelDevice]:
    fastest = ((2.0, SPEEDS[-1] / drift),) if drift else ()
    return [ModelDevice(f"d{s:g}", s, fastest if s == SPEEDS[-1] else (), launch_s) for s in SPEEDS]


def lognormal(n: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    costs = [chance.lognormvariate(0, 1) for _ in range(n)]
    return [60.0 * cost / sum(costs) for cost in costs]


def check(run: Simulation, n_items: int) -> None:
    """Spans never overlap on a device, and the good ones hold every item; nothing ends before the bound."""
    assert run.n_unfinished == 0
    assert run.makespan_s >= run.bound_s * (1 - 1e-9)
    assert 0 <= run.ratio <= 1 + 1e-9
    good = {index for span in run.spans if span.status == "ok" for index in span.indices}
    assert good == set(range(n_items))
    ends: dict[str, float] = {}
    for span in run.spans:
        assert span.start_s >= ends.get(span.device, 0.0) - 1e-9
        ends[span.device] = span.stop_s
        assert span.why


@settings(deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.lists(st.tuples(st.floats(0.1, 10), st.lists(st.floats(0.1, 10), max_size=3)), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_nothing_beats_the_bound_and_nothing_is_lost(policy, costs, speeds, launch_s, has_hints, shows_busy):
    devices = [
        ModelDevice(f"d{at}", speed, tuple((2.0 * k + 2, s) for k, s in enumerate(later)), launch_s)
        for at, (speed, later) in enumerate(speeds)
    ]
    run = simulate(policy, devices, costs, hints=costs if has_hints else None, shows_busy=shows_busy)
    if run.makespan_s:
        check(run, len(costs))


@pytest.mark.parametrize("policy", POLICIES)
def test_items_of_a_dead_worker_are_done_elsewhere(policy):
    devices = [ModelDevice("a", 2.0, dies_s=1.0), ModelDevice("b", 1.0), ModelDevice("c", 1.0)]
    run = simulate(policy, devices, [0.1] * 100)
    check(run, 100)
    assert [span.status for span in run.spans if span.device == "a"][-1] == "lost"


def test_a_device_that_comes_back_works_again():
    devices = [ModelDevice("a", 2.0, dies_s=1.0, back_s=0.5), ModelDevice("b", 1.0)]
    run = simulate("measured", devices, [0.1] * 100)
    check(run, 100)
    assert run.ratio > 0.9
    assert any(span.device == "a" and span.start_s >= 1.5 for span in run.spans)


def test_a_fleet_that_dies_leaves_work_and_says_so():
    run = simulate("measured", [ModelDevice("a", 1.0, dies_s=1.0)], [0.3] * 10)
    assert run.makespan_s == run.bound_s == inf
    assert run.n_unfinished == 7


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ConfigError, match="no device"):
        simulate("measured", [], [1.0])
    with pytest.raises(ConfigError, match="cost"):
        simulate("measured", [ModelDevice("a")], [-1.0])


# --- the level that Measured must keep; benchmarks/schedule_simulation.py measures it at length ----


@functools.cache
def level(
    n_items: int, n_draws: int = 6, drift: float | None = None, hints: bool = False, **options
) -> float:
    ratios = []
    for seed in range(n_draws):
        costs = lognormal(n_items, seed)
        chance = random.Random(seed)
        sizes = [cost * chance.uniform(0.8, 1.2) for cost in costs] if hints else None
        ratios.append(simulate(Measured(), fleet(drift=drift), costs, hints=sizes, **options).ratio)
    return statistics.mean(ratios)


def test_measured_keeps_its_level_on_uneven_items():
    assert level(60) > 0.88
    assert level(300) > 0.94
    assert level(300, drift=4) > 0.93
    assert level(300, drift=400) > 0.92
    assert level(300, shows_busy=False) > 0.93


def test_measured_keeps_its_level_with_size_hints():
    assert level(60, hints=True) > 0.95
    assert level(300, hints=True) > 0.97
    assert level(300, drift=4, hints=True) > 0.97


def test_measured_learns_launches_and_batches_tiny_items():
    tiny, launch = [60 / 100_000] * 100_000, [60 / 4096] * 4096
    for shows_busy in (True, False):
        assert simulate("measured", fleet(), tiny, shows_busy=shows_busy).ratio > 0.98
        assert simulate("measured", fleet(0.01), launch, shows_busy=shows_busy).ratio > 0.95
        assert simulate("measured", fleet(0.01, drift=4), launch, shows_busy=shows_busy).ratio > 0.94
    few = simulate("measured", fleet(), tiny, uniform=True)
    assert few.ratio > 0.99
    assert few.counters.n_chunks < 80


def test_a_calibrated_history_saves_the_start():
    devices = fleet(0.01)
    history = {device.name: Cost(0.01, 60 / 4096 / device.speed) for device in devices}
    cold = simulate("measured", devices, [60 / 4096] * 4096, uniform=True)
    warm = simulate("measured", devices, [60 / 4096] * 4096, uniform=True, history=history)
    assert warm.ratio > cold.ratio
    assert warm.ratio > 0.98


def test_measured_beats_the_balancer_of_queues_where_it_matters():
    scores = {"d1": 1.0, "d2": 1.2, "d4": 1.6, "d8": 2.2}
    for n_items, drift in ((60, None), (300, None), (300, 4.0)):
        balanced = [
            simulate(
                "static:proportional",
                fleet(drift=drift),
                lognormal(n_items, seed),
                priors=scores,
                balancer=LoadBalancer(),
            ).ratio
            for seed in range(6)
        ]
        assert level(n_items, drift=drift) > statistics.mean(balanced) + 0.05


# --- a worker that stops ---------------------------------------------------------------------------


@st.composite
def fleets_with_a_stop(draw):
    """One to three devices, of which one stops for good at some time, and items."""
    speeds = draw(st.lists(st.sampled_from([0.7, 1.0, 2.0, 8.0]), min_size=1, max_size=3))
    costs = draw(st.lists(st.sampled_from([0.1, 0.3, 1.0, 4.0]), min_size=1, max_size=30))
    stopped = draw(st.integers(0, len(speeds) - 1))
    stop_s = draw(st.floats(0, 1.1)) * sum(costs) / sum(speeds)
    launch_s = draw(st.sampled_from([0.0, 0.001, 0.05]))
    devices = [
        ModelDevice(f"d{at}", speed, ((stop_s, 0.0),) if at == stopped else (), launch_s)
        for at, speed in enumerate(speeds)
    ]
    return devices, costs, stopped


@settings(deadline=None)
@given(fleets_with_a_stop(), st.booleans())
def test_a_stopped_worker_costs_no_more_than_its_share_again(drawn, has_hints):
    devices, costs, stopped = drawn
    run = simulate("measured", devices, costs, hints=costs if has_hints else None)
    others = [device.speed for at, device in enumerate(devices) if at != stopped]
    if not others:
        assert not any(span.duplicate for span in run.spans)
        return
    assert run.n_unfinished == 0
    alone_s = sum(costs) / min(others) + 0.05 * len(costs)
    assert run.makespan_s <= UNMEASURED_S + 2 * alone_s + 1


@settings(deadline=None)
@given(fleets_with_a_stop())
def test_what_must_not_run_twice_never_does_and_copies_delay_nothing(drawn):
    devices, costs, _ = drawn
    once = simulate("measured", devices, costs, repeatable=False)
    assert not any(span.duplicate for span in once.spans)
    run = simulate("measured", devices, costs)
    copies = [span.start_s for span in run.spans if span.duplicate]
    firsts = [span.start_s for span in run.spans if not span.duplicate]
    assert not copies or max(firsts) <= min(copies), "an item waited while a copy ran"
