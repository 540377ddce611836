"""Kernels written in Python: what they take, refuse and return, with and without what is shipped."""

from typing import NamedTuple

import numpy as np
import pytest

from evenload.native import kernel, objects
from evenload.native.code_hash import hash_of_files, hash_of_function
from evenload.native.kernel import compiled, inlined

pytest.importorskip("numba", reason="the extra kernels is not installed")
STEP = 3


class Pair(NamedTuple):
    first: np.ndarray
    scale: float


class Riap(NamedTuple):
    first: np.ndarray
    scale: float


@inlined
def step(x):
    """A piece."""
    return x + STEP


@compiled
def total(numbers, is_stepped, limit):
    room = np.zeros(len(numbers) + 1, np.int64)
    for i in range(len(numbers)):
        room[i + 1] = room[i] + (step(numbers[i]) if is_stepped else numbers[i])
    if limit is not None and room[len(numbers)] > limit[0]:
        return limit[0]
    return room[len(numbers)]


@compiled
def scaled(pair, by):
    return pair.first.sum() * pair.scale * by


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))


def test_each_set_of_types_gives_what_python_gives():
    numbers = np.arange(5)
    assert total(numbers, False, None) == 10
    assert total(numbers, True, None) == 25
    assert total(numbers, np.bool_(True), None) == 25
    assert total(numbers.astype(np.int32), False, None) == 10
    assert total(numbers, True, np.array([7])) == 7
    assert total(numbers[:0], True, None) == 0


def test_arrays_with_gaps_or_of_other_kinds_are_taken_too():
    numbers = np.arange(10)
    assert total(numbers[::2], False, None) == 20
    assert total(numbers.view(np.memmap), False, None) == 45
    big_endian = np.arange(4).astype(">i8")
    with pytest.raises(Exception, match="dtype: >i8"):
        total(big_endian, False, None)


def test_named_tuples_are_opened_and_told_apart():
    ones = np.ones((2, 3))
    assert scaled(Pair(ones, 0.5), 2.0) == 6.0
    assert scaled(Pair(ones, np.float64(0.5)), np.float64(2.0)) == 6.0
    assert scaled(Riap(ones, 0.5), 4.0) == 12.0


def test_an_entry_refuses_what_it_was_not_made_for():
    numbers = np.arange(5)
    total(numbers, False, None)
    (entry, *_), want = total._calls, kernel.REFUSED
    entry = next(call for call in total._calls if call(numbers, False, None) == 10)
    for other in (
        numbers.astype(float),
        numbers[::2],
        numbers[None],
        np.arange(5, dtype=np.uint64),
        "text",
        None,
    ):
        assert entry(other, False, None) == want
    assert entry(numbers, False, numbers) == want


def test_without_the_known_layout_of_arrays_numba_is_called(monkeypatch):
    monkeypatch.setattr(kernel, "_has_known_layout", lambda: False)
    fresh = compiled(total.py_func)
    assert fresh(np.arange(5), True, None) == 25
    assert not fresh._calls


@pytest.mark.parametrize(("name", "other"), [("step", inlined(lambda x: x + 4)), ("STEP", 4)])
def test_another_piece_or_constant_is_another_hash(name, other, monkeypatch):
    base = hash_of_function(total.py_func)
    monkeypatch.setitem(total.py_func.__globals__, name, other)
    assert hash_of_function(total.py_func) != base
    monkeypatch.undo()
    assert hash_of_function(total.py_func) == base


def test_comments_docstrings_and_layout_do_not_change_the_hash_of_a_file(tmp_path):
    texts = [
        'def f(a: int) -> int:\n    """Say."""\n    return a + 1\n',
        "# a word\ndef f(a):\n    return (\n        a + 1  # more\n    )\n",
        "def f(a):\n    return a + 2\n",
    ]
    hashes = []
    for i, text in enumerate(texts):
        path = tmp_path / f"{i}.py"
        path.write_text(text)
        hashes.append(hash_of_files((str(path),)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_was_loaded_is_told():
    compiled(total.py_func)(np.arange(3), False, None)
    last = objects.origins[-1]
    assert last.name.startswith("total-")
    assert last.how in ("cached", "compiled")
