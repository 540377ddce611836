"""Maps learn what their items cost, deal by it, say so, and tell the next program."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenload.balance.sizes.size_model import SizeModel
from evenload.errors import ConfigError
from evenload.events import EventLog, StageFinished
from evenload.executor import Executor
from evenload.executor.loop.cost_history import CostCache
from evenload.executor.task import task as task_module
from evenload.report.tally import summarise
from evenload.same_code import fingerprint_code

ITEM = "the length of the item"


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have the seconds that items are measured to take pass on a clock of their own, which this moves on."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(task_module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def spend(seconds: float) -> None:
        clock.now += seconds

    return spend


def texts(n: int) -> list[str]:
    chance = random.Random(3)
    return ["x" * int(10 ** chance.uniform(1, 3)) for _ in range(n)]


@pytest.mark.parametrize("batch", [None, 2])
def test_what_was_learned_is_said_and_orders_the_next_map(
    spend: Callable[[float], None], batch: int | None
) -> None:
    seen: list[int] = []

    def read(one: str) -> int:
        spend(len(one) / 1000)
        seen.append(len(one))
        return len(one)

    def task(given):
        return [read(one) for one in given] if batch else read(given)

    items, events = texts(80), []
    with Executor("cpu*1", backend="inline", events=EventLog(events.append)) as executor:
        results = executor.map(task, items, batch=batch)
        assert list(results) == [len(text) for text in items]
        assert results.summary.learned.startswith(f"time grows with {ITEM}")
        assert results.summary.learned in str(results.summary)
        assert [event.learned for event in events if isinstance(event, StageFinished)] == [
            results.summary.learned
        ]
        assert summarise(events).stages[0].learned == results.summary.learned
        del seen[:]
        assert list(executor.map(task, items, batch=batch)) == [len(text) for text in items]
        assert seen.index(max(seen)) < 10 < seen.index(min(seen)), "the longest first"
        del seen[:]
        off = executor.map(task, items, batch=batch, cost=False)
        assert list(off) == seen == [len(text) for text in items]
        assert off.summary.learned == ""
        with pytest.raises(ConfigError, match="cost=True"):
            executor.map(task, items, cost=True)


def length(text: str) -> int:
    return len(text)


def test_what_an_earlier_program_learned_is_used_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EVENLOAD_WARM_START", "1")
    cache = CostCache(tmp_path / "evenload" / "learned.json")
    law = SizeModel({ITEM: 1.0}, -6.0, 0.1, 60)
    cache.learn_law(fingerprint_code(length), None, law)
    cache.save()
    assert CostCache(cache.path).known_law(fingerprint_code(length), None) == law
    items = ["x" * n for n in (10, 20, 30, 400, 5000)]  # too few to doubt what is remembered
    with Executor("cpu*1") as executor:
        seen = list(executor.map(length, items, ordered=False))
        assert sorted(seen) == [10, 20, 30, 400, 5000]
        assert seen.index(5000) < seen.index(10)
        assert list(executor.map(length, items, ordered=False, cost=False)) == [10, 20, 30, 400, 5000]
    monkeypatch.setenv("EVENLOAD_LEARN_SIZES", "0")
    with Executor("cpu*1") as executor:
        assert list(executor.map(length, items, ordered=False)) == [10, 20, 30, 400, 5000]
