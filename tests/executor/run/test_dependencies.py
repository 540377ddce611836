"""Calls with futures of earlier calls as arguments, against a plain evaluation one by one."""

import concurrent.futures
import random
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ArgumentFailed, ConfigError, TaskError
from evenload.executor import Executor
from evenload.executor.run.dependencies import futures_in, with_results


def total(number: int, fails: bool, *arguments: Any, **named: Any) -> int:
    """Of all numbers in the arguments, however deep."""
    if fails:
        raise ValueError(f"call {number}")
    return number + sum(map(leaves, (arguments, named)))


def leaves(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(leaves, value)) if isinstance(value, list | tuple) else value


def wrapped(dice: random.Random, value: Any, depth: int = 0) -> Any:
    """``value`` inside of some containers."""
    kind = dice.choice(["plain", "list", "tuple", "dict"]) if depth < 3 else "plain"
    if kind == "plain":
        return value
    inner = wrapped(dice, value, depth + 1)
    return {"list": [1, inner], "tuple": (inner, 2), "dict": {"a": 3, "b": inner}}[kind]


# Futures are waited for by the engine, whatever is behind it: of Ray, one graph of calls is enough.
here = pytest.mark.parametrize("backend", ["inline", "process"], indirect=True)
processes = pytest.mark.parametrize("threaded", ["process"], indirect=True)


class Graph:
    """A random graph of calls: each call's earlier calls, where they stand, and whether it fails."""

    def __init__(self, seed: int, n: int):
        dice = random.Random(seed)
        self.needs = [
            sorted(dice.sample(range(at), min(at, dice.choice([0, 1, 1, 2, 3])))) for at in range(n)
        ]
        self.fails = [dice.random() < 0.1 for _ in range(n)]
        self.shapes = [[(dice.random(), dice.random() < 0.3) for _ in needs] for needs in self.needs]

    def arguments(self, at: int, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        plain, named = [], {}
        for need, (seed, is_named) in zip(self.needs[at], self.shapes[at], strict=True):
            value = wrapped(random.Random(seed), values[need])
            if is_named:
                named[f"n{need}"] = value
            else:
                plain.append(value)
        return plain, named

    def one_by_one(self) -> list[Any]:
        """The outcome of each call: a number, or the text of the errors that it may tell of."""
        outcomes: list[Any] = []
        for at in range(len(self.needs)):
            broken = set().union(
                *(outcomes[need] for need in self.needs[at] if isinstance(outcomes[need], set))
            )
            if broken:
                outcomes.append(broken)
            elif self.fails[at]:
                outcomes.append({f"call {at}"})
            else:
                plain, named = self.arguments(at, outcomes)
                outcomes.append(total(at, False, *plain, **named))
        return outcomes


def submitted(executor: Executor, graph: Graph) -> list[Future]:
    futures: list[Any] = []
    for at, fails in enumerate(graph.fails):
        plain, named = graph.arguments(at, futures)
        futures.append(executor.submit(total, at, fails, *plain, **named))
    return futures


def test_random_graphs_give_what_they_give_one_by_one(executor: Executor) -> None:
    for seed in range(6):
        graph = Graph(seed, 25)
        outcomes, futures = graph.one_by_one(), submitted(executor, graph)
        for at, (future, outcome) in enumerate(zip(futures, outcomes, strict=True)):
            if not isinstance(outcome, set):
                assert future.result(100) == outcome
                continue
            error = future.exception(100)
            assert type(error) is (
                TaskError if graph.fails[at] and outcome == {f"call {at}"} else ArgumentFailed
            )
            first = error.__cause__ if isinstance(error, ArgumentFailed) else error
            assert type(first) is TaskError
            assert str(first.__cause__) in outcome


@processes
def test_calls_that_are_cancelled_take_those_with_them_that_need_them(
    threaded: str, two_workers: Any
) -> None:
    with two_workers(threaded) as executor:
        for seed in range(6):
            graph, dice = Graph(seed, 30), random.Random(seed)
            futures = submitted(executor, graph)
            cancelled = {at for at in dice.sample(range(30), 5) if futures[at].cancel()}
            _, waiting = concurrent.futures.wait(futures, 100)
            assert not waiting
            for at, future in enumerate(futures):
                ends = [futures[need] for need in graph.needs[at]]
                if future.cancelled():
                    assert at in cancelled or any(end.cancelled() for end in ends)
                elif isinstance(future.exception(0), ArgumentFailed):
                    assert any(not end.cancelled() and end.exception(0) for end in ends)
                else:
                    assert all(not end.cancelled() and end.exception(0) is None for end in ends)
                    assert (future.exception(0) is not None) == graph.fails[at]


@processes
def test_a_future_of_somebody_else_is_waited_for(threaded: str, two_workers: Any) -> None:
    with two_workers(threaded) as executor:
        other: Future = Future()
        end = executor.submit(sum, [other, 1])
        assert executor.submit(abs, -3).result(100) == 3
        assert not end.done()
        other.set_result(4)
        assert end.result(100) == 5
        late: Future = Future()
        dropped, kept = executor.submit(abs, late), executor.submit(abs, late)
        assert dropped.cancel()
        late.set_exception(OSError("no"))
        error = kept.exception(100)
        assert isinstance(error, ArgumentFailed)
        assert isinstance(error.__cause__, OSError)
        assert concurrent.futures.wait([dropped], 100).done


@given(st.integers(0, 2**32))
def test_results_take_the_places_of_futures_and_nothing_else_changes(seed: int) -> None:
    dice = random.Random(seed)
    futures = [Future() for _ in range(3)]
    for at, future in enumerate(futures):
        future.set_result(at)
    plain = [1, (2, {"x": []})]
    loop: list[Any] = [futures[0]]
    loop.append(loop)
    shared = [futures[1]]
    arguments = (plain, loop, shared, {"s": shared}, wrapped(dice, futures[2]), {futures[0]: 1})
    assert set(futures_in(arguments)) == set(futures)
    filled = with_results(arguments)
    assert filled[0] is plain
    assert filled[1][0] == 0
    assert filled[1][1] is filled[1]
    assert filled[2] == [1]
    assert filled[3]["s"] is filled[2]
    assert leaves(filled[4]) == leaves(wrapped(random.Random(seed), 2))
    assert filled[5] is arguments[5]


def test_arguments_nested_too_deep_fail_their_call_only() -> None:
    with Executor("cpu", backend="inline") as executor:
        deep: Any = executor.submit(abs, 1)
        for _ in range(100_000):
            deep = [deep]
        assert isinstance(executor.submit(len, deep).exception(100), ConfigError)
        assert executor.submit(abs, -2).result(100) == 2


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with Executor("cpu", echo=False) as workers:
        yield workers


HOOKS = ("result", "exception", "cancelled", "add_done_callback", "__hash__", "__eq__")


class OddFuture(Future):
    """A future of which one method raises."""

    broken = ""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "broken"):
            raise SystemExit(name)
        return super().__getattribute__(name)


class OddKey:
    """A key of a dict that can be hashed a few times only."""

    def __init__(self, n: int):
        self.n = n

    def __hash__(self) -> int:
        self.n -= 1
        if self.n < 0:
            raise SystemExit("no more")
        return 1


class OddError(Exception):
    @property
    def args(self) -> Any:
        raise SystemExit("no arguments")

    __str__ = __repr__ = lambda self: 1 // 0


class OddValue:
    """A value that does not tell its class."""

    @property
    def __class__(self) -> Any:
        raise SystemExit("no class")


@pytest.mark.parametrize("seed", range(10))
def test_arguments_with_code_of_their_own_fail_their_call_and_no_other(workers: Executor, seed: int) -> None:
    dice = random.Random(seed)
    odd, failing, done = OddFuture(), Future[int](), Future[int]()
    odd.broken = dice.choice(HOOKS)
    failing.set_exception(OddError())
    done.set_result(2)
    argument = [odd, failing, {OddKey(dice.randint(1, 3)): done}, OddValue(), [odd, done]][seed % 5]
    call = workers.submit(total, 0, False, argument)
    odd.set_result(2)
    assert not concurrent.futures.wait([call], 60).not_done
    assert workers.submit(total, 1, False, [done]).result(60) == 3
