"""The order of the tests: the same tests, the longest first for each worker of the runner."""

import itertools
import random
from pathlib import Path

import pytest
from longest_first import LINES, longest_first, needs_cluster

ROOT = Path(__file__).parents[2]


class Named:
    def __init__(self, nodeid: str, *fixturenames: str):
        self.nodeid, self.fixturenames = nodeid, fixturenames


def test_what_is_named_is_there() -> None:
    assert [
        name for name in LINES if not any((folder / name).exists() for folder in (ROOT, ROOT / "tests"))
    ] == []


@pytest.mark.parametrize("n_workers", [1, 2, 4, 7])
@pytest.mark.parametrize("n_others", [0, 3, 100, 5000])
def test_the_same_tests_and_every_workers_part_begins_with_long_ones(n_workers: int, n_others: int) -> None:
    items = [Named(f"tests/{name}::test_{n}") for name in LINES for n in range(3)]
    items += [Named(f"tests/other.py::test_{n}") for n in range(n_others)]
    random.Random(0).shuffle(items)
    ordered = longest_first(items, n_workers)
    assert sorted(map(id, ordered)) == sorted(map(id, items))
    named = [item.nodeid.partition("::")[0][6:] for item in ordered if "other.py" not in item.nodeid]
    lines = [line for line, _ in itertools.groupby(LINES[name] for name in named)]
    assert lines == list(dict.fromkeys(lines)), "the tests of a line stay together"
    if n_others == 5000:
        begins, n_left = 0, len(ordered)
        for worker in range(n_workers):  # as pytest-xdist deals them
            assert "other.py" not in ordered[begins].nodeid
            size = n_left // (n_workers - worker)
            begins, n_left = begins + size, n_left - size


def test_what_needs_a_cluster_is_first_of_all_and_in_one_workers_part() -> None:
    items = [Named(f"tests/{name}::test") for name in (*LINES, *map(str, range(400)))]
    items += [Named(f"tests/executor/test_ray.py::test_{n}", "ray_cluster", "ray_head") for n in range(9)]
    random.Random(0).shuffle(items)
    ordered = longest_first(items, 4)
    assert [needs_cluster(item) for item in ordered] == [True] * 9 + [False] * (len(items) - 9)
