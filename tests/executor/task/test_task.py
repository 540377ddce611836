"""A task on one device: per item, in batches, with failures, and when memory runs out."""

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ResourceExhausted
from evenload.executor.task.failure import Failure
from evenload.executor.task.task import PreparedTask, Runner
from evenload.executor.transport.progress_cell import ProgressCell


def at_chunk(number: int) -> ProgressCell:
    cell = ProgressCell()
    cell.begin(number)
    return cell


def runner(fn: Any, **options: Any) -> Runner:
    return Runner(PreparedTask(1, "fn", fn, **options), lambda: "the device")


@given(st.integers(0, 30), st.integers(1, 7), st.sets(st.integers(0, 29), max_size=4), st.booleans())
def test_batches_isolate_the_items_that_raise(n: int, batch: int, bad: set[int], may_split: bool) -> None:
    sizes = []

    def fn(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if bad & set(items):
            raise ValueError("bad batch")
        return [-item for item in items]

    answer = runner(fn, batch=batch, may_split=may_split).run(list(range(n)), at_chunk(1))
    assert max(sizes, default=0) <= batch
    assert len(answer.values) == n
    if may_split:
        assert set(answer.failures) == {item for item in bad if item < n}
        assert answer.values == [None if item in bad else -item for item in range(n)]
    else:
        tainted = {item // batch for item in bad if item < n}
        assert set(answer.failures) == {item for item in range(n) if item // batch in tainted}


def test_too_little_memory_halves_the_batch_and_remembers() -> None:
    sizes = []

    def fn(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 2:
            raise ResourceExhausted("more than two do not fit")
        return items

    one = runner(fn, batch=8)
    answer = one.run(list(range(8)), at_chunk(1))
    assert answer.values == list(range(8))
    assert sizes == [8, 4, 2, 2, 2, 2]
    assert answer.ceiling == 2
    sizes.clear()
    one.run(list(range(4)), at_chunk(2))
    assert sizes == [2, 2]


def test_singly_calls_with_lists_of_one_and_passes_failures_through() -> None:
    seen = []

    def fn(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    lost = Failure("input", "TypeError", "cannot be read")
    answer = runner(fn, batch=4).run([1, lost, 3], at_chunk(1), singly=True)
    assert seen == [[1], [3]]
    assert answer.values == [1, None, 3]
    assert answer.failures == {1: lost}


def test_what_is_dropped_is_not_begun() -> None:
    place = at_chunk(5)

    def fn(x: int) -> int:
        if x == 1:
            place.drop(5)
        return x

    answer = runner(fn).run([0, 1, 2, 3], place)
    assert (answer.values, answer.skipped) == ([0, 1], 2)
    answer = runner(lambda items: items, batch=2).run([0, 1, 2], place)
    assert (answer.values, answer.skipped) == ([], 0)


def test_a_batch_must_give_as_many_results() -> None:
    answer = runner(lambda items: items[1:], batch=2, may_split=False).run([1, 2], at_chunk(1))
    assert "1 results for a batch of 2" in answer.failures[0].message


class Model:
    closed: ClassVar[list[str]] = []

    def __init__(self, device: str = "none"):
        self.device = device

    def __call__(self, x: int) -> tuple[str, int]:
        return self.device, x

    def close(self) -> None:
        self.closed.append(self.device)


@pytest.mark.parametrize(
    ("device_as", "device"), [("device", "the device"), ("", "the device"), (None, "none")]
)
def test_classes_are_built_on_their_device_and_closed(device_as: str | None, device: str) -> None:
    Model.closed = []
    one = runner(Model, is_class=True, device_as=device_as)
    assert one.run([1], at_chunk(1)).values == [(device, 1)]
    one.close()
    assert Model.closed == [device]
