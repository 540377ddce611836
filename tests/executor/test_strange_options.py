"""Options, items and functions of any type at every entry point: a right answer or an error that says why."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from strange_values import STRANGE, Loud, check

import evenload
from evenload.executor import Executor


def same(x: Any) -> Any:
    return x


COSTS: tuple[Any, ...] = (None, "x", math.nan, -1, 10**400, Loud(), [])

MAP_OPTIONS = (
    "ordered", "batch", "cost", "on_error", "policy", "balancer", "repeatable", "timeout_s", "retries",
    "look_ahead", "look_ahead_bytes", "total", "stage", "shared", "journal", "on_change", "fresh", "work",
    "seed",
)  # fmt: skip
EXECUTOR_OPTIONS = (
    "devices", "policy", "backend", "events", "echo", "max_worker_deaths", "shared_memory_limit", "start",
    "memory_limit",
    "follow",
)  # fmt: skip
GANG_OPTIONS = ("args", "devices", "each", "timeout_s")

Case = tuple[str, Callable[[], Any], Callable[[Any], bool]]


def map_case(executor: Executor, rng: random.Random) -> Case:
    option, value = rng.choice(MAP_OPTIONS), rng.choice(STRANGE)
    if option == "cost" and callable(value):  # what it raises is the caller's own
        hint = rng.choice(COSTS)
        options: Any = {option: lambda x: hint}
    else:
        options = {option: value}
    fn = (lambda x, a: x) if option == "shared" and type(value) is dict and "a" in value else same
    name = f"map({option}=a {type(value).__name__})"
    return name, lambda: list(executor.map(fn, range(3), **options)), lambda r: sorted(r) == [0, 1, 2]


def items_case(executor: Executor, rng: random.Random) -> Case:
    value = rng.choice(STRANGE)
    kind = type(value).__name__
    cases: tuple[Case, ...] = (
        (f"items {kind}", lambda: list(executor.map(same, value)), lambda r: True),
        (f"fn {kind}", lambda: list(executor.map(value, [1, 2], on_error="return")), lambda r: len(r) == 2),
        (f"more {kind}", lambda: list(executor.map(divmod, [1, 2], value)), lambda r: len(r) <= 2),
        (f"strict {kind}", lambda: list(executor.map(pow, [1], [2], strict=value)), lambda r: r == [1]),
        (f"costs {kind}", lambda: list(executor.map(same, [1], cost=[value])), lambda r: r == [1]),
        (f"submit {kind}", lambda: executor.submit(value, 1).exception(), lambda r: True),
    )
    return rng.choice(cases)


def executor_case(_: Executor, rng: random.Random) -> Case:
    option, value = rng.choice(EXECUTOR_OPTIONS), rng.choice(STRANGE)
    options: Any = {"backend": "inline", "echo": False, "devices": "cpu*2"} | {option: value}

    def call() -> Any:
        with Executor(**options) as executor:
            return list(executor.map(same, [1, 2]))

    return f"Executor({option}=a {type(value).__name__})", call, lambda r: r == [1, 2]


def split(array: Any, strategy: Any, executor: Executor) -> Any:
    return evenload.run_partitioned(same, array, strategy, executor=executor)


def other_case(_: Executor, rng: random.Random) -> Case:
    value = rng.choice(STRANGE)
    kind = type(value).__name__
    own = Executor("cpu*2", backend="inline", echo=False)
    option = rng.choice(GANG_OPTIONS)
    gang: Any = {"backend": "inline", "echo": False, "devices": "cpu*2"} | {option: value}
    cases: tuple[Case, ...] = (
        (f"array {kind}", lambda: split(value, "equal", own), lambda r: True),
        (f"strategy {kind}", lambda: evenload.run_partitioned(same, [1], value), lambda r: True),
        (f"drain {kind}", lambda: own.drain(value), lambda r: True),
        (f"add {kind}", lambda: own.add(value), lambda r: True),
        (f"policy {kind}", lambda: own.set_policy(value), lambda r: True),
        (f"balancing {kind}", lambda: own.set_balancing(value), lambda r: True),
        (f"gang({option}=a {kind})", lambda: evenload.gang(same, **gang), lambda r: True),
        (f"device {kind}", lambda: own.devices.device(value), lambda r: True),
    )
    return rng.choice(cases)


pytestmark = pytest.mark.filterwarnings("ignore:.*masked element")
KINDS = (map_case, items_case, executor_case, other_case)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor("cpu*2", backend="inline", echo=False) as executor:
        yield executor


@pytest.fixture(autouse=True)
def here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are made where a text names a folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", KINDS)
def test_whatever_is_given_there_is_an_answer_or_a_reason(executor: Executor, make: Any) -> None:
    for seed in range(100):
        check(*make(executor, random.Random(seed)))
