"""What the scheduler does with items that fail: where they are tried next, and when.

That every item meets exactly one fate, whatever happens to the workers, is what ``test_never_twice`` holds.
"""

import itertools
from typing import Any

import pytest

from evenload.balance.dealing.dealer import Dealer
from evenload.executor.decide.scheduler import Rest, Scheduler, Send

DEVICES = ("a", "b", "c")


def of_one_item(policy: str = "pull", **options: Any) -> Scheduler:
    scheduler = Scheduler(Dealer(policy, DEVICES), batch=1, **options)
    scheduler.read(1)
    scheduler.end_input()
    return scheduler


def test_an_item_too_large_for_a_device_goes_to_larger_ones_only() -> None:
    scheduler, tried = of_one_item(memory_bytes={"a": 8, "b": 16, "c": 8}), []
    for device in 10 * ("a", "c", "b"):
        answer = scheduler.free(device, 0.0) if not scheduler.is_finished else None
        if isinstance(answer, Send):
            tried.append(device)
            settled = scheduler.answered(answer.chunk, 0.0, 1e-3, no_memory=(0,))
            assert bool(settled) == scheduler.is_finished, "the last answer, here its failure, is final"
    assert tried == ["a", "b"]
    assert scheduler.is_finished
    assert scheduler.retries == {"memory": 1}


def test_an_item_that_raises_is_tried_again_elsewhere_after_a_growing_pause() -> None:
    scheduler, now = of_one_item(most_retries=2), 1.0
    tried: list[tuple[str, float]] = []
    while not scheduler.is_finished:
        dues = []
        for device in DEVICES:
            answer = scheduler.free(device, now) if not scheduler.is_finished else None
            if isinstance(answer, Send):
                tried.append((device, now))
                scheduler.answered(answer.chunk, now, 1e-3, raised=(0,))
            elif answer is not None and answer.until is not None:
                dues.append(answer.until)
        now = min(dues, default=now)
    assert [device for device, _ in tried] == ["a", "b", "c"], "first where it has not failed"
    assert [round(b[1] - a[1], 3) for a, b in itertools.pairwise(tried)] == [0.1, 0.2]
    assert scheduler.retries == {"raised": 2}


def test_an_item_that_is_tried_again_elsewhere_is_not_copied_to_where_it_failed() -> None:
    """However long the second try takes: another failure of the first device would be the end."""
    scheduler = of_one_item("measured", most_retries=1)
    first = scheduler.free("a", 0.0)
    assert isinstance(first, Send)
    scheduler.answered(first.chunk, 0.0, 1e-3, raised=(0,))
    second = scheduler.free("b", 1.0)
    assert isinstance(second, Send)
    for seconds in (2.0, 100.0, 10_000.0):
        assert all(isinstance(scheduler.free(device, seconds), Rest) for device in ("a", "c"))
    scheduler.answered(second.chunk, 1.0, 1e-3)
    assert scheduler.is_finished


@pytest.mark.parametrize(
    ("is_overtime", "most", "why"),
    [(True, 1, "overtime"), (True, 2, "overtime"), (False, 1, "died"), (False, 2, "")],
)
def test_a_stuck_item_that_ends_its_worker_is_given_up_as_any_other(
    is_overtime: bool, most: int, why: str
) -> None:
    scheduler = Scheduler(Dealer("pull:4", DEVICES), batch=1, max_worker_deaths=most)
    scheduler.read(4)
    scheduler.end_input()
    held = scheduler.free("a", 0.0)
    assert isinstance(held, Send)
    scheduler.stuck(held.chunk, "a", 1.0, 1)
    failed = scheduler.died(held.chunk, "a", 2.0, 1, is_overtime)
    assert [(tuple(one.items), one.why) for one in failed] == ([((1,), why)] if why else [])
    assert scheduler.states.open(range(4)) == [at for at in range(4) if at != 1 or not why]
