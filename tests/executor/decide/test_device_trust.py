"""Whether what fails again is the item or what a worker has built.

The oracle is a world whose faults are known beforehand: which items fail everywhere, and on which devices
what is built is dead, until it is built anew or for ever.
"""

import random
from collections.abc import Sequence

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.decide.device_trust import MOST_UNPROVED, DeviceTrust

HERE = ("a", "b")


def judged(
    trust: DeviceTrust, device: str, items: list[int], bad: list[int], here: Sequence[str]
) -> list[str]:
    """What is to be done about devices after this answer."""
    trust.judge(device, items, bad, here)
    renewed = [f"renew {one}" for one in here if trust.takes_renewal(one)]
    return renewed + [f"leave {one}: {why}" for one, why in trust.take_left().items()]


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.floats(0, 1))
def test_items_that_fail_everywhere_cost_no_device_and_few_renewals(
    seed: int, n_devices: int, n_tries: int, bad_share: float
) -> None:
    world, trust = random.Random(seed), DeviceTrust()
    devices = "abc"[:n_devices]
    is_bad = [world.random() < bad_share for _ in range(40)]
    todo = [item for item in range(40) for _ in range(n_tries if is_bad[item] else 1)]
    world.shuffle(todo)
    verdicts = []
    while todo:
        items = list(dict.fromkeys(todo[: world.randint(1, 3)]))
        for item in items:
            todo.remove(item)
        bad = [at for at, item in enumerate(items) if is_bad[item]]
        verdicts += judged(trust, world.choice(devices), items, bad, devices)
    assert set(verdicts) <= {f"renew {device}" for device in devices}
    assert all(verdicts.count(f"renew {device}") <= MOST_UNPROVED for device in devices)


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.booleans())
def test_a_dead_object_is_found_before_it_has_failed_many_items(seed: int, heals: bool) -> None:
    """Device a is dead from the start. An item that failed is tried next where it has not."""
    world, trust = random.Random(seed), DeviceTrust()
    is_dead, here, n_failed = True, set(HERE), 0
    waiting = list(range(60))
    while waiting:
        item = waiting.pop(0)
        free = sorted(here - trust.failed_on(item)) or sorted(here)
        device = world.choice(free)
        if trust.takes_renewal("a") and heals:
            is_dead = False
        bad = [0] if device == "a" and is_dead else []
        n_failed += len(bad)
        trust.judge(device, [item], bad, here)
        here -= trust.take_left().keys()
        if bad:
            waiting.insert(world.randint(0, min(2, len(waiting))), item)
    assert n_failed <= 12
    assert "b" in here
    assert heals == ("a" in here) or n_failed < 4, "few came to it at all"
