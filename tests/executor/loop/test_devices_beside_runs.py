"""Devices that come and go in other threads while runs are made, begun and fetched: by chance, from seeds."""

import random
import re

import pytest

import evenload
from evenload.errors import ConfigError
from evenload.executor import Executor

SLOTS = ("cpu:0", "cpu:1", "cpu:2")


def double(x: int) -> int:
    return 2 * x


def change(executor: Executor, chance: random.Random) -> None:
    """Drain or add a slot. That it is refused now and then is right: the other thread was faster."""
    slot = chance.choice(SLOTS)
    refusals = f"unknown device '{slot}'|{slot} takes part already|nobody would work without {slot}"
    try:
        if chance.random() < 0.5:
            executor.drain(slot, at_once=chance.random() < 0.3)
        else:
            executor.add(slot)
    except ConfigError as error:
        if not re.match(refusals, error.message):
            raise


@pytest.mark.parametrize("seed", range(10))
def test_counts_of_a_static_partition_stay_with_their_devices(seed: int) -> None:
    """Runs that are made, begun and fetched at random points between changes, all in one thread."""
    chance = random.Random(seed)
    with Executor("cpu*3", backend="inline") as executor:
        runs = []
        for _ in range(30):
            if chance.random() < 0.4:
                change(executor, chance)
            elif chance.random() < 0.5:
                counts = tuple(chance.randrange(0, 5) for _ in executor.devices)
                items = range(sum(counts)) if chance.random() < 0.7 else iter(range(sum(counts)))
                policy = evenload.balance.policy.Static(counts)
                runs.append((sum(counts), executor.map(double, items, policy=policy), []))
            elif runs:
                n, results, got = chance.choice(runs)
                if len(got) < n:
                    got.append(next(results))
        for n, results, got in runs:
            assert got + list(results) == [2 * x for x in range(n)]
