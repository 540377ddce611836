"""Ways of training beside one another: what is measured, and the advice that follows from it alone."""

import itertools

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.comparison import ComparedWay, advice, compare_ways

G = torch.Generator().manual_seed(0)
DATA = [(torch.randn(8, 4, generator=G), torch.randint(0, 3, (8,), generator=G)) for _ in range(4)]
RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def test_ways_are_measured_against_serial():
    ticks = itertools.count()
    ways = ("threads", "merged", "fused", "streams")
    found = compare_ways(
        nn.Linear(4, 3),
        DATA,
        RECIPE,
        ways=ways,
        workers=2,
        test=DATA[0],
        repeats=2,
        clock=lambda: next(ticks),
    )
    by_name = {way.way: way for way in found}
    assert list(by_name) == ["serial", *ways]
    assert {way.seconds for way in found} == {1}  # one tick from before a round to behind it
    assert by_name["serial"].distance == by_name["threads"].distance == 0
    assert by_name["fused"].distance <= 1e-6
    assert by_name["merged"].distance > 1e-3
    assert by_name["fused"].accuracy == by_name["serial"].accuracy
    assert by_name["threads"].ran == "threads*2/eager"
    if not torch.cuda.is_available():
        assert "CUDA" in by_name["streams"].why


def test_a_way_that_cannot_run_says_why_and_costs_no_other():
    found = compare_ways(
        nn.Linear(4, 3), DATA, RECIPE, ways=("devices", "fused"), devices="cuda:97", repeats=1
    )
    assert [way.seconds is None for way in found] == [False, True, False]
    assert "cuda:97" in found[1].why


def test_clients_that_fail_are_counted():
    data = [*DATA, (DATA[0][0], DATA[0][1] + 7)]
    found = compare_ways(nn.Linear(4, 3), data, RECIPE, ways=("fused",), repeats=1)
    assert [way.n_failed for way in found] == [1, 1]


def way(name, seconds, ran="", **kwargs):
    return ComparedWay(name, ran or name, seconds=seconds, **kwargs)


SERIAL = way("serial", 1.0)
CASES = {
    "fused wins": (
        [SERIAL, way("fused", 0.2, "inline/fused:8"), way("threads", 0.8)],
        "--max-workers 1 --strategy inline/fused:8",
    ),
    "threads win": (
        [SERIAL, way("threads", 0.5, "threads*2/eager")],
        "--max-workers 2 --strategy threads",
    ),
    "nothing wins": ([SERIAL, way("threads", 0.99)], "--strategy serial: training one client"),
    "what ran as another is no advice": (
        [SERIAL, way("streams", 0.1, "threads/eager", why="no GPU")],
        "--strategy serial: training",
    ),
    "merged never wins": ([SERIAL, way("merged", 0.1, distance=0.5)], "--strategy serial: training"),
}


@pytest.mark.parametrize("case", CASES)
def test_advice_follows_from_the_measurements(case):
    found, first = CASES[case]
    lines = advice(found, n_clients=8, batch_size=4)
    assert lines[0].startswith(first)
    if any(one.way == "merged" for one in found):
        assert lines[-1].startswith(
            "--batch-size 32 in place of clients (merged) is another training: it ends 5.0e-01"
        )
