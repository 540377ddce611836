"""Workers that outlive a run, with the models that they hold: for many runs over the same models.

    workers = KeptWorkers("process")
    pipeline.run(backend=workers)
    pipeline.run(backend=workers)           the same processes; models that are there are not loaded again
    workers.close()

To a run they are a back end like any other, with workers, tasks and chunks numbered by the run. Its start of
a worker finds one that waits on the same devices, its load of a host tells the host that is there of the new
job (``worker_protocol.ADOPT``), and its end leaves the workers that have answered all.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenload._closing import Closing
from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec
from evenload.errors import ConfigError
from evenload.executor.backends import Backend, WorkerOptions, make_backend
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Spoilt, TaskRefused, Untrue, Up
from evenload.executor.task.task import PreparedTask
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import ADOPT, Order, is_whole

__all__ = ["KeptWorkers"]

GRACE_S = 1.0


@dataclass(slots=True)
class _KeptWorker:
    """A live worker. ``host``: its task that holds the models, or 0; ``run_number``: 0 while it waits.

    n_open      orders that it has not answered, and a load or adoption
    unfinished  tasks whose outcome has not come; their files may still be on their way to the disk
    """

    number: int
    device: str
    environment: dict[str, str]
    host: int = 0
    run_number: int = 0
    n_open: int = 0
    up: Up | None = None
    unfinished: set[StageTask] = field(default_factory=set)

    @property
    def can_stay(self) -> bool:
        """What it still answers, or writes, would be taken for the next run's."""
        return self.up is not None and bool(self.host) and not self.n_open and not self.unfinished

    def shares_devices_with(self, device: str, environment: Mapping[str, str]) -> bool:
        return bool(_devices(self.device, self.environment) & _devices(device, environment))


def _devices(device: str, environment: Mapping[str, str]) -> set[str]:
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return set(visible.split(",")) if visible not in ("", "-1") else {device}


class KeptWorkers(Closing):
    """Workers with their models, kept from one run to the next; a backend by value, for one run at a time.

    inner  the name of the backend that starts them
    """

    def __init__(self, inner: str = "process"):
        self.inner = inner
        self.kept: dict[int, _KeptWorker] = {}
        self.is_lent = False
        self._backend: Backend | None = None
        self._pid = os.getpid()
        self._of_parent: Backend | None = None
        self._counts = {"worker": 0, "task": 0, "chunk": 0}

    def make(self, options: WorkerOptions) -> Backend:
        """For one run. Raises ConfigError while another has them."""
        self._look_for_fork()
        if self.is_lent:
            raise ConfigError("these workers are at work in another run", hint="wait for it to end")
        if self._backend is None:
            self._backend = make_backend(self.inner, options)
        self.is_lent = True
        return _LentBackend(self, self._backend)

    def beside(self) -> "KeptWorkers":
        return KeptWorkers(self.inner)

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the workers, and with them their models."""
        self._look_for_fork()
        backend, self._backend = self._backend, None
        self.kept.clear()
        if backend is not None:
            backend.close(grace_s)

    def _look_for_fork(self) -> None:
        """In a forked process: the workers are its parent's, and what they say is read there."""
        if self._pid != os.getpid():
            self._of_parent, self._backend = self._backend, None  # held, as its end would be theirs
            self.kept, self.is_lent, self._pid = {}, False, os.getpid()

    def __str__(self) -> str:
        return f"{self.inner}, kept"

    def next(self, what: str) -> int:
        """A number that no other ``worker``, ``task`` or ``chunk`` has had."""
        self._counts[what] += 1
        return self._counts[what]


class _LentBackend:
    """A backend for one run over kept workers: translates its numbers to ours and back."""

    def __init__(self, owner: KeptWorkers, backend: Backend):
        self.is_threaded, self.host = backend.is_threaded, backend.host
        self._owner, self._backend = owner, backend
        self._of_run: dict[int, _KeptWorker] = {}
        self._task_of: dict[int, int] = {}
        self._chunks: dict[tuple[int, int], tuple[int, Sequence[Order]]] = {}
        self._adopting: set[tuple[int, int]] = set()
        self._news: list[Message] = []

    def devices(self, spec: Spec) -> DevicePool:
        return self._backend.devices(spec)

    def expect(self) -> None:
        pass  # they are there, or their server is

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        there = [kept for kept in self._owner.kept.values() if not kept.run_number]
        for kept in there:
            if (kept.device, kept.environment) == (device.id, dict(environment)) and kept.up is not None:
                kept.run_number, self._of_run[worker] = worker, kept
                return self._news.append(Up(worker, kept.up.pid))
        for kept in there:  # their memory is wanted
            if kept.shares_devices_with(device.id, environment):
                self._end(kept)
        kept = _KeptWorker(self._owner.next("worker"), device.id, dict(environment), run_number=worker)
        self._backend.start(kept.number, device, pool, environment)
        self._owner.kept[kept.number] = self._of_run[worker] = kept
        return None

    def load(self, worker: int, task: PreparedTask) -> None:
        kept = self._of_run[worker]
        self._task_of[worker] = task.id
        kept.n_open += 1
        if not kept.host:
            kept.host = self._owner.next("task")
            return self._backend.load(kept.number, replace(task, id=kept.host))
        spec = task.fn.args[0]  # pyrefly: ignore  # functools.partial(StageHost, spec)
        chunk = self._owner.next("chunk")
        self._adopting.add((kept.number, chunk))
        self._backend.run(kept.number, kept.host, chunk, [Order(ADOPT, spec=spec)], False)
        return None

    def unload(self, worker: int, task: int) -> None:
        pass  # what it holds is to stay

    def run(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int | None:
        kept = self._of_run[worker]
        ours = self._owner.next("chunk")
        self._chunks[kept.number, ours] = (chunk, items)
        kept.n_open += 1
        kept.unfinished.update(one.task for order in items for one in order.inputs)
        return self._backend.run(kept.number, kept.host, ours, items, singly)

    def drop(self, worker: int, chunk: int) -> None:
        kept = self._of_run[worker]
        for (number, ours), (theirs, _) in self._chunks.items():
            if number == kept.number and theirs == chunk:
                self._backend.drop(number, ours)

    def position(self, worker: int) -> tuple[int, float]:
        return self._backend.position(self._of_run[worker].number)

    def activity(self, worker: int) -> float | None:
        return self._backend.activity(self._of_run[worker].number)

    def stop(self, worker: int) -> None:
        kept = self._of_run[worker]
        self._owner.kept.pop(kept.number, None)
        self._backend.stop(kept.number)

    def kill(self, worker: int) -> None:
        self._end(self._of_run[worker])

    def show_stack(self, worker: int) -> None:
        self._backend.show_stack(self._of_run[worker].number)

    def poll(self, timeout_s: float | None) -> list[Message]:
        news, self._news = self._news, []
        for message in self._backend.poll(0.0 if news else timeout_s):
            told = self._told(message)
            if told is not None:
                news.append(told)
        return news

    def wake(self) -> None:
        self._backend.wake()

    def close(self, grace_s: float) -> list[Message]:
        """The run is over: who has answered all of it stays."""
        try:
            for kept in self._of_run.values():
                kept.run_number = 0
                if kept.number in self._owner.kept and not kept.can_stay:
                    self._end(kept)
        finally:
            self._owner.is_lent = False
        return []

    def _end(self, kept: _KeptWorker) -> None:
        if self._owner.kept.pop(kept.number, None) is not None:
            self._backend.kill(kept.number)

    def _told(self, message: Message) -> Message | None:
        """``message`` in the run's numbers; None for one of a worker that the run does not know."""
        kept = next((one for one in self._of_run.values() if one.number == message.worker), None)
        if isinstance(message, Gone):
            self._owner.kept.pop(message.worker, None)
        if kept is None or not kept.run_number:
            return None
        worker = kept.run_number
        if isinstance(message, Up):
            kept.up = message
        elif isinstance(message, Loaded):
            kept.n_open -= 1
            return Loaded(worker, self._task_of[worker], message.seconds)
        elif isinstance(message, TaskRefused):
            kept.host = 0
            kept.n_open -= 1
            return TaskRefused(worker, self._task_of[worker], message.failure)
        elif isinstance(message, Answered | Spoilt):
            return self._answered(kept, message)
        return message._replace(worker=worker)

    def _answered(self, kept: _KeptWorker, message: Answered | Spoilt) -> Message:
        at = (kept.number, message.chunk)
        kept.n_open -= 1
        if at not in self._adopting:
            chunk, orders = self._chunks.pop(at)
            kept.unfinished.difference_update(_finished(message, orders))
            return message._replace(worker=kept.run_number, chunk=chunk)
        self._adopting.discard(at)
        task = self._task_of[kept.run_number]
        if isinstance(message, Answered) and (fault := message.answer.fault(1)):
            return Untrue(kept.run_number, fault)
        failures = message.answer.failures.values() if isinstance(message, Answered) else [message.failure]
        for failure in failures:
            return TaskRefused(kept.run_number, task, failure)
        return Loaded(kept.run_number, task, 0.0)


def _finished(message: Answered | Spoilt, orders: Sequence[Order]) -> Iterator[StageTask]:
    """Tasks that are over by this answer; one that is ``made`` is not: its files are on their way."""
    if isinstance(message, Spoilt) or message.answer.failures:
        yield from (one.task for order in orders for one in order.inputs)
    for outcomes in message.answer.values if isinstance(message, Answered) else ():
        if type(outcomes) is list:  # what is wrong with an answer is the driver's to say
            yield from (one.task for one in filter(is_whole, outcomes) if one.task and one.kind != "made")
