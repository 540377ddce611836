"""``evenload simulate`` as a user calls it."""

import json
from functools import partial

import pytest

from evenload.balance.fleet import parse_fleet
from evenload.balance.migrate import LoadBalancer
from evenload.balance.simulate import simulate


@pytest.fixture
def call(command):
    return partial(command, "simulate")


def page(told):
    return json.loads(told[1])


def test_compares_policies_and_draws_the_best(call):
    code, out, _ = call("--devices", "5,1x0.5", "--items", "60")
    assert (code, "60 items" in out, "d5 0.5x" in out) == (0, True, True)
    for name in ("measured", "pull", "guided", "factoring", "static:proportional", "static+balancer"):
        assert f"\n{name} " in out


def test_json_is_within_the_bound(call):
    told = call("--devices", "1,1x2,1x4@1:1", "--items", "80", "--cost", "uniform:0.1:0.3", "--json")
    found = page(told)
    assert (told[0], found["schema"], found["items"]) == (0, 1, 80)
    for run in found["policies"].values():
        assert run["makespan_s"] >= run["bound_s"] > 0
        assert run["unfinished"] == 0
        assert sum(run["busy_s"].values()) >= found["work_s"] / 4


def test_same_seed_same_answer_and_only_the_policies_asked_for(call):
    line = ("--items", "30", "--seed", "5", "--policy", "pull:4", "--policy", "measured", "--hints", "0.2")
    told = call(*line, "--json")
    assert told == call(*line, "--json")
    assert set(page(told)["policies"]) == {"pull:4", "measured"}


def test_a_fleet_that_dies_is_reported_as_such(call):
    code, out, _ = call("--devices", "1!1", "--items", "100")
    assert (code, "never" in out) == (1, True)
    told = call("--devices", "1!1", "--items", "100", "--json")
    assert (told[0], page(told)["policies"]["measured"]["makespan_s"]) == (1, None)


def test_costs_from_a_file(tmp_path, call):
    file = tmp_path / "costs.txt"
    file.write_text("1\n\n2.5\n3\n")
    assert page(call("--costs", file, "--json"))["work_s"] == 6.5
    file.write_text("1\nlong\n")
    code, _, err = call("--costs", file)
    assert (code, "costs.txt:2: 'long' is not a number of seconds" in err) == (2, True)


@pytest.mark.parametrize("bad", ["--devices 1y", "--cost 1e308", "--launch -1", "--items -1", "--hints 7"])
def test_bad_input_is_a_usage_error(bad, call):
    assert call(*bad.split())[:2] == (2, "")


@pytest.mark.parametrize("fleet", ["1x0", "2x0", "1x1e-300", "1x0@1e12:1"])
def test_devices_that_stand_still_end_it_too(fleet, call):
    hangs = fleet.endswith("x0")
    told = call("--devices", fleet, "--items", "20", "--json")
    assert told[0] == hangs
    for name, run in page(told)["policies"].items():
        assert (run["makespan_s"] is None) == hangs, name


def test_the_balancer_empties_the_queue_of_a_device_that_hangs():
    fleet = parse_fleet("1,1x0", launch_s=0.001)
    run = simulate("static:equal", fleet, [1.0] * 100, balancer=LoadBalancer())
    assert run.counters.n_moved >= 40
    assert 1 <= run.n_unfinished <= 2, "what the device runs, and one that is left in balance with it"
    assert simulate("static:equal", fleet, [1.0] * 100, balancer=LoadBalancer(interval_s=0)).n_unfinished <= 2
