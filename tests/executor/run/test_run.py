"""Tests runs through the executor as a whole, the same on every backend: items, results, events."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import evenload
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Static
from evenload.errors import ConfigError
from evenload.events import (
    EventLog,
    ItemFailed,
    Moved,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
)
from evenload.executor import Executor


def fail_on_multiples_of_three(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is a multiple of three")
    return x


# --- results and their order ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", ["measured", "pull:3", "guided", "factoring", "static", "static:proportional"]
)
def test_results_in_input_order(executor: Executor, policy: str) -> None:
    for n in (0, 1, 100):
        assert list(executor.map(lambda x: x * x, range(n), policy=policy)) == [x * x for x in range(n)]


def test_batches_are_lists_of_at_most_so_many(executor: Executor) -> None:
    for batch in (1, 3, 8, 100):
        results = list(executor.map(lambda xs: [(x, type(xs), len(xs)) for x in xs], range(20), batch=batch))
        assert [x for x, _, _ in results] == list(range(20))
        assert {kind for _, kind, _ in results} == {list}
        full, rest = divmod(20, batch)
        assert sorted(n for _, _, n in results) == sorted([batch] * (full * batch) + [rest] * rest)


# --- items ----------------------------------------------------------------------------------------


def test_items_are_read_as_they_are_needed(executor: Executor, come_to_rest: Any) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for x in itertools.count():
            read.append(x)
            yield x

    results = executor.map(abs, items(), look_ahead=50, policy="pull")
    first = list(itertools.islice(results, 10))
    assert first == list(range(10))
    assert come_to_rest(executor, lambda: len(read)) <= 10 + 50 + 2
    results.close()
    executor.submit(abs, -1).result(100)  # the engine has heard of it
    n_read = len(read)
    assert come_to_rest(executor, lambda: len(read)) <= n_read + 1


def test_items_may_wait_for_results(executor: Executor) -> None:
    if not executor._is_threaded:
        pytest.skip("inline, the caller cannot do two things at once")
    seen: list[int] = []
    has_result = threading.Semaphore(1)

    def items() -> Iterator[int]:
        for x in range(5):
            assert has_result.acquire(timeout=100)
            yield x

    for value in executor.map(abs, items()):
        seen.append(value)
        has_result.release()
    assert seen == list(range(5))


# --- runs -----------------------------------------------------------------------------------------


def test_stopping_finishes_what_runs_and_no_more(executor: Executor) -> None:
    results = executor.map(lambda x: x, itertools.count(), policy="pull")
    got = list(itertools.islice(results, 3))
    results.stop()
    got += list(results)  # it would never end
    assert got == list(range(len(got)))
    assert results.summary is not None
    assert results.summary.total == len(got)


def test_indexed_results_and_blocks_say_where_they_belong(executor: Executor) -> None:
    pairs = list(executor.map(lambda x: -x, range(20), ordered=False).indexed())
    assert sorted(pairs) == [(x, -x) for x in range(20)]
    blocks = list(executor.map(lambda x: -x, range(20)).blocks())
    assert [i for block in blocks for i in block.items] == list(range(20))
    assert {block.device for block in blocks} <= {"cpu:0", "cpu:1"}


@pytest.mark.parametrize("whose", ["executor", "map"])
def test_balancers_are_switched_off_and_on(whose: str) -> None:
    events: list[Any] = []
    uneven: dict[str, Any] = {"policy": Static((0, 40)), "balancer": LoadBalancer(interval_s=0.0)}
    with Executor("cpu*2", backend="inline", events=EventLog(events.append)) as executor:
        for is_on in (True, False, True):
            events.clear()
            if whose == "executor":
                executor.set_balancing(is_on)
            results = executor.map(abs, range(40), **uneven)
            if whose == "map":
                results.set_balancing(is_on)
            assert list(results) == list(range(40))
            assert any(isinstance(event, Moved) for event in events) == is_on
        with pytest.raises(ConfigError, match="no balancer"):
            executor.map(abs, [1]).set_balancing(False)


def test_events_tell_the_whole_run(backend: str) -> None:
    events: list[Any] = []
    log = EventLog(events.append)
    got = list(
        evenload.map(
            fail_on_multiples_of_three,
            range(1, 10),
            devices="cpu*2",
            backend=backend,
            events=log,
            on_error="return",
            stage="numbers",
            echo=False,
        )
    )
    assert len(got) == 9
    assert isinstance(events[0], RunStarted)
    assert (events[0].total, set(events[0].devices)) == (9, {"cpu:0", "cpu:1"})
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "failures"
    started = [e for e in events if isinstance(e, StageStarted)]
    finished = [e for e in events if isinstance(e, StageFinished)]
    assert [(e.stage, e.total) for e in started] == [("numbers", 9)]
    assert len(finished) == 1
    spans = [e for e in events if isinstance(e, Span) and e.status in ("ok", "failed")]
    assert sum(span.n_items for span in spans) >= 9
    for span in spans:
        assert 0 <= span.start_s <= span.stop_s <= finished[0].t + 1e-3
        assert span.dealt_s is not None
        assert span.dealt_s <= span.start_s + 1e-3
        assert 0 <= span.busy_s <= span.stop_s - span.start_s + 1e-3
    failures = [e for e in events if isinstance(e, ItemFailed)]
    assert sorted((e.index, e.error) for e in failures) == [
        (2, "ValueError"),
        (5, "ValueError"),
        (8, "ValueError"),
    ]


# --- what is refused ------------------------------------------------------------------------------
