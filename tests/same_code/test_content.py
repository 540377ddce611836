"""Fingerprints: the same in every process for the same thing, and another for another."""

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.same_code import ItemFingerprints, fingerprint_code

fingerprint = ItemFingerprints()
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def is_same(a: Any, b: Any) -> bool:
    """Equal, of the same types all through, and dicts in the same order."""
    return repr(a) == repr(b)


class Words(set):
    """A set of a class of its own, whose order is no matter either."""


@given(VALUES, VALUES)
def test_same_values_and_no_others_have_the_same(a: Any, b: Any) -> None:
    assert (fingerprint(a) == fingerprint(b)) == is_same(a, b)


@dataclasses.dataclass
class Point:
    x: Any
    y: int = 0


ALIKE = [
    (Words("abc"), Words("cba")),
    ({"x" * n for n in range(9)}, {"x" * n for n in reversed(range(9))}),
    ([shared := [1, 2], shared], [[1, 2], [1, 2]]),
    (np.arange(6).reshape(2, 3)[:, ::2], np.array([[0, 2], [3, 5]])),
    (Point({1, 2}), Point({2, 1})),
    (bytearray(b"xy"), bytearray(b"xy")),
]
UNLIKE = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Words("ab"), set("ab")),
    (1, 1.0),
    (True, 1),
    ("1", 1),
    ("a", b"a"),
    ([1], (1,)),
    ([1, 2], [2, 1]),
    (["ab", "c"], ["a", "bc"]),
    ([[1], 2], [1, [2]]),
    (0.0, -0.0),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, "f4"), np.zeros(1, "f8")),
    (Point(1), Point(2)),
    ("x" * 100, "x" * 101),
    (Point, dataclasses.dataclass),
]


@pytest.mark.parametrize(("a", "b"), ALIKE)
def test_equal_content(a: Any, b: Any) -> None:
    assert fingerprint(a) == fingerprint(b)


NAMES = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=6)


@given(st.sampled_from([PurePosixPath, PureWindowsPath, Path]), st.booleans(), NAMES, st.data())
def test_a_path_is_the_same_however_it_was_made(
    kind: type[PurePath], is_absolute: bool, names: list[str], data: st.DataObject
) -> None:
    whole = kind("/" * is_absolute + "/".join(names))
    at = data.draw(st.integers(0, len(whole.parts)))
    made = [
        kind(*whole.parts),
        kind(*whole.parts[:at]).joinpath(*whole.parts[at:]),
        (whole / "more").parent,
        pickle.loads(pickle.dumps(whole)),
        copy.deepcopy(whole),
    ]
    hash(made[0]), str(made[1]), made[2].name, sorted(made)  # it may keep what it was asked for
    assert [fingerprint(one) == fingerprint(whole) for one in made] == [one == whole for one in made]
    assert fingerprint(whole) != fingerprint(whole / "more")


@pytest.mark.parametrize(("a", "b"), UNLIKE)
def test_other_content(a: Any, b: Any) -> None:
    assert fingerprint(a) != fingerprint(b)


def test_tensors_count_by_content() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        one, two = torch.ones(3, 2).to(dtype), torch.ones(2, 3).t().to(dtype)
        assert fingerprint([one]) == fingerprint([two]) != fingerprint([torch.zeros(3, 2).to(dtype)])
        assert fingerprint(one) != fingerprint(one.reshape(2, 3))
    assert len(fingerprint(torch.tensor(1.0))) == 16


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_what_was_written_to_a_memory_map_counts(tmp_path: Path, mode: Any) -> None:
    """At once, though the file's time tells it later, or never. One that was cut short is not read."""
    path = tmp_path / "numbers.bin"
    np.arange(100_000, dtype="i8").tofile(path)
    one = np.memmap(path, "i8", mode)
    seen = [(fingerprint(one), fingerprint_code(lambda: one))]
    for number in (7, 8):
        one[3] = number
        seen.append((fingerprint(one), fingerprint_code(lambda: one)))
    assert len({item for item, _ in seen}) == len({code for _, code in seen}) == 3
    quick = [fingerprint_code(lambda some=some: some, reads_maps=False) for some in (one, one, one[5:])]
    assert quick[0] == quick[1] != quick[2]
    os.truncate(path, 4096)
    assert fingerprint(one) not in [item for item, _ in seen]


def test_what_contains_itself() -> None:
    loop: list = [1]
    loop.append(loop)
    other: list = [1]
    other.append(other)
    assert fingerprint(loop) == fingerprint(other) != fingerprint([1, [1]])


def test_what_has_no_content_is_refused_as_an_item_and_forgiven_in_code() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="lock has no content to compare"):
        fingerprint([lock])
    assert len(fingerprint_code(lambda x: (lock, x))) == 32


def test_values_closed_over_count() -> None:
    def make(n: Any) -> Any:
        return lambda x: x * n

    assert fingerprint_code(make(np.ones(3))) == fingerprint_code(make(np.ones(3)))
    assert fingerprint_code(make(np.ones(3))) != fingerprint_code(make(np.zeros(3)))
    assert fingerprint_code(abs) != fingerprint_code(len)


class Pickled:
    """Pickling an instance leaves a mark in the class (``__slotnames__``)."""

    def __init__(self, x: int = 1):
        self.x = x


def test_what_was_done_with_a_class_before_is_no_part_of_its_code() -> None:
    before = fingerprint_code(Pickled)
    assert pickle.loads(pickle.dumps(Pickled())).x == 1
    copy.deepcopy(Pickled())
    isinstance(3, Pickled)
    assert fingerprint_code(Pickled) == before


IN_A_PROCESS = """
import functools, random
from evenload.same_code import ItemFingerprints, fingerprint_code

def f(x, names={"a", "b", "c"}):
    return x in names or x in {"d", "e", "f"}
class C:
    allowed = frozenset({"u", "v", "w"})
    def __call__(self, x):
        return super().__eq__(x)
print(ItemFingerprints()([{"some", "words", "here"}, 1.5]).hex(), fingerprint_code(functools.partial(f, 1)),
      fingerprint_code(C))
rng = random.Random(5)
for _ in range(60):  # functions that call each other in any way
    n, scope = rng.randrange(2, 7), {"__name__": "mine"}
    for at in range(n):
        calls = [f"f{rng.randrange(n)}(x)," for _ in range(rng.randrange(4))]
        exec(f"def f{at}(x): return [{' '.join(calls)} {at}, TABLE]", scope)
    scope["TABLE"] = {scope[f"f{at}"] for at in range(n) if rng.random() < 0.3}
    print(fingerprint_code(scope["f0"]))
"""


def test_in_another_process_with_other_hashes_all_is_the_same() -> None:
    """Names come out of sets, whose order is another in each process."""
    seen = set()
    for order in ("0", "1", "2"):
        program = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": order}, capture_output=True, check=True, timeout=250,
        )  # fmt: skip
        seen.add(program.stdout)
    assert len(seen) == 1
    assert len(set(seen.pop().split())) > 30


def test_a_library_that_another_thread_still_imports_is_passed_over(monkeypatch) -> None:
    """Found by chance: a map began while a thread was at importing numpy."""
    for name in ("numpy", "torch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert fingerprint([1, "x", (2.5, None)])
