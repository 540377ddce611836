"""The life of workers on a backend that does what the test says."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.devices import Device, DevicePool
from evenload.events import EventLog, Note, WorkerExited, WorkerStarted
from evenload.executor.decide.record import Record
from evenload.executor.supervisor import supervisor as module
from evenload.executor.supervisor.start_watch import StartLimits
from evenload.executor.supervisor.supervisor import Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Said, Up
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING

DEVICE = Device("cpu:0", "cpu", "cpu", "a CPU")
POOL = DevicePool([DEVICE])
TASK: Any = SimpleNamespace(id=7)


class Scripted:
    """A backend without processes: says what it was told, tells what is in ``news``."""

    is_threaded, host = True, ""

    def __init__(self) -> None:
        self.told: list[tuple] = []
        self.news: list[Message] = []
        self.fault: OSError | None = None

    def devices(self, spec: Any) -> DevicePool:
        return POOL

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        if self.fault is not None:
            raise self.fault
        self.told.append(("start", worker))

    def load(self, worker: int, task: Any) -> None:
        self.told.append(("load", worker))

    def unload(self, worker: int, task: int) -> None:
        self.told.append(("unload", worker))

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int | None:
        self.told.append(("run", worker, chunk))
        return None

    def drop(self, worker: int, chunk: int) -> None:
        self.told.append(("drop", worker, chunk))

    def position(self, worker: int) -> tuple[int, float]:
        return NOT_BEGUN, 0.0

    def activity(self, worker: int) -> float | None:
        return 0.0

    def stop(self, worker: int) -> None:
        self.told.append(("stop", worker))

    def kill(self, worker: int) -> None:
        self.told.append(("kill", worker))

    def poll(self, timeout_s: float | None) -> list[Message]:
        news, self.news = self.news, []
        return news

    def wake(self) -> None:
        pass

    def close(self, grace_s: float) -> list[Message]:
        return [Said(1, "the last word")]


class Listening:
    """A driver that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def loaded(self, worker: Worker) -> None:
        self.heard.append(("loaded", worker.name))

    def refused(self, worker: Worker, task: Any, failure: Any) -> None:
        self.heard.append(("refused", worker.name))

    def answered(self, worker: Worker, chunk: Any, message: Answered) -> None:
        self.heard.append(("answered", worker.name, chunk.number))

    def spoilt(self, worker: Worker, chunk: Any, message: Any) -> None:
        self.heard.append(("spoilt", worker.name, chunk.number))

    def gone(self, worker: Worker, message: Gone) -> None:
        self.heard.append(("gone", worker.name, message.reason, len(worker.chunks)))


class World:
    def __init__(self, **more: Any) -> None:
        self.backend, self.driver, self.events = Scripted(), Listening(), list[Any]()
        record = Record(EventLog(self.events.append), echo=False)
        self.supervisor = Supervisor(self.backend, record, self.driver, **more)

    def start(self) -> Worker:
        worker = self.supervisor.start("cpu:0", DEVICE, POOL, {})
        assert worker is not None
        return worker

    def hear(self, *news: Message) -> list[tuple]:
        self.backend.news += news
        self.supervisor.poll(0.0)
        heard, self.driver.heard = self.driver.heard, []
        return heard

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_from_start_to_an_answer_to_the_end() -> None:
    world = World()
    worker = world.start()
    assert not worker.is_idle
    assert world.hear(Up(worker.number, 42)) == []
    assert worker.may_work
    world.supervisor.load(worker, TASK)
    assert not worker.may_work
    assert world.hear(Loaded(worker.number, 7, 0.1)) == [("loaded", "cpu:0/1")]
    (started,) = world.told(WorkerStarted)
    assert (started.worker, started.pid) == ("cpu:0/1", 42)
    chunk = SimpleNamespace(number=world.supervisor.next_chunk())
    world.supervisor.send(worker, chunk, TASK, ["item"])
    answer = Answer([1], {}, 0.0, 1.0, 1.0)
    assert world.hear(Answered(worker.number, chunk.number, answer)) == [("answered", "cpu:0/1", 1)]
    assert worker.has_worked
    assert world.hear(Gone(worker.number, -9, NOT_BEGUN)) == [("gone", "cpu:0/1", "was killed by SIGKILL", 0)]
    assert not world.supervisor.workers
    assert world.start().name == "cpu:0/2"


@pytest.mark.parametrize("is_asked", [True, False])
def test_one_that_skips_what_it_was_to_run_is_killed(is_asked: bool) -> None:
    world = World()
    worker = world.start()
    world.hear(Up(worker.number, 42))
    chunk = SimpleNamespace(number=world.supervisor.next_chunk())
    world.supervisor.send(worker, chunk, TASK, ["item"])
    if is_asked:
        world.supervisor.drop(worker, chunk)
    answer = Answer([], {}, 0.0, 1.0, 1.0, skipped=0)
    assert world.hear(Answered(worker.number, chunk.number, answer)) == [("answered", "cpu:0/1", 1)]
    assert (("kill", worker.number) in world.backend.told) is not is_asked
    assert worker.may_work is is_asked


def test_one_that_cannot_be_started_is_gone_at_once() -> None:
    world = World()
    world.backend.fault = OSError("no processes")
    assert world.supervisor.start("cpu:0", DEVICE, POOL, {}) is None
    assert world.driver.heard == [("gone", "cpu:0/1", "could not be started: no processes", 0)]
    assert not world.supervisor.workers


def test_one_that_is_not_up_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(limits=StartLimits(up_s=300.0))
    worker, heard = world.start(), []
    for seconds in range(0, 320):
        monkeypatch.setattr(module.time, "monotonic", lambda now=worker.asked_s + seconds: now)
        heard += world.hear()
        if heard:
            break
    assert [one[:2] for one in heard] == [("gone", "cpu:0/1")]
    assert "had not started and shown no sign of life for 30" in heard[0][2]
    assert ("kill", worker.number) in world.backend.told
    assert world.hear(Gone(worker.number, -9, NOT_BEGUN)) == []


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (Answer([1, 2], {}, 0.0, 1.0, 1.0), "2 results for 1 items"),
        (Answer([], {}, 0.0, 1.0, 1.0), "0 results for 1 items"),
        (Answer([1], {1: Failure("raised", "X", "x")}, 0.0, 1.0, 1.0), "failures of items"),
        (Answer([1], {0: "no failure"}, 0.0, 1.0, 1.0), "failures that are none"),  # type: ignore[dict-item]
        (Answer([1], {}, 0.0, 1.0, 1.0, ceiling=-1), "a number of items for a call"),
        (Answer([1], {}, 0.0, 1.0, 1.0, skipped=9), "1 results for 1 items"),
    ],
)
def test_one_whose_answer_cannot_be_true_is_killed_with_what_it_held(forged: Answer, said: str) -> None:
    world = World()
    worker = world.start()
    world.hear(Up(worker.number, 42))
    chunks = [SimpleNamespace(number=world.supervisor.next_chunk()) for _ in range(2)]
    for chunk in chunks:
        world.supervisor.send(worker, chunk, TASK, ["item"])
    good = Answer([1], {}, 0.0, 1.0, 1.0)
    assert world.hear(Answered(worker.number, chunks[0].number, forged)) == []
    assert ("kill", worker.number) in world.backend.told
    assert world.hear(Answered(worker.number, chunks[0].number, good)) == [], "it is believed no more"
    positions: list[int] = []
    world.driver.gone = lambda worker, message: positions.append(message.position)  # type: ignore[method-assign]
    world.hear(Gone(worker.number, -9, NOT_BEGUN))
    assert positions == [PACKING], "it may have run all that it held"
    assert len(worker.chunks) == 2
    assert said in world.told(WorkerExited)[0].reason


def test_one_that_is_retired_leaves_or_is_killed() -> None:
    world = World()
    worker = world.start()
    world.hear(Up(worker.number))
    due_s = world.supervisor.retire(worker, 100.0)
    assert not worker.may_work
    assert world.supervisor.retire(worker, 101.0) == due_s == 100.0 + module.LEAVE_S
    assert world.backend.told[-1] == ("stop", 1)
    assert world.supervisor.retire(worker, due_s) == due_s + module.LEAVE_S
    assert world.backend.told[-1] == ("kill", 1)
    assert world.hear(Gone(1, 0, NOT_BEGUN)) == [("gone", "cpu:0/1", "closed", 0)]


def test_why_one_was_killed_is_what_is_told() -> None:
    world = World()
    worker = world.start()
    world.supervisor.kill(worker, "was replaced")
    assert world.hear(Gone(worker.number, -9, NOT_BEGUN)) == [("gone", "cpu:0/1", "was replaced", 0)]
    assert [event.reason for event in world.told(WorkerExited)] == ["was replaced"]


def test_nothing_is_heard_of_one_that_was_discarded() -> None:
    world = World()
    worker = world.start()
    world.supervisor.discard(worker, "closed")
    assert world.backend.told[-1] == ("kill", worker.number)
    again = world.start()
    assert world.hear(Gone(worker.number, -9, NOT_BEGUN), Up(worker.number)) == []
    assert world.supervisor.workers == {"cpu:0": again}


def test_at_the_end_last_words_are_heard_and_all_are_closed() -> None:
    world = World()
    world.start()
    world.supervisor.close(1.0)
    assert [note.text for note in world.told(Note)] == ["the last word"]
    assert [event.reason for event in world.told(WorkerExited)] == ["closed"]
    assert not world.supervisor.workers
