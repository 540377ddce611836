"""Remedies that are applied: the run is made again, with what the report of the first one said to change.

The oracle is the second run, by the caller's clock. Losses are planted as sleeps, the same on any processor.
A printed time may be off by a third of what was saved.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

import evenload
from evenload.events import EventLog, Span, StageFinished
from evenload.report.losses.advice import Advice
from evenload.report.tally import summarise


class Loaded:
    def __init__(self) -> None:
        time.sleep(1.5)

    def __call__(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


class Unlike:
    def __init__(self, *, device: Any) -> None:
        self.slower = 4.0 if device.id == "cpu:0" else 1.0

    def __call__(self, seconds: float) -> float:
        time.sleep(seconds * self.slower)
        return seconds


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def reading(n_items: int) -> Iterable[float]:
    for _ in range(n_items):
        time.sleep(0.2)
        yield 0.02


def advised(task: Any, items: Iterable[Any], **options: Any) -> tuple[float, Advice]:
    """Return the seconds that the caller waited, and what the report says."""
    events: list[Any] = []
    began_s = time.monotonic()
    list(evenload.map(task, items, devices="cpu*2", events=EventLog(events.append), **options))
    waited_s = time.monotonic() - began_s
    # Who sleeps does nothing that is known; here it stands for work, as on a system that does not tell.
    told = [replace(event, cpu_s=None) if isinstance(event, Span) else event for event in events]
    advice = summarise(told).advice
    assert advice is not None
    return waited_s, advice


def waited(task: Any, items: Iterable[Any], **options: Any) -> float:
    began_s = time.monotonic()
    list(evenload.map(task, items, devices="cpu*2", **options))
    return time.monotonic() - began_s


def second_of_an_executor(task: Any, items: list[Any]) -> float:
    with evenload.Executor("cpu*2") as executor:
        list(executor.map(task, items))
        began_s = time.monotonic()
        list(executor.map(task, items))
        return time.monotonic() - began_s


CASES: dict[str, tuple[Any, Callable[[], Iterable[Any]], dict[str, Any], str, Callable[[], float]]] = {
    "a slow constructor": (
        Loaded, lambda: [0.05] * 20, {}, "keep the workers in one Executor",
        lambda: second_of_an_executor(Loaded, [0.05] * 20),
    ),
    "shares for unlike devices": (
        Unlike, lambda: [0.1] * 24, {"policy": "static"}, 'deal by policy="measured" in place of static',
        lambda: waited(Unlike, [0.1] * 24),
    ),
    "a slow reader": (
        nap, lambda: reading(20), {}, "read items inside of the task",
        lambda: waited(nap, [0.22] * 20),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_remedy_saves_what_it_says(name: str) -> None:
    task, items, options, what, again = CASES[name]
    before_s, advice = advised(task, items(), **options)
    first = advice.remedies[0]
    assert first.what.startswith(what), advice.text()
    saved_s, said_s = before_s - again(), before_s - first.without_s
    assert saved_s > 0.0
    assert abs(saved_s - said_s) < saved_s / 3 + 0.3, (saved_s, said_s, advice.text())


def of_bytes(n: int) -> bytes:
    return bytes(n)


def test_a_run_knows_how_much_came_back() -> None:
    events: list[Any] = []
    list(evenload.map(of_bytes, [3_000_000] * 4, devices="cpu*1", events=EventLog(events.append)))
    (finished,) = [event for event in events if isinstance(event, StageFinished)]
    assert 12_000_000 <= (finished.result_bytes or 0) < 12_100_000
