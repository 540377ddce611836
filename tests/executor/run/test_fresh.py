"""Workers that are renewed: ``map(fresh=...)``."""

import os
import sys
from collections import Counter
from typing import Any

import cloudpickle
import pytest

import evenload
from evenload.errors import ConfigError

# Each of the many workers would import this module, and pytest with it, for its tasks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def note(item: Any) -> tuple[int, int, Any]:
    """The worker, how many items it has seen, and the item."""
    import builtins

    seen = vars(builtins).setdefault("seen_by_test_fresh", [])  # what nothing but a new process forgets
    seen.append(item)
    return os.getpid(), len(seen), item


def test_each_item_gets_a_worker_of_its_own(threaded: str, two_workers: Any) -> None:
    with two_workers(threaded) as executor:
        assert list(executor.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
        results = list(executor.map(note, range(5), fresh=True))
        assert [item for _, _, item in results] == list(range(5))
        assert {seen for _, seen, _ in results} == {1}
        assert len({worker for worker, _, _ in results}) == 5
        assert list(executor.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("policy", ["measured", "pull"])
def test_workers_are_renewed_after_so_many_items(policy: str) -> None:
    results = list(evenload.map(note, range(18), devices="cpu*2", fresh=4, policy=policy, echo=False))
    assert [item for _, _, item in results] == list(range(18))
    assert max(Counter(worker for worker, _, _ in results).values()) <= 4
    assert max(seen for _, seen, _ in results) <= 4


def test_items_that_fail_or_end_their_worker_cost_no_other() -> None:
    def fragile(item: int) -> tuple[int, int, int]:
        if item == 2:
            os.abort()
        if item == 4:
            raise ValueError(item)
        return note(item)

    results = list(
        evenload.map(fragile, range(6), devices="cpu*2", fresh=True, on_error="return", echo=False)
    )
    assert [type(result).__name__ for result in results if not isinstance(result, tuple)] == [
        "WorkerLost",
        "TaskError",
    ]
    assert [result[2] for result in results if isinstance(result, tuple)] == [0, 1, 3, 5]


@pytest.mark.parametrize("fresh", [0, -1, 1.5, "yes", None])
def test_numbers_that_mean_nothing_are_refused(fresh: Any) -> None:
    with pytest.raises(ConfigError, match="fresh"):
        evenload.map(abs, [1], devices="cpu", fresh=fresh)


def test_there_are_no_workers_to_renew_inline() -> None:
    with pytest.raises(ConfigError, match="inline"):
        evenload.map(abs, [1], devices="cpu", fresh=True, backend="inline")
