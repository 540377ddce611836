"""Machines that join a Ray cluster and are killed while an executor works: real nodes on this machine."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from evenload.errors import ConfigError, NoUsableDevice, UnknownName
from evenload.events import EventLog, Note
from evenload.executor import Executor, Ray


def where(x: int) -> str:
    from evenload.devices import current

    return current().id


def work_until_all_have(executor: Executor, ids: set[str]) -> None:
    """Map until each of these has made a result."""
    results = executor.map(where, itertools.count(), policy="pull", look_ahead=20)
    seen: set[str] = set()
    while not ids <= seen:
        seen.add(next(results))
    results.close()


@pytest.mark.slow
def test_machines_come_and_go(ray_cluster: str, machines: Any, until: Callable[..., None]) -> None:
    """One joins and is followed, is killed in the middle of a run, and another of its name joins."""
    events: list[Any] = []
    log = EventLog(events.append)
    with Executor("cpu*1", backend=Ray(reserve=False), follow=True, events=log, echo=False) as executor:
        machines.join("west")
        until(lambda: executor.devices.ids == ("cpu:0", "west/cpu:0"), "it is followed")
        with pytest.raises(ConfigError, match="west/cpu:0 takes part already"):
            executor.add("west/cpu:0")
        with pytest.raises(UnknownName, match="machine 'wset'"):
            executor.add("wset/cpu*1")
        assert executor.add("west/cpu*1") == ("west/cpu:1",)
        work_until_all_have(executor, {"cpu:0", "west/cpu:0", "west/cpu:1"})
        results = executor.map(abs, range(-2000, 0), policy="pull:5", look_ahead=50)
        first = [next(results) for _ in range(100)]
        machines.kill("west")
        assert first + list(results) == list(range(2000, 0, -1)), "no item is lost with it"
        until(lambda: executor.devices.ids == ("cpu:0",), "devices of a dead machine are not listed")
        with pytest.raises(UnknownName, match="machine 'west'"):
            executor.add("west/cpu*1")
        assert list(executor.map(where, range(5))) == ["cpu:0"] * 5
        machines.join("west")
        until(lambda: "west/cpu:0" in executor.devices, "another of that name is followed")
        work_until_all_have(executor, {"cpu:0", "west/cpu:0"})
    told = [event.text for event in events if isinstance(event, Note)]
    assert any("west/cpu:0" in text and "has left the cluster" in text for text in told)


@pytest.mark.slow
def test_an_executor_whose_machines_are_all_lost_lives(
    ray_cluster: str, machines: Any, until: Callable[..., None]
) -> None:
    machines.join("west")
    with Executor("west/cpu*1", backend=Ray(reserve=False), echo=False) as executor:
        results = executor.map(where, itertools.count(), policy="pull", look_ahead=20)
        assert next(results) == "west/cpu:0"
        machines.kill("west")
        with pytest.raises(NoUsableDevice, match=re.escape("west/cpu:0")):
            for _ in results:
                pass
        until(lambda: not len(executor.devices), "its device is not listed")
        with pytest.raises(NoUsableDevice, match="lost with its machine"):
            executor.map(where, range(3))
        with pytest.raises(NoUsableDevice, match="lost with its machine"):
            executor.submit(where, 3)
        machines.join("west")
        until(lambda: _added(executor, "west/cpu*1"), "Ray lists the machine")
        assert list(executor.map(where, range(3))) == ["west/cpu:0"] * 3
        assert executor.submit(where, 3).result(100) == "west/cpu:0"


def _added(executor: Executor, spec: str) -> bool:
    try:
        return executor.add(spec) == ("west/cpu:0",)
    except UnknownName:
        return False


@pytest.mark.parametrize("spec", [2, "2"])
def test_what_cannot_be_followed_is_refused(ray_cluster: str, spec: Any) -> None:
    with pytest.raises(ConfigError, match="is complete"):
        Executor(spec, backend="ray", follow=True)
    with pytest.raises(ConfigError, match="no machine ever joins"):
        Executor("all", backend="process", follow=True)


def test_names_that_are_none_leave_a_working_executor_alone(ray_cluster: str) -> None:
    """Once they ended the backend with all its workers."""
    with Executor("cpu*1", backend=Ray(reserve=False), echo=False) as executor:
        results = executor.map(where, itertools.count(), policy="pull", look_ahead=20)
        next(results)
        for spec in ("gpux", "west/cpu*1", "cpu*0.5", None, "cpu:0"):
            with pytest.raises(ConfigError):
                executor.add(spec)  # type: ignore[arg-type]
        assert [next(results) for _ in range(200)] == ["cpu:0"] * 200
        results.close()
