"""Tests what an executor refuses, the same on every backend."""

from typing import Any

import pytest

from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Pull
from evenload.errors import (
    ConfigError,
    ResultNotSendable,
    UnknownName,
)
from evenload.executor import Executor

# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"policy": "mesured"}, UnknownName, "measured"),
        ({"on_error": "ignore"}, ConfigError, "on_error"),
        ({"timeout_s": 0}, ConfigError, "timeout_s"),
        ({"look_ahead": 0}, ConfigError, "look_ahead"),
        ({"batch": 0}, ConfigError, "batch"),
        ({"balancer": LoadBalancer()}, ConfigError, "static"),
        ({"cost": [1.0]}, ConfigError, "size hints"),
    ],
)
def test_nonsense_is_refused_at_once(
    executor: Executor, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        executor.map(abs, [1, 2], **options)


def test_unknown_devices_and_backends_are_refused(backend: str) -> None:
    with pytest.raises(UnknownName, match="proces"):
        Executor("cpu", backend="proces")
    with pytest.raises(UnknownName):
        Executor("cpux", backend=backend)
    with pytest.raises(ConfigError):
        Executor([], backend=backend)
    with pytest.raises(ConfigError, match="max_worker_deaths"):
        Executor("cpu", backend=backend, max_worker_deaths=0)


def test_a_result_that_cannot_be_sent_is_its_items_failure(executor: Executor) -> None:
    got = list(
        executor.map(
            lambda x: (i for i in "ab") if x == 1 else x, range(3), on_error="return", policy="pull:3"
        )
    )
    assert (got[0], got[2]) == (0, 2)
    assert executor._is_threaded == isinstance(got[1], ResultNotSendable)


@pytest.mark.parametrize("options", [{"total": "2"}, {"total": -1}, {"look_ahead": 2.5}, {"look_ahead": 0}])
def test_counts_that_are_none_are_refused_at_once(executor: Executor, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give a whole number of at least"):
        executor.map(abs, iter([1]), **options)


def test_a_bad_size_hint_ends_its_run_after_what_came_before_it(executor: Executor) -> None:
    other = executor.map(abs, range(20))
    assert next(other) == 0
    with pytest.raises(ConfigError, match="size hint of item 1"):
        executor.map(abs, [1, 2], cost=[1, -2])
    results = executor.map(abs, iter(range(3)), cost=lambda x: float("nan") if x == 2 else 1.0)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ConfigError, match="size hint of item 2"):
        next(results)
    assert list(other) == list(range(1, 20))


@pytest.mark.parametrize("policy", [5, None, Pull, ["pull"], object()])
def test_what_is_no_policy_is_refused_by_name(executor: Executor, policy: Any) -> None:
    if policy is not None:  # as an argument of map that is the executor's own
        with pytest.raises(ConfigError, match="neither a name nor a policy") as caught:
            executor.map(abs, [1], policy=policy)
        assert repr(policy) in str(caught.value)
    with pytest.raises(ConfigError, match="neither a name nor a policy"):
        Executor("cpu*1", policy=policy)
    with pytest.raises(ConfigError, match="neither a name nor a policy"):
        executor.set_policy(policy)
    assert list(executor.map(abs, [-1])) == [1]
