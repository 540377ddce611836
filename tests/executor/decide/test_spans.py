"""Spans against a plain set."""

from hypothesis import given
from hypothesis import strategies as st

from evenload.executor.decide.spans import Spans


@given(st.lists(st.integers(1, 4), max_size=30), st.randoms(use_true_random=False))
def test_is_the_set_of_what_was_added(lengths: list[int], rng) -> None:
    ranges, start = [], 0
    for length in lengths:
        ranges.append((start, start + length))
        start += length
    rng.shuffle(ranges)
    spans, model = Spans(), set()
    for a, b in ranges[: len(ranges) * 2 // 3]:
        spans.add(a, b)
        model |= set(range(a, b))
        assert len(spans) == spans.n == len(model)
        assert all((i in spans) == (i in model) for i in range(start + 1))
        assert spans.missing(0, start) == sorted(set(range(start)) - model)
    low = next(i for i in range(start + 1) if i not in model)
    assert spans.low == low


def test_touching_ranges_become_one() -> None:
    spans = Spans()
    for index in (5, 3, 4, 1, 2):
        spans.add(index, index + 1)
    assert len(spans._starts) == 1
    spans.add(0, 1)
    assert (spans.low, len(spans._starts)) == (6, 0)
