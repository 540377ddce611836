"""Remedies that are applied: the run is made again, with what the report of the first one said to change.

The oracle is a small run of our own on paper, below: it knows nothing of reports, and is asked twice.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import evenload
from evenload.events import (
    Event,
    EventLog,
    Idle,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerStarted,
)
from evenload.report.tally import summarise


@dataclass(frozen=True)
class Job:
    """Items that are read one by one, and devices that take the next one when they are free.

    start_s, build_s  until a process is there, and until its task is built
    read_s            for reading an item, one after the other, from the beginning on
    gap_s             after each chunk, until the device can begin another
    is_static         each device has its share from the beginning
    """

    items: tuple[float, ...]
    speeds: tuple[float, ...] = (1.0, 1.0)
    start_s: float = 0.2
    build_s: float = 0.0
    read_s: float = 0.0
    gap_s: float = 0.0
    chunk: int = 1
    is_static: bool = False
    result_bytes: int = 0
    costs: bool = True

    def run(self) -> tuple[float, list[Event]]:
        """Return the seconds that it takes, and its events."""
        names = [f"d{at}" for at in range(len(self.speeds))]
        ready_s = self.start_s + self.build_s
        policy = {"policy": "static" if self.is_static else "measured"}
        events: list[Event] = [RunStarted(0.0, "r", 0.0, len(self.items), {n: {} for n in names}, policy)]
        events += [WorkerStarted(ready_s, name, name, None, ready_s, self.build_s) for name in names]
        events.append(StageStarted(0.0, "map", len(self.items)))
        free = dict.fromkeys(names, ready_s)
        for at in range(0, len(self.items), self.chunk):
            some = self.items[at : at + self.chunk]
            share = at * len(names) // len(self.items)
            name = names[share] if self.is_static else min(names, key=lambda one: free[one])
            begin_s = max(free[name], self.read_s * (at + len(some)))
            if begin_s > free[name]:
                events.append(Idle(name, free[name], begin_s, "no item is ready"))
            stop_s = begin_s + sum(some) / self.speeds[names.index(name)]
            cost = sum(some) if self.costs else None
            events.append(
                Span("map", name, name, at, len(some), begin_s, stop_s, stop_s - begin_s, cost=cost)
            )
            free[name] = stop_s + self.gap_s
        wall_s = max(free.values())
        events.append(StageFinished(wall_s, "map", None, "", self.result_bytes))
        return wall_s, [*events, RunFinished(wall_s, "done")]


@dataclass(frozen=True)
class Case:
    job: Job
    what: str
    change: dict[str, Any] = field(default_factory=dict)


CASES = {
    "a slow constructor": Case(
        Job((0.05,) * 20, build_s=3.0), "keep the workers in one Executor", {"start_s": 0.0, "build_s": 0.0}
    ),
    "shares for unlike devices": Case(
        Job((0.1,) * 40, speeds=(1.0, 4.0), is_static=True),
        'deal by policy="measured" in place of static',
        {"is_static": False},
    ),
    "a slow reader": Case(
        Job((0.02,) * 40, read_s=0.2), "read items inside of the task", {"items": (0.22,) * 40, "read_s": 0.0}
    ),
    "much between short chunks": Case(
        Job((0.01,) * 400, gap_s=0.02), "send 8 times as many items at once", {"chunk": 8}
    ),
    "large results": Case(
        Job((0.05,) * 40, gap_s=0.2, result_bytes=40 * 80_000_000),
        "return less, or paths of files: 3,200 MB came back",
        {"gap_s": 0.0},
    ),
    "one long item": Case(
        Job((4.0, *(0.05,) * 20)), "cut the longest items in 4", {"items": (1.0,) * 4 + (0.05,) * 20}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_remedy_saves_what_it_says(name):
    case = CASES[name]
    before_s, events = case.job.run()
    advice = summarise(events).advice
    assert advice is not None
    first = advice.remedies[0]
    assert first.what.startswith(case.what), advice.text()
    after_s, _ = replace(case.job, **case.change).run()
    saved_s, said_s = before_s - after_s, before_s - first.without_s
    assert abs(said_s - saved_s) <= 0.1 * saved_s, (saved_s, advice.text())


def test_nothing_is_told_that_is_in_force_already():
    """Equal shares by measured speed and told sizes, and yet the last item ends late: there is no remedy."""
    _, events = Job((0.5,) * 3, start_s=0.01).run()
    advice = summarise(events).advice
    assert advice is not None
    assert not any("policy" in one.what or "cost=" in one.what for one in advice.remedies), advice.text()


class Loaded:
    """A task whose constructor takes longer than anything else in its run."""

    def __init__(self) -> None:
        x = 0
        while x < 5_000_000:
            x += 1

    def __call__(self, item: int) -> bytes:
        return bytes(3_000_000)


def test_a_run_knows_what_its_workers_built_and_how_much_came_back():
    events: list[Any] = []
    list(evenload.map(Loaded, range(4), devices="cpu*1", events=EventLog(events.append)))
    (finished,) = [event for event in events if isinstance(event, StageFinished)]
    (started,) = [event for event in events if isinstance(event, WorkerStarted)]
    assert 12_000_000 <= (finished.result_bytes or 0) < 12_100_000
    assert 0.0 < (started.build_s or 0.0) <= started.startup_s
