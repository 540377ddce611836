"""Tests what a backend must keep that runs everything in the caller."""

import random
import time

import pytest

import evenload


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", ["measured", "pull"])
def test_an_item_is_run_once_whatever_the_clock_does(
    seed: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items are the caller's own objects: a copy that runs one again would change it again."""
    chance, passed_s, clock = random.Random(seed), 0.0, time.monotonic

    def jumps() -> float:
        nonlocal passed_s
        if chance.random() < 0.05:
            passed_s += chance.choice([0.1, 3.0, 100.0])
        return clock() + passed_s

    monkeypatch.setattr(time, "monotonic", jumps)
    items = [[0] * chance.randrange(5) for _ in range(chance.randrange(3, 40))]
    expected = [[*item, len(item)] for item in items]
    with evenload.Executor("cpu*2", backend="inline") as executor:
        for _ in range(2):
            got = list(executor.map(_grow, [list(item) for item in items], policy=policy))
            assert got == expected


def _grow(item: list) -> list:
    item.append(len(item))
    return item
