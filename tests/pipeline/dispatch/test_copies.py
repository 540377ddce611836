"""Copies of tasks at the end of a stage: played fleets of which the least possible makespan is known."""

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.dispatch.played_fleet import STAGES, Fleet, flow, least_s, phases_of_mode

from evenload.pipeline.dispatch.dispatcher import GroupScheduler

LIMIT = 1.6


def played_s(item_s: list[float], n_items: int, **options) -> float:
    devices = [f"d{at}" for at in range(len(item_s))]
    dispatcher = GroupScheduler(phases_of_mode("swap", ("edit",), devices), ("edit",), **options)
    return Fleet(dispatcher, flow(n_items, ("edit",)), item_s=dict(zip(devices, item_s, strict=True))).go()


@given(st.lists(st.floats(1.0, 12.0), min_size=1, max_size=4), st.integers(0, 30))
@settings(deadline=None, max_examples=examples(200))
def test_an_end_with_copies_is_near_the_least_possible_and_no_later_than_without(item_s, n_more) -> None:
    """The oracle is the least possible makespan, and the same fleet where nothing is copied.

    Of a device that nobody knows, the first item may be on the slowest: only a copy can help there.
    """
    n_items = 3 * len(item_s) + n_more
    with_s = played_s(item_s, n_items, copyable=(0,))
    assert with_s <= played_s(item_s, n_items) + 1e-6
    assert with_s <= LIMIT * least_s(item_s, n_items)


def test_an_item_that_hangs_is_done_by_who_is_idle_and_what_comes_late_does_not_count() -> None:
    """The oracle is the clock of a world in which one device takes a thousand times as long."""
    dispatcher = GroupScheduler(phases_of_mode("swap", STAGES, ["d0", "d1"]), STAGES, copyable=(0, 1))
    played = Fleet(dispatcher, flow(4), item_s={"d0": 1000.0, "d1": 1.0})
    assert played.go() < 20
    assert {group for group, _, _ in played.ran} == {"d1"}
