"""``evenload moe``: plans, routes and replays from the command line; stdout is the result."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from evenload.certificate import check, load
from evenload.cli.moe.group import moe
from evenload.errors import ConfigError
from evenload.moe.search.plan_file import read_plan

TRACE = Path(__file__).parents[2] / "data" / "routing" / "routing_law.npz"
SIZE = ["--gpus", "16", "--slots", "80", "--layers", "0:26:13"]


def call(*args):
    return CliRunner().invoke(moe, list(map(str, args)), catch_exceptions=False, standalone_mode=False)


@pytest.fixture
def refused(command):
    return lambda *args: command("moe", *args)[::2]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = call("place", TRACE, *SIZE, "-o", path)
    assert done.return_value == 0
    assert done.stdout.splitlines()[-1] == str(path)
    return path


def test_a_plan_is_written_as_it_is_printed(plan):
    printed = json.loads(call("place", TRACE, *SIZE, "--json").stdout)
    phy2log, n_experts, fleet = read_plan(plan)
    assert printed["schema"] == 1
    assert printed["phy2log"] == phy2log.tolist()
    assert (n_experts, fleet.n_gpus, len(phy2log)) == (64, 16, 2)
    assert all(a >= b for a, b in zip(printed["imbalance"], printed["bound"], strict=True))


def test_certificates_hold_and_say_what_was_printed(plan, tmp_path):
    """Of the placement under the trace, and of the routing of its batches."""
    placed, routed = tmp_path / "placed.cert.json", tmp_path / "routed.cert.json"
    done = call("place", TRACE, *SIZE, "--policy", "eplb", "--objective", "equal", "--certificate", placed)
    assert done.stdout.splitlines()[-1] == str(placed)
    assert call("route", TRACE, plan, "--layers", "0:26:13", "--certificate", routed).return_value == 0
    achieved, bound = check(load(placed))
    assert 1 < achieved / bound < 2
    achieved, bound = check(load(routed))
    assert float(achieved / bound) == pytest.approx(1)


def test_fewest_fetches(plan, tmp_path):
    options = ["--old", plan, "--window", 512, "--expert-bytes", 2**30, "--json"]
    few = json.loads(call("place", TRACE, *SIZE, *options, "--target", 1.05).stdout)["moves"]
    fresh = json.loads(call("place", TRACE, *SIZE, *options, "--policy", "eplb").stdout)["moves"]
    assert few["share"] < 0.1 < 0.7 < fresh["share"]
    assert few["bytes"] == few["experts"] * 2**30
    text = call("place", TRACE, *SIZE, *options[:-1], "--target", 1.05, "-o", tmp_path / "next.npz").stdout
    assert f"to fetch: {few['experts']} experts" in text
    assert read_plan(tmp_path / "next.npz")[0].shape == (2, 80)


def test_a_target_that_is_missed_is_said_on_stderr(plan):
    intent = TRACE.with_name("routing_intent.npz")
    done = call("place", intent, *SIZE, "--old", plan, "--objective", "equal", "--target", 1, "--json")
    assert not json.loads(done.stdout)["target_met"]
    assert "evenload: target 1 is not met in 2 of 2 layers" in done.stderr


def test_a_plan_is_checked_on_what_comes_later(refused):
    code, said = refused("place", TRACE, *SIZE, "--check", 0)
    assert code == 2
    assert "--check" in said
    done = json.loads(call("place", TRACE, *SIZE, "--check", 512, "--robust", 0.3, "--json").stdout)
    assert len(done["checked"]) == 2
    assert min(done["checked"]) >= 1
    assert "checked" in call("place", TRACE, *SIZE, "--check", 512).stdout.splitlines()[0]


def test_routing_a_plan(plan):
    shown = json.loads(call("route", TRACE, plan, "--layers", "0:26:13", "--json").stdout)
    assert shown["n_batches"] == 16
    for equal, routed, worst, bound in zip(
        *(shown[key] for key in ("equal", "routed", "worst", "bound")), strict=True
    ):
        assert bound <= routed <= min(equal, worst)
    assert "mean" in call("route", TRACE, plan, "--layers", "0:26:13").stdout


@pytest.mark.parametrize("n_tokens", [2, 1500])
def test_a_short_trace_is_replayed_in_smaller_batches(tmp_path, n_tokens):
    path = tmp_path / "short.npz"
    np.savez(path, experts=np.load(TRACE)["experts"][:2, :n_tokens])
    shown = json.loads(call("replay", path, "--gpus", 16, "--slots", 80, "--json").stdout)
    assert shown["batch"] <= max(1, n_tokens // 4)
    assert shown["history"] >= 1
    with pytest.raises(ConfigError, match="no window of 2048"):
        call("replay", path, "--gpus", 16, "--slots", 80, "--batch", 2048)


def test_counts_are_their_own_steps(tmp_path):
    counts = np.random.default_rng(0).poisson(30, (12, 1, 20))
    np.savez(tmp_path / "counts.npz", counts=counts[:3])
    np.save(tmp_path / "loads.npy", counts)
    size = ("--gpus", 4, "--slots", 24, "--json")
    assert json.loads(call("replay", tmp_path / "counts.npz", *size).stdout)["history"] == 1
    shown = json.loads(call("replay", tmp_path / "loads.npy", *size, "--history", 4).stdout)
    assert (shown["batch"], len(shown["bound"])) == (0, 8)


def test_what_cannot_be_replayed_is_told_with_what_can_be_done(tmp_path):
    path = tmp_path / "counts.npz"
    np.savez(path, counts=np.random.default_rng(0).integers(1, 99, (1, 2, 16)))
    with pytest.raises(ConfigError, match="a trace of 1 batch") as refused:
        call("replay", path, "--gpus", 4, "--slots", 20)
    assert "evenload moe place" in refused.value.hint
    assert call("place", path, "--gpus", 4, "--slots", 20, "--json").return_value == 0  # the hint holds
    np.savez(path, counts=np.random.default_rng(0).integers(1, 99, (3, 2, 16)))
    with pytest.raises(ConfigError) as refused:
        call("replay", path, "--gpus", 4, "--slots", 20, "--history", 3)
    assert "1 to 2" in refused.value.hint


def test_replay_with_a_page(tmp_path):
    page = tmp_path / "page.html"
    done = call("replay", TRACE, *SIZE, "--every", 4, "--html", page)
    assert done.return_value == 0
    names = [line.split("  ")[0] for line in done.stdout.splitlines()[1:-1]]
    assert names == ["EPLB", "EPLB + routing", "search + routing", "few fetches + routing"]
    assert done.stdout.splitlines()[-1] == str(page)
    assert page.stat().st_size > 600_000
    shown = json.loads(call("replay", TRACE, *SIZE, "--json").stdout)
    assert [course["name"] for course in shown["courses"]] == names[:3]


def test_measuring_this_machine():
    options = ["--layers", 2, "--experts", 32, "--slots", 40, "--gpus", 8, "--repeat", 2]
    shown = json.loads(call("bench", *options, "--json").stdout)
    assert all(seconds > 0 for seconds in shown["cpu_s"].values())
    assert len(call("bench", *options).stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["place", "nowhere.npz", *SIZE], "no trace at 'nowhere.npz'"),
        (["place", TRACE, "--gpus", 16, "--slots", 60], "60 living slots are too few"),
        (["place", TRACE, *SIZE[:4], "--layers", "a"], "--layers 'a' is no range"),
        (["place", TRACE, *SIZE[:4], "--layers", "9:9"], "leaves no layer"),
        (["place", TRACE, *SIZE, "--speeds", "x"], "no list of numbers"),
        (["place", TRACE, *SIZE, "--dead", "3", "--policy", "eplb"], "alike GPUs"),
        (["place", TRACE, *SIZE, "--target", "1.1"], "without old="),
        (["place", TRACE, *SIZE, "--old", "nowhere.json"], "no plan at"),
        (["place", TRACE, *SIZE, "-o", "plan.txt"], "unknown kind of plan"),
        (["route", TRACE, TRACE.parent / "NOTICE"], "is no plan"),
        (["replay", TRACE, *SIZE, "--history", "99"], "99 of them to plan on"),
        (["replay", TRACE, *SIZE, "--html", "no/where/page.html"], "cannot write"),
    ],
)
def test_bad_input_ends_with_2_or_says_what_is_damaged(refused, args, words):
    code, err = refused(*args)
    assert words in err
    assert code == (1 if "is no plan" in words else 2)


def test_a_plan_for_another_trace(plan, refused):
    code, err = refused("route", TRACE, plan)
    assert code == 2
    assert "the plan has 2 layers of 64 experts, the trace 26 of 64" in err
