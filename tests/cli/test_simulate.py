"""``evenload simulate`` as a user calls it."""

import json

import pytest

from evenload.balance.fleet import parse_fleet
from evenload.balance.migrate import LoadBalancer
from evenload.balance.simulate import simulate
from evenload.cli import main


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_compares_policies_and_draws_the_best(capsys):
    assert call("--devices", "5,1x0.5", "--items", "60") == 0
    out = capsys.readouterr().out
    assert "60 items" in out
    for name in ("measured", "pull", "guided", "factoring", "static:proportional", "static+balancer"):
        assert f"\n{name} " in out
    assert "d5 0.5x" in out


def test_json_is_within_the_bound(capsys):
    assert call("--devices", "1,1x2,1x4@1:1", "--items", "80", "--cost", "uniform:0.1:0.3", "--json") == 0
    page = json.loads(capsys.readouterr().out)
    assert page["schema"] == 1
    assert page["items"] == 80
    for run in page["policies"].values():
        assert run["makespan_s"] >= run["bound_s"] > 0
        assert run["unfinished"] == 0
        assert sum(run["busy_s"].values()) >= page["work_s"] / 4


def test_same_seed_same_answer(capsys):
    call("--items", "30", "--seed", "5", "--json")
    first = capsys.readouterr().out
    call("--items", "30", "--seed", "5", "--json")
    assert capsys.readouterr().out == first


def test_only_the_policies_asked_for(capsys):
    call("--items", "20", "--policy", "pull:4", "--policy", "measured", "--hints", "0.2", "--json")
    assert set(json.loads(capsys.readouterr().out)["policies"]) == {"pull:4", "measured"}


def test_a_fleet_that_dies_is_reported_as_such(capsys):
    assert call("--devices", "1!1", "--items", "100") == 1
    assert "never" in capsys.readouterr().out
    assert call("--devices", "1!1", "--items", "100", "--json") == 1
    assert json.loads(capsys.readouterr().out)["policies"]["measured"]["makespan_s"] is None


def test_costs_from_a_file(tmp_path, capsys):
    file = tmp_path / "costs.txt"
    file.write_text("1\n\n2.5\n3\n")
    assert call("--costs", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out)["work_s"] == 6.5
    file.write_text("1\nlong\n")
    assert call("--costs", str(file)) == 2
    assert "costs.txt:2: 'long' is not a number of seconds" in capsys.readouterr().err
    assert call("--costs", str(tmp_path / "none")) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--devices", "1y"),
        ("--cost", "slow"),
        ("--cost", "1e308"),
        ("--items", "-1"),
        ("--launch", "-1"),
        ("--policy", "mesured"),
        ("--hints", "7"),
        ("--items", "many"),
    ],
)
def test_bad_input_is_a_usage_error(arguments, capsys):
    assert call(*arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("fleet", ["1x0", "2x0", "1x1e-300", "1x0@1e12:1"])
def test_devices_that_stand_still_end_it_too(fleet, capsys):
    hangs = fleet.endswith("x0")
    assert call("--devices", fleet, "--items", "20", "--json") == hangs
    for name, run in json.loads(capsys.readouterr().out)["policies"].items():
        assert (run["makespan_s"] is None) == hangs, name


def test_the_balancer_empties_the_queue_of_a_device_that_hangs():
    fleet = parse_fleet("1,1x0", launch_s=0.001)
    run = simulate("static:equal", fleet, [1.0] * 100, balancer=LoadBalancer())
    assert run.counters.n_moved >= 40
    assert 1 <= run.n_unfinished <= 2, "what the device runs, and one that is left in balance with it"
    assert simulate("static:equal", fleet, [1.0] * 100, balancer=LoadBalancer(interval_s=0)).n_unfinished <= 2
