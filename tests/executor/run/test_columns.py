"""Several iterables: ``map(fn, a, b)`` gives what the built-in ``map`` gives."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenload
from evenload.errors import ConfigError
from evenload.executor import Executor

KINDS = (list, tuple, lambda values: range(len(values)), iter, set, lambda values: (v for v in values))


def told(*arguments):
    return arguments


def in_lists(*columns):
    return list(zip(*columns, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(KINDS)), min_size=2, max_size=4),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_it_gives_what_the_builtin_map_gives(columns, batch, is_strict):
    def made():
        return [kind(list(range(n))) for n, kind in columns]

    sizes = {n for n, _ in columns}
    run = partial(evenload.map, in_lists if batch else told, devices="cpu", backend="inline")
    if is_strict and len(sizes) > 1:
        with pytest.raises(ValueError, match=r"iterables have|shorter|longer"):
            list(run(*made(), batch=batch, strict=True))
        return
    assert list(run(*made(), batch=batch, strict=is_strict)) == list(map(told, *made()))


def test_a_class_is_called_with_the_arguments_and_hints_are_made_from_them(executor):
    class Adder:
        def __call__(self, one, other, bias):
            return one + other + bias

        def close(self):
            pass

    class Held:
        def __init__(self, bias):
            self.bias = bias

        def __call__(self, one, other):
            return one + other + self.bias

    assert list(executor.map(Adder, [1, 2], [3, 4], [10, 20])) == [14, 26]
    assert list(executor.map(partial(Held, 5), [1, 2], [3, 4], cost=lambda one, other: one * other)) == [
        9,
        11,
    ]
    assert list(executor.map(evenload.Task(cpu=pow), [2, 3], [2, 2])) == [4, 9]
    assert list(executor.map(told, [1], [2], shared={})) == [(1, 2)]


def test_a_journal_tells_one_argument_from_two(tmp_path):
    def count(*arguments):
        return len(arguments)

    with Executor("cpu", backend="inline") as executor:
        assert list(executor.map(count, [1, 2], [3, 4], journal=tmp_path)) == [2, 2]
        assert list(executor.map(count, [1, 2], [3, 4], journal=tmp_path)) == [2, 2]
        with pytest.raises(ConfigError):
            list(executor.map(count, [(1, 3), (2, 4)], journal=tmp_path))


@pytest.mark.parametrize("more", [(3,), ([1], None), (object(),)])
def test_what_cannot_be_iterated_is_refused_by_its_place(more):
    with pytest.raises(ConfigError, match=r"iterable [23] of"):
        evenload.map(told, [1], *more, devices="cpu", backend="inline")
