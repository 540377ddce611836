"""Tests runs through the executor as a whole, the same on every backend: items, results, events."""

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evenload
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Pull, Static
from evenload.errors import (
    ConfigError,
    UnknownName,
)
from evenload.events import (
    EventLog,
    ItemFailed,
    Moved,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerStarted,
)
from evenload.executor import Executor
from evenload.executor.loop import watchdog


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


def test_results_as_completed_are_the_same_set(executor: Executor) -> None:
    assert sorted(executor.map(abs, range(-50, 0), ordered=False)) == list(range(1, 51))


def test_batches_are_lists_of_at_most_so_many(executor: Executor) -> None:
    for batch in (1, 3, 8, 100):
        results = list(executor.map(lambda xs: [(x, type(xs), len(xs)) for x in xs], range(20), batch=batch))
        assert [x for x, _, _ in results] == list(range(20))
        assert {kind for _, kind, _ in results} == {list}
        full, rest = divmod(20, batch)
        assert sorted(n for _, _, n in results) == sorted([batch] * (full * batch) + [rest] * rest)


def test_costs_let_the_longest_go_first(executor: Executor) -> None:
    costs = [1.0, 5.0, 2.0, 9.0]
    begun = list(executor.map(lambda x: (time.monotonic(), x), range(4), cost=costs, policy="pull"))
    assert [x for _, x in begun] == [0, 1, 2, 3]
    if not executor._is_threaded:
        assert [x for _, x in sorted(begun)] == [3, 1, 2, 0]
    assert list(executor.map(abs, [-1, -3], cost=lambda x: -x)) == [1, 3]


def test_builtin_types_are_functions(executor: Executor) -> None:
    assert list(executor.map(int, ["1", "2"])) == [1, 2]


def test_closures_partials_and_instances_work(executor: Executor) -> None:
    offset = 10
    assert list(executor.map(lambda x: x + offset, [1])) == [11]
    assert list(executor.map(functools.partial(pow, 2), [3])) == [8]
    assert list(executor.map({3: "three"}.get, [3, 4])) == ["three", None]


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


def test_look_ahead_bounds_what_is_begun(executor: Executor, tmp_path: Any, come_to_rest: Any) -> None:
    def touch(x: int, folder: str = str(tmp_path)) -> int:
        open(os.path.join(folder, str(x)), "w").close()
        return x

    results = executor.map(touch, list(range(100)), look_ahead=5, policy="pull")
    assert next(results) == 0
    # One result is with us, and up to one block more may be on its way.
    assert come_to_rest(executor, lambda: len(os.listdir(tmp_path))) <= 12
    assert list(results) == list(range(1, 100))


def test_an_iterator_that_raises_ends_the_run_after_its_results(executor: Executor) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("the disk is gone")

    results = executor.map(abs, items())
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)
    assert list(executor.map(abs, [1])) == [1]


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


def test_leaving_the_loop_ends_the_run(executor: Executor) -> None:
    for value in executor.map(abs, itertools.count()):
        if value == 3:
            break
    assert list(executor.map(abs, [-1])) == [1]


def test_two_runs_at_once_do_not_mix(executor: Executor) -> None:
    both = zip(executor.map(abs, range(50)), executor.map(lambda x: -x, range(50)), strict=True)
    assert list(both) == [(x, -x) for x in range(50)]


def test_the_policy_can_change_while_it_runs(executor: Executor) -> None:
    results = executor.map(abs, range(200), policy="pull")
    assert next(results) == 0
    results.set_policy("pull:50")
    assert list(results) == list(range(1, 200))
    with pytest.raises(UnknownName):
        results.set_policy("pul")
    executor.set_policy(Pull(2))
    assert list(executor.map(abs, range(5))) == list(range(5))
    executor.set_policy("measured")


def test_a_summary_says_how_it_went(executor: Executor) -> None:
    results = executor.map(lambda x: time.sleep(0.002), range(40))
    assert results.summary is None
    list(results)
    summary = results.summary
    assert summary is not None
    assert (summary.total, summary.failed) == (40, 0)
    assert 0 <= summary.startup_s <= summary.wall_s
    assert 0 < summary.bound_s <= summary.wall_s - summary.startup_s + 1e-6
    assert summary.ratio_to_bound is not None
    assert summary.ratio_to_bound >= 1.0 - 1e-6
    assert sum(share.items for share in summary.devices.values()) == 40


def test_a_summary_counts_items_once_that_two_devices_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item takes long: another device does those beside it, whose results are not back yet."""
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    monkeypatch.setattr(watchdog, "STUCK_S", 0.02)

    def held_up(x: int, folder: Path = tmp_path) -> int:
        if x == 3 and not (folder / "third").exists():
            (folder / "third").write_text(str(os.getpid()))
            while not (folder / "go").exists():
                time.sleep(0.01)
        if x == 15 and (folder / "third").read_text() != str(os.getpid()):
            (folder / "go").touch()
        return x

    with Executor("cpu*2", policy="pull:16", echo=False) as executor:
        results = executor.map(held_up, range(32))
        assert list(results) == list(range(32))
    summary = results.summary
    assert summary is not None
    assert sum(share.items for share in summary.devices.values()) == 32


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


def held_back(folder: Path, n_ahead: int, rest_s: float = 0.0) -> Callable[[int], int]:
    """A task for two devices: nothing ends on cpu:0 before cpu:1 has begun ``n_ahead`` items."""

    def fn(x: int) -> int:
        if evenload.devices.current().id == "cpu:1":
            (folder / str(x)).touch()
            return x
        while len(os.listdir(folder)) < n_ahead:
            time.sleep(0.005)
        time.sleep(rest_s)
        return x

    return fn


@pytest.mark.parametrize("backend", ["inline", "process"], indirect=True)
def test_static_queues_are_rebalanced_between_devices(backend: str, tmp_path: Path) -> None:
    events: list[Any] = []
    fn = held_back(tmp_path, 0 if backend == "inline" else 21)  # its own half, and one of the other
    with Executor("cpu*2", backend=backend, events=EventLog(events.append)) as executor:
        balancer = LoadBalancer(threshold=0.2, interval_s=0.05)
        results = executor.map(fn, range(40), policy=Static("equal"), balancer=balancer)
        assert list(results) == list(range(40))
        summary = results.summary
    if backend != "inline":
        assert any(isinstance(event, Moved) for event in events)
        assert summary is not None
        assert summary.devices["cpu:1"].items > 20


def test_balancers_are_switched_off_and_on_while_maps_run(tmp_path: Path) -> None:
    events: list[Any] = []
    balancer = LoadBalancer(threshold=0.2, interval_s=0.02)

    def n_moved() -> int:
        return sum(isinstance(event, Moved) for event in events)

    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    with Executor("cpu*2", events=EventLog(events.append)) as executor:
        executor.set_balancing(False)
        fn = held_back(folder("off"), 20, rest_s=0.1)  # time for many moves, had it been on
        results = executor.map(fn, range(40), policy="static", balancer=balancer)
        assert list(results) == list(range(40))
        assert results.summary is not None
        assert results.summary.devices["cpu:1"].items == 20
        assert n_moved() == 0

        results = executor.map(held_back(folder("on"), 21), range(40), policy="static", balancer=balancer)
        results.set_balancing(True)
        assert list(results) == list(range(40))
        assert n_moved() > 0

        executor.set_balancing(True)
        fn = held_back(folder("off again"), 21, rest_s=0.01)
        results = executor.map(fn, range(40), policy="static", balancer=balancer)
        next(results)
        executor.set_balancing(False)
        executor.submit(abs, -1).result(100)  # the engine has heard of it
        before = n_moved()
        list(results)
        assert n_moved() == before
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


def test_there_are_never_more_workers_than_items() -> None:
    def started(n: int, **options: Any) -> int:
        events: list[Any] = []
        task = (lambda xs: xs) if "batch" in options else abs
        got = evenload.map(task, range(n), devices="cpu*6", events=EventLog(events.append), **options)
        assert list(got) == list(range(n))
        return sum(isinstance(e, WorkerStarted) for e in events)

    assert started(1) == 1
    assert started(2, policy="pull") <= 2
    assert started(6, batch=4) <= 2
