"""Fleets and items as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.balance.fleet import MOST_DEVICES, MOST_ITEMS, draw_costs, draw_hints, parse_fleet
from evenload.errors import ConfigError


def test_groups_speeds_changes_and_deaths() -> None:
    fleet = parse_fleet("2, 1x0.5, 1x8@2:4@3:1!10", launch_s=0.01)
    assert [device.name for device in fleet] == ["d0", "d1", "d2", "d3"]
    assert [device.speed for device in fleet] == [1, 1, 0.5, 8]
    assert fleet[3].profile == ((2, 4), (3, 1))
    assert [device.dies_s for device in fleet] == [None, None, None, 10]
    assert {device.launch_s for device in fleet} == {0.01}


@pytest.mark.parametrize(
    "text",
    ["", "0", "x2", "1x", "1x-1", "two", "1@2", "1@3:1@2:1", "1;2", "1,,2", f"{MOST_DEVICES + 1}", "1xinf"],
)
def test_what_is_no_fleet_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_fleet(text)


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
    "text",
    [
        "",
        "fast",
        "uniform:3:1",
        "uniform:1",
        "lognormal",
        "exponential:0",
        "-1",
        "nan",
        "inf",
        "lognormal:99",
    ],
)
def test_what_is_no_cost_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        draw_costs(text, 3, seed=0)


def test_too_many_items_are_refused() -> None:
    with pytest.raises(ConfigError):
        draw_costs("1", MOST_ITEMS + 1, seed=0)
    with pytest.raises(ConfigError):
        draw_costs("1", -1, seed=0)


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0, 1), st.integers(0, 99))
def test_hints_are_off_by_no_more_than_said(costs: list[float], error: float, seed: int) -> None:
    hints = draw_hints(costs, error, seed)
    assert len(hints) == len(costs)
    for cost, hint in zip(costs, hints, strict=True):
        assert cost * (1 - error) - 1e-9 <= hint <= cost * (1 + error) + 1e-9


def test_an_impossible_error_is_refused() -> None:
    with pytest.raises(ConfigError):
        draw_hints([1.0], 1.5, seed=0)
