"""With a seed, an item's random numbers depend on the seed and its index alone.

The oracle is the user's own serial loop, which sets the generators as the docs say, by the standard library.
"""

import hashlib
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.executor import Executor
from evenload.executor.task.seeds import with_seeds
from evenload.executor.task.task import PreparedTask, Runner
from evenload.executor.transport.progress_cell import ProgressCell


def set_as_the_docs_say(seed: int, index: int) -> None:
    text = f"{seed}\0{index}\0000".encode()
    own = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    random.seed(own)
    np.random.seed(own % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(own)


def draw(item: int) -> tuple[int, float, float, int]:
    numbers = np.random.normal(size=item % 3 + 1)  # so many that what is left over differs
    return item, random.random(), float(numbers[0]), random.randrange(100)


def draw_all(items: list[int]) -> list[Any]:
    return [draw(item) for item in items]


class Drawer:
    def __init__(self) -> None:
        random.random()  # what the constructor draws is not the items'

    def __call__(self, item: int) -> Any:
        return draw(item)


def serial_loop(seed: int, n: int, batch: int = 1) -> list[Any]:
    found: list[Any] = []
    for index in range(n):
        if index % batch == 0:
            set_as_the_docs_say(seed, index)
        found.append(draw(index))
    return found


@pytest.fixture(autouse=True)
def own_state() -> Any:
    before, of_numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(before)
    np.random.set_state(of_numpy)


@pytest.mark.parametrize("policy", ["measured", "static"])
def test_a_seeded_map_gives_what_a_serial_loop_gives(executor: Executor, policy: str) -> None:
    expected = serial_loop(5, 20)
    assert list(executor.map(draw, range(20), seed=5, policy=policy)) == expected
    assert list(executor.map(Drawer, range(20), seed=5, policy=policy)) == expected
    assert list(executor.map(draw, range(20), seed=6, policy=policy)) == serial_loop(6, 20)
    assert sorted(executor.map(draw, range(20), seed=5, ordered=False)) == expected
    assert list(executor.map(draw_all, range(20), seed=5, batch=4)) == serial_loop(5, 20, batch=4)


def test_a_retry_and_a_new_worker_draw_the_same_numbers(threaded: str, tmp_path: Any) -> None:
    marks = [str(tmp_path / str(index)) for index in range(6)]

    def once_unlucky(item: tuple[int, str]) -> float:
        index, mark = item
        first = random.random()
        if index % 2 and not __import__("os").path.exists(mark):
            open(mark, "w").close()
            if index == 3:
                __import__("os")._exit(3)
            raise OSError("once")
        return first

    with Executor("cpu*2", backend=threaded, echo=False) as executor:
        got = list(executor.map(once_unlucky, list(enumerate(marks)), seed=9, retries=1))
    expected = []
    for index in range(6):
        set_as_the_docs_say(9, index)
        expected.append(random.random())
    assert got == expected


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 30), min_size=1, max_size=8), st.booleans())
def test_chunks_in_any_order_give_the_same_and_leave_the_state_alone(
    seed: int, order: list[int], is_single: bool
) -> None:
    runner = Runner(PreparedTask(1, "draw", draw, is_seeded=True), lambda: None)
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for index in order:
        cell = ProgressCell()
        cell.begin(1)
        (got,) = runner.run(with_seeds(seed, [index], [index]), cell, singly=is_single).values
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        kept = random.getstate(), np.random.get_state()
        set_as_the_docs_say(seed, index)
        assert got == draw(index)
        random.setstate(kept[0])
        np.random.set_state(kept[1])


LATE = """
import hashlib, sys
import evenload

def late(item):
    sys.meta_path.insert(0, type("Old", (), {"find_module": lambda *_: None})())  # Python passes over it
    import numpy, random
    return float(numpy.random.rand()), random.random()

got = [
    list(evenload.map(late, range(3), devices="cpu*1", seed=4, fresh=True, start=start))
    for start in ("auto", "spawn")
]
import numpy, random
for index in range(3):
    own = int.from_bytes(hashlib.blake2b(f"4\\0{index}\\x000".encode(), digest_size=8).digest(), "big") >> 1
    random.seed(own)
    numpy.random.seed(own % 2**32)
    expected = (float(numpy.random.rand()), random.random())
    assert [one[index] for one in got] == [expected] * 2, index
"""


def test_a_package_that_the_item_imports_is_seeded_too() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True, 2**63])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with Executor("cpu*1", backend="inline") as executor, pytest.raises(ConfigError, match="seed"):
        executor.map(draw, range(2), seed=seed)


def test_another_seed_is_another_journal(tmp_path: Any) -> None:
    with Executor("cpu*1", backend="inline") as executor:
        first = list(executor.map(draw, range(4), seed=1, journal=tmp_path / "kept"))
        assert list(executor.map(draw, range(4), seed=1, journal=tmp_path / "kept")) == first
        with pytest.raises(ConfigError):
            list(executor.map(draw, range(4), seed=2, journal=tmp_path / "kept"))
