"""The wall time of a run is what its caller waited. The oracle is the caller's own clock, around the call.

And what becomes of tasks that still run when it ends; there the oracle is a file that the task itself writes.
"""

import os
import time
from pathlib import Path

import psutil
import pytest

import evenload
from evenload.events import EventLog, RunFinished, RunStarted
from evenload.executor.loop import engine


class SlowToCount(list):
    """A list that takes its time to say how long it is, and notes how long that took."""

    spent_s = 0.0

    def __len__(self) -> int:
        began_s = time.monotonic()
        time.sleep(0.2)
        self.spent_s += time.monotonic() - began_s
        return super().__len__()


def timed(seconds: float) -> float:
    began_s = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began_s


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_the_wall_time_is_within_the_callers_and_has_all_that_was_waited_for(backend):
    events, items = EventLog(), SlowToCount([0.1, 0.1])
    seen: list[object] = []
    events.subscribe(seen.append)
    began_s = time.monotonic()
    run = evenload.map(timed, items, devices="cpu*1", backend=backend, events=events)
    spent_s = sum(run)
    waited_s = time.monotonic() - began_s
    assert run.summary is not None
    (started,) = [one for one in seen if isinstance(one, RunStarted)]
    (finished,) = [one for one in seen if isinstance(one, RunFinished)]
    for wall_s in (run.summary.wall_s, finished.t - started.t):
        assert items.spent_s + spent_s <= wall_s <= waited_s


def once_for_ever(folder: str, number: int) -> int:
    """A task that never ends where item 3 is begun first, and does at once where it is begun again."""
    if number == 3:
        try:
            with open(Path(folder) / "first", "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return number
        time.sleep(100_000)
    return number


def test_a_copy_that_came_second_is_not_waited_for(tmp_path, monkeypatch):
    """Its worker would have all the time in the world to end; it is ended with the run's last result."""
    monkeypatch.setattr(engine, "GRACE_S", 100_000.0)
    results = list(evenload.map(once_for_ever, [str(tmp_path)] * 8, range(8), devices="cpu*2"))
    assert results == list(range(8))
    assert not psutil.pid_exists(int((tmp_path / "first").read_text()))


def ends_later(folder: str, number: int) -> int:
    """A task that says when it has begun and, some time later, that it came to its end."""
    if number:
        (Path(folder) / "begun").touch()
        time.sleep(0.3)
        (Path(folder) / "ended").touch()
    return number


def test_a_task_of_a_map_that_is_broken_off_may_come_to_its_end(tmp_path, monkeypatch, until):
    monkeypatch.setattr(engine, "GRACE_S", 100_000.0)
    results = evenload.map(ends_later, [str(tmp_path)] * 2, range(2), devices="cpu*2")
    assert next(iter(results)) == 0
    until((tmp_path / "begun").exists, "the second item has begun")
    results.close()
    assert (tmp_path / "ended").exists()
