"""Devices that had the same items show something of one another, in whatever order it is told."""

import itertools

import pytest

from evenload.balance import shared_items
from evenload.balance.shared_items import SharedItems

TRIES = [
    ("a", 7, 2.0, 5.0, False),
    ("b", 7, 0.0, 4.0, True),
    ("a", 8, 0.0, 1.0, True),
    ("b", 9, 0.0, 1.0, True),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_copy_that_was_given_up_took_at_least_as_long(order):
    """By hand: "a" had item 7 for 3 s, of which it was busy with something else until 2.5."""
    found = SharedItems()
    for at in order:
        device, items, start, stop, is_done = TRIES[at]
        found.add(device, items, start, stop, is_done=is_done)
    assert found.pairs(lambda device, time_s: 2.5) == [("a", "b", 2.5, 4.0)]
    assert found.pairs(lambda device, time_s: 5.0) == []


def test_who_both_did_them_are_compared_both_ways_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(shared_items, "MOST_KEPT", 4)
    monkeypatch.setattr(shared_items, "MOST_PAIRS", 3)
    found = SharedItems()
    for item in range(9):
        for name, seconds in (("a", 1.0), ("b", 2.0)):
            found.add(name, item, 0.0, seconds, is_done=True)
    pairs = found.pairs(lambda device, time_s: 0.0)
    assert pairs[:2] == [("a", "b", 1.0, 2.0), ("b", "a", 2.0, 1.0)]
    assert len(pairs) == 4
    found.add("c", 0, 0.0, 1.0, is_done=True)
    assert len(found.pairs(lambda device, time_s: 0.0)) == 4
