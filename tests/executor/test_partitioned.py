"""Slices of an array: what they give together, and what is told when they fail."""

import itertools
import random

import numpy as np
import pytest

import evenload
from evenload.errors import ConfigError, SlicesFailed, TaskError
from evenload.executor.partitioned import join


def test_slices_that_fail_are_all_told(executor):
    def fail(rows):
        raise ValueError(f"rows from {rows[0]}")

    with pytest.raises(SlicesFailed, match="2 slices failed") as caught:
        evenload.run_partitioned(fail, list(range(10)), "equal", executor=executor)
    assert [str(one.__cause__) for one in caught.value.exceptions] == ["rows from 0", "rows from 5"]
    assert [one.index for one in caught.value.exceptions] == [0, 1]
    assert isinstance(caught.value, ExceptionGroup)


def test_one_slice_that_fails_is_told_alone_with_what_it_raised(executor):
    def fail_late(rows):
        return 1 / (rows[0] - 5)

    with pytest.raises(TaskError) as caught:
        evenload.run_partitioned(fail_late, list(range(10)), "equal", executor=executor)
    assert type(caught.value) is TaskError
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def cut(whole, places):
    edges = [0, *sorted(places), len(whole)]
    return [whole[start:stop] for start, stop in itertools.pairwise(edges)]


def same(one, other):
    assert type(one) is type(other)
    if hasattr(one, "equals"):
        return one.equals(other)
    if isinstance(one, np.ma.MaskedArray):
        return np.array_equal(one.mask, other.mask) and np.array_equal(one.filled(0), other.filled(0))
    if hasattr(one, "dtype"):
        return one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
    return one == other


def wholes():
    yield from (list(range(9)), "nine chars", b"nine bytes", bytearray(b"other"))
    for dtype in ("f4", "i1", "c16", "?", "M8[s]", "U3"):
        yield np.arange(12).astype("i8").astype(dtype).reshape(6, 2)
    yield np.ma.masked_array(np.arange(6), mask=[0, 1, 0, 0, 1, 1])
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.complex64, torch.bool):
        yield torch.arange(10).to(dtype).reshape(5, 2)
    pandas = pytest.importorskip("pandas")
    yield pandas.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None]})
    yield pandas.Series([1.5, 2.5, 3.5], name="s")
    yield pandas.Index([3, 1, 2])


def test_slices_joined_are_the_whole_again_whatever_its_kind():
    dice = random.Random(5)
    for whole in wholes():
        for _ in range(10):
            places = [dice.randint(0, len(whole)) for _ in range(dice.randint(0, 3))]
            assert same(join(cut(whole, places)), whole), type(whole)


@pytest.mark.parametrize("results", [[], [1, 2], [np.ones((2, 2)), np.ones((2, 3))], [{}, {}], [[1], 2]])
def test_what_cannot_be_joined_is_said(results):
    with pytest.raises(ConfigError, match=r"\.results"):
        join(results)
