"""A result whose own code does not return as it is read is told, with its worker and where it hangs."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.events import Event, EventLog, Note
from evenload.executor import Executor
from evenload.executor.decide import delivery
from evenload.executor.loop import engine
from evenload.executor.supervisor import reading_watch


class Hangs:
    """Its unpickling waits until the test writes into a pipe; in a worker it does nothing."""

    def __init__(self, until: str):
        self.until = until

    def __reduce__(self) -> tuple:
        return wait_for_the_test, (self.until,)


def wait_for_the_test(path: str) -> bool:
    with open(path) as pipe:
        return pipe.read() == "go on"


def hanging(x: int, until: str) -> object:
    return Hangs(until) if x == 1 else x


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def noted(seen: list[Event]) -> list[str]:
    return [event.text for event in seen if isinstance(event, Note) and "have been read" in event.text]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(delivery, "WAIT_S", 0.02)
    monkeypatch.setattr(engine, "LOOK_S", 0.02)


@pytest.mark.usefixtures("quick")
def test_who_waits_is_told_whose_results_cannot_be_read_and_goes_on_with_them(
    until: Callable[..., None], tmp_path: Path
) -> None:
    may_go_on = pipe(tmp_path)
    seen: list[Event] = []
    got: list[object] = []
    with Executor("cpu*1", events=EventLog(seen.append), echo=False) as executor:
        results = executor.map(hanging, range(3), [str(may_go_on)] * 3)
        receiver = threading.Thread(target=lambda: got.extend(results))
        receiver.start()
        until(lambda: noted(seen), "it is told")
        assert "results of cpu:0/1" in noted(seen)[0]
        assert "wait" in noted(seen)[0]
        may_go_on.write_text("go on")
        receiver.join(500)
        assert len(noted(seen)) == 1
        assert got == [0, True, 2]
        assert list(executor.map(abs, [-1])) == [1]
