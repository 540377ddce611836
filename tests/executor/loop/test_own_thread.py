"""What a user's code may do in the executor's own thread: anything but wait for it, which raises."""

import concurrent.futures
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenload.balance.policy import Ask, Copy, Hold, Take
from evenload.errors import ConfigError, EvenloadError
from evenload.events import EventLog
from evenload.executor import Executor


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor("cpu*2", echo=False) as executor:
        yield executor


def behind(gate: str) -> int:
    while not Path(gate).exists():
        time.sleep(0.01)
    return 7


WAITS: dict[str, Callable[[Executor], Any]] = {
    "result": lambda executor: executor.submit(abs, -1).result(),
    "result with a limit": lambda executor: executor.submit(abs, -1).result(timeout=1000.0),
    "exception": lambda executor: executor.submit(abs, -1).exception(),
    "wait": lambda executor: concurrent.futures.wait([executor.submit(abs, -1)]),
    "as completed": lambda executor: list(concurrent.futures.as_completed([executor.submit(abs, -1)])),
    "map": lambda executor: list(executor.map(abs, [1])),
    "indexed": lambda executor: list(executor.map(abs, [1]).indexed()),
    "blocks": lambda executor: list(executor.map(abs, [1]).blocks()),
}


@pytest.mark.parametrize("how", WAITS)
def test_a_callback_that_waits_is_told_so(
    executor: Executor, how: str, tmp_path: Path, until: Callable[..., None]
) -> None:
    outcomes: list[Any] = []

    def waits(done: Any) -> None:
        try:
            outcomes.append(WAITS[how](executor))
        except BaseException as error:
            outcomes.append(error)

    future = executor.submit(behind, str(tmp_path / "gate"))
    future.add_done_callback(waits)
    (tmp_path / "gate").touch()
    assert future.result(timeout=500) == 7
    until(lambda: outcomes, "the callback has ended")
    assert isinstance(outcomes[0], ConfigError)
    assert "own thread" in outcomes[0].message
    assert list(executor.map(abs, [-1, -2])) == [1, 2]


@pytest.mark.parametrize("how", ["result", "map", "wait"])
def test_an_event_sink_that_waits_is_removed_with_its_error(how: str) -> None:
    heard: list[Any] = []
    log = EventLog(heard.append)
    with Executor("cpu*2", echo=False, events=log) as executor:
        log.subscribe(lambda event: WAITS[how](executor))
        assert list(executor.map(abs, range(50))) == list(range(50))
    assert heard
    assert [type(error) for error in log.sink_errors] == [ConfigError]


@dataclass(frozen=True)
class Odd:
    """A policy that answers ``answer``, made of what is asked."""

    answer: Callable[[Ask], Any]

    def init(self) -> int:
        return 0

    def step(self, state: int, ask: Ask) -> Any:
        return self.answer(ask)


ANSWERS: dict[str, Callable[[Ask], Any]] = {
    "none": lambda ask: None,
    "no state": lambda ask: Take(1, "one"),
    "none taken": lambda ask: (0, Take(0, "none")),
    "less than none": lambda ask: (0, Take(-5, "less")),
    "no number": lambda ask: (0, Take("x", "text")),  # type: ignore[arg-type]
    "half": lambda ask: (0, Take(1.5, "half")),  # type: ignore[arg-type]
    "no work": lambda ask: (0, Take(1, "nan", work=float("nan"))),
    "until no time": lambda ask: (0, Hold("later", until=float("nan"))),
    "until text": lambda ask: (0, Hold("later", until="noon")),  # type: ignore[arg-type]
    "a copy of nothing": lambda ask: (0, Copy(None, 1, "copy")),  # type: ignore[arg-type]
    "a copy of its own": lambda ask: (0, Copy(next(iter(ask.device.chunks.values()), None), 1, "copy")),  # type: ignore[arg-type]
    "all at once": lambda ask: (0, Take(10**30, "all")),
    "always one": lambda ask: (0, Take(1, "one")),
    "always later": lambda ask: (0, Hold("later")),
    "later than ever": lambda ask: (0, Hold("later", until=float("inf"))),
    "raises": lambda ask: 1 / 0,
}
GOOD = {"all at once", "always one", "always later", "later than ever"}


@pytest.mark.parametrize("backend", ["inline", "process"])
@pytest.mark.parametrize("how", ANSWERS)
def test_a_policy_may_answer_anything(executor: Executor, how: str, backend: str) -> None:
    policy = Odd(ANSWERS[how])
    chosen = executor if backend == "process" else Executor("cpu*2", backend="inline", echo=False)
    if how in GOOD:
        assert list(chosen.map(abs, range(6), policy=policy)) == list(range(6))
    else:
        with pytest.raises(ZeroDivisionError if how == "raises" else EvenloadError):
            list(chosen.map(abs, range(6), policy=policy))
    assert list(chosen.map(abs, range(6))) == list(range(6))
