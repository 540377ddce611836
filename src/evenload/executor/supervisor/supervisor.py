"""Starts, watches and ends the worker processes of one backend.

    driver ──► start, load, send, retire, kill, discard ──► Supervisor ──► backend
    driver ◄── refused, answered, spoilt, gone ◄── poll ◄── backend's messages

What is to be sent, and where, is the driver's to decide: the executor's ``Engine`` deals items, the
pipeline's loop runs stages. Everything but ``wake`` belongs to the driver's thread.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from evenload.devices import Device, DevicePool
from evenload.errors import EvenloadError, reason_of
from evenload.events import WorkerExited, WorkerStarted
from evenload.executor.backends import Backend
from evenload.executor.decide.record import Record
from evenload.executor.supervisor.reading_watch import ReadingWatch
from evenload.executor.supervisor.start_watch import StartLimits, StartWatch
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import (
    Answered,
    Gone,
    Loaded,
    Message,
    Said,
    Spoilt,
    TaskRefused,
    Untrue,
    Up,
    Warned,
)
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING

STACK_LINE = re.compile(r"(Current thread|Thread) 0x|  (File \"|Binary file |\.\.\.|<)|$")  # by faulthandler
MOST_STACK_LINES = 2000
ALWAYS_HEARD = (Gone, Said, Warned)
GRACE_S = 1.0  # for workers to end what they are at, where all are to end
LEAVE_S = 5.0  # for a worker that was told to leave to free what its tasks hold


class Driver(Protocol):
    """A loop that decides what workers do; a supervisor tells it what became of them."""

    def loaded(self, worker: Worker) -> None:
        """The task that ``worker`` was building is built."""
        ...

    def refused(self, worker: Worker, task: PreparedTask, failure: Failure) -> None:
        """``task`` could not be built there."""
        ...

    def answered(self, worker: Worker, chunk: Any, message: Answered) -> None:
        """``chunk`` has come back with results."""
        ...

    def spoilt(self, worker: Worker, chunk: Any, message: Spoilt) -> None:
        """``chunk`` has come back without results."""
        ...

    def gone(self, worker: Worker, message: Gone) -> None:
        """``worker`` has ended; ``worker.chunks`` are lost. Not told of one that was discarded.

        ``message.position`` is what the worker wrote, and may be any number.
        """
        ...


class Supervisor:
    """The workers of one backend, at most one in each slot (a device, or a group of devices).

    workers  those that are starting or there, by slot
    waiting  those that an earlier driver left, by slot
    limits   of how long a worker may take to start, and to build a task
    reading  for those who wait: says whose results hold up the thread that reads them
    """

    def __init__(
        self, backend: Backend, record: Record, driver: Driver, *, limits: StartLimits | None = None
    ):
        self.workers: dict[str, Worker] = {}
        self.waiting: dict[str, Worker] = {}
        self._backend, self._record, self._driver = backend, record, driver
        self._starts = StartWatch(limits or StartLimits(), backend.activity)
        self._by_number: dict[int, Worker] = {}
        self._n_started: Counter[str] = Counter()
        self._n_workers = self._n_chunks = 0
        self.reading = ReadingWatch(self._name_of, record)
        self._handlers: dict[type, Callable[[Worker, Any], None]] = {
            Answered: self._on_answered,
            Up: self._on_up,
            Loaded: self._on_loaded,
            TaskRefused: self._on_refused,
            Spoilt: self._on_spoilt,
            Said: self._on_said,
            Warned: self._on_warned,
            Untrue: self._on_untrue,
            Gone: self._on_gone,
        }

    # --- from one driver to the next --------------------------------------------------------------

    def serve(self, record: Record, driver: Driver) -> None:
        """Have another driver, once the one before has left its workers."""
        self._record, self._driver = record, driver
        self.reading = ReadingWatch(self._name_of, record)

    def leave(self, slots: Collection[str]) -> None:
        """Let the idle workers of ``slots`` wait for the next driver; all others are ended now."""
        for slot, worker in tuple(self.workers.items()):
            if slot in slots and worker.may_work and not worker.is_untrue:
                self._record.tell(WorkerExited, slot, worker.name, "closed")
                self.waiting[slot] = self.workers.pop(slot)
            else:
                self.discard(worker, "closed")

    def adopt(self, worker: Worker, chunk: Any, task: PreparedTask, item: Any) -> None:
        """Tell a worker that waited, by an ``item`` for the task that it has, to be one for ``task``.

        ``Driver.loaded``, ``refused`` or ``gone`` follows.
        """
        (held,) = worker.tasks.values()
        self.send(worker, chunk, held, [item])
        worker.loading, worker.adopting = task, chunk

    def _awaken(self, slot: str, device: Device, environment: Mapping[str, str]) -> Worker | None:
        """Return the worker that waits in ``slot`` if it has this environment; end those on its devices."""
        found = self.waiting.get(slot)
        if found is not None and (found.device.id, found.environment) == (device.id, environment):
            del self.waiting[slot]
            found = replace(found, asked_s=time.monotonic(), is_ready=False, has_worked=False, stack=None)
            self._by_number[found.number] = self.workers[slot] = found
            return found
        wanted = _memories(device, environment)
        for other in tuple(self.waiting.values()):
            if other is found or not wanted.isdisjoint(_memories(other.device, other.environment)):
                self._forget(other)
                self._backend.kill(other.number)
        return None

    # --- from start to end ------------------------------------------------------------------------

    def start(
        self, slot: str, device: Device, pool: DevicePool, environment: Mapping[str, str]
    ) -> Worker | None:
        """Start a worker in ``slot``, or take the one that waits there: it has a task, and is to ``adopt``.

        If that is impossible, the driver is told at once that it is gone, and this returns None.
        """
        waiting = self._awaken(slot, device, environment) if self.waiting else None
        if waiting is not None:
            return waiting
        self._n_workers += 1
        self._n_started[slot] += 1
        name = f"{slot}/{self._n_started[slot]}"
        worker = Worker(self._n_workers, slot, name, time.monotonic(), device, dict(environment))
        self._by_number[worker.number] = self.workers[slot] = worker
        try:
            self._backend.start(worker.number, device, pool, environment)
        except (OSError, EvenloadError) as error:
            self._forget(worker)
            self._driver.gone(
                worker,
                Gone(
                    worker.number,
                    None,
                    NOT_BEGUN,
                    cause=f"could not be started: {reason_of(error, with_path=True)}",
                ),
            )
            return None
        return worker

    def retire(self, worker: Worker, now: float) -> float:
        """Have an idle worker free what it holds and leave, or kill it if it does not.

        Returns when to call again.
        """
        if worker.leave_by_s is None:
            self._backend.stop(worker.number)
        elif now >= worker.leave_by_s:
            self._backend.kill(worker.number)
        else:
            return worker.leave_by_s
        worker.leave_by_s = now + LEAVE_S
        return worker.leave_by_s

    def kill(self, worker: Worker, why: str = "") -> None:
        """End it now; the driver is told when it is gone. ``why``: in words that fit after "the worker"."""
        worker.why_killed = why
        self._backend.kill(worker.number)

    def remove(self, worker: Worker) -> None:
        """End it now, because its device is to go: nothing that it runs is to blame."""
        worker.is_removed = True
        self.kill(worker)

    def discard(self, worker: Worker, why: str) -> None:
        """End it now, and forget it: the driver hears no more of it."""
        self._forget(worker)
        self._record.tell(WorkerExited, worker.slot, worker.name, why)
        self._backend.kill(worker.number)

    def close(self, grace_s: float) -> None:
        """End all workers, and the backend. They get ``grace_s`` seconds to free what their tasks hold."""
        for message in self._backend.close(grace_s):
            worker = self._by_number.get(message.worker)
            if isinstance(message, Said) and worker is not None:
                self._on_said(worker, message)
        for worker in self.workers.values():
            self._record.tell(WorkerExited, worker.slot, worker.name, "closed")
        self.workers.clear()
        self.waiting.clear()
        self._by_number.clear()

    def _name_of(self, number: int) -> str:
        worker = self._by_number.get(number)
        return worker.name if worker is not None else "a worker that is gone"

    def _forget(self, worker: Worker) -> None:
        there = self.waiting if self.waiting.get(worker.slot) is worker else self.workers
        del self._by_number[worker.number], there[worker.slot]

    # --- work -------------------------------------------------------------------------------------

    def load(self, worker: Worker, task: PreparedTask) -> None:
        """Have ``task`` built there: ``Driver.loaded``, ``refused`` or ``gone``."""
        worker.loading = task
        self._backend.load(worker.number, task)

    def unload(self, worker: Worker, task: PreparedTask) -> None:
        del worker.tasks[task.id]
        self._backend.unload(worker.number, task.id)

    def next_chunk(self) -> int:
        """A number that no other chunk has."""
        self._n_chunks += 1
        return self._n_chunks

    def send(
        self, worker: Worker, chunk: Any, task: PreparedTask, items: Sequence[Any], singly: bool = False
    ) -> int:
        """Have ``items`` run, after what was sent before: ``Driver.answered``, ``spoilt`` or ``gone``.

        chunk   the driver's own value for them, with a ``number`` from ``next_chunk``
        Returns the bytes that travel. Raises what pickling raises; nothing was sent then.
        """
        n_bytes = self._backend.send(worker.number, task.id, chunk.number, items, singly)
        worker.chunks.append(chunk)
        worker.n_in_chunk.append(len(items))
        return n_bytes or 0

    def drop(self, worker: Worker, chunk: Any) -> None:
        """Have ``chunk`` and those before it skipped, as far as they are not begun."""
        worker.last_dropped = max(worker.last_dropped, chunk.number)
        self._backend.drop(worker.number, chunk.number)

    def progress(self, worker: Worker) -> tuple[int, float]:
        """Position in the first chunk it holds, and seconds since it got there; see ``progress_cell``."""
        return self._backend.position(worker.number)

    def ask_stack(self, worker: Worker) -> None:
        """Have it say where its threads are; the lines come to ``worker.stack``, and are not recorded."""
        worker.stack = []
        self._backend.show_stack(worker.number)

    # --- news -------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None) -> None:
        """Wait for news, at most ``timeout_s`` seconds, and tell the driver."""
        for message in self._backend.poll(timeout_s):
            self._receive(message)
        self._give_up_late_starts(time.monotonic())

    def wake(self) -> None:
        """Make ``poll`` return soon; from any thread."""
        self._backend.wake()

    def _receive(self, message: Message) -> None:
        worker = self._by_number.get(message.worker)
        if worker is not None and self.waiting.get(worker.slot) is worker:
            if type(message) is Gone:
                self._forget(worker)
        elif worker is not None and not (worker.is_untrue and type(message) not in ALWAYS_HEARD):
            self._handlers[type(message)](worker, message)

    def _give_up_late_starts(self, now: float) -> None:
        for worker, how, is_over in self._starts.look(tuple(self.workers.values()), now):
            if not is_over:
                self._record.note("warning", f"{worker.slot}: its worker {how}")
                continue
            self.discard(worker, how)
            self._driver.gone(worker, Gone(worker.number, None, NOT_BEGUN, cause=how))

    def _on_up(self, worker: Worker, message: Up) -> None:
        worker.is_up = True
        worker.pid = message.pid

    def _on_untrue(self, worker: Worker, message: Untrue) -> None:
        """Kill a worker that sent what cannot be true: nothing it says can be trusted any more."""
        worker.is_untrue = True
        self.kill(worker, f"was killed as it sent {message.why}")

    def _end_for(self, worker: Worker, what: str) -> None:
        self._on_untrue(worker, Untrue(worker.number, f"{what} that nobody waits for"))

    def _on_loaded(self, worker: Worker, message: Loaded) -> None:
        if worker.loading is None or worker.loading.id != message.task:
            return self._end_for(worker, "news of a task")
        worker.tasks[message.task], worker.loading = worker.loading, None
        worker.startup_s = max(worker.startup_s, message.seconds)
        if not worker.is_ready:
            self._tell_ready(worker, message.seconds)
        self._driver.loaded(worker)

    def _tell_ready(self, worker: Worker, build_s: float) -> None:
        worker.is_ready, worker.startup_s = True, time.monotonic() - worker.asked_s
        build_s = min(build_s, worker.startup_s)
        known = (worker.name, worker.pid, worker.startup_s, build_s)
        self._record.tell(WorkerStarted, worker.slot, *known)

    def _on_refused(self, worker: Worker, message: TaskRefused) -> None:
        if worker.loading is None or worker.loading.id != message.task:
            return self._end_for(worker, "news of a task")
        task, worker.loading = worker.loading, None
        self._driver.refused(worker, task, message.failure)

    def _on_answered(self, worker: Worker, message: Answered) -> None:
        if not worker.is_at(message.chunk):
            return self._end_for(worker, "results")
        fault = message.answer.fault(worker.n_in_chunk[0])
        if fault:
            return self._on_untrue(worker, Untrue(worker.number, fault))
        if message.answer.skipped is not None and message.chunk > worker.last_dropped:
            # A task has written into the memory that says what to skip: it would skip all it gets.
            self.kill(worker, "was killed as it skipped items that it was to run")
        if worker.chunks[0] is worker.adopting:
            return self._on_adopted(worker, tuple(message.answer.failures.values()))
        worker.has_worked = True
        self._driver.answered(worker, worker.take_chunk(), message)

    def _on_spoilt(self, worker: Worker, message: Spoilt) -> None:
        if not worker.is_at(message.chunk):
            return self._end_for(worker, "results")
        if worker.chunks[0] is worker.adopting:
            return self._on_adopted(worker, (message.failure,))
        self._driver.spoilt(worker, worker.take_chunk(), message)

    def _on_adopted(self, worker: Worker, failures: Sequence[Failure]) -> None:
        """A worker that waited has heard of the task that it is to have."""
        worker.take_chunk()
        task, worker.loading = worker.loading, None
        assert task is not None
        for failure in failures:
            return self._driver.refused(worker, task, failure)
        self._tell_ready(worker, 0.0)
        return self._driver.loaded(worker)

    def _on_said(self, worker: Worker, message: Said) -> None:
        if worker.stack is not None and STACK_LINE.match(message.line):
            return worker.stack.append(message.line) if len(worker.stack) < MOST_STACK_LINES else None
        self._record.said(worker.slot, message.line)

    def _on_warned(self, worker: Worker, message: Warned) -> None:
        self._record.note("warning", message.text)

    def _on_gone(self, worker: Worker, message: Gone) -> None:
        self._forget(worker)
        if worker.is_untrue:  # nor what it says of where it is: it may have run all that it holds
            message = message._replace(position=PACKING)
        if worker.leave_by_s is not None and message.exit_code in (0, None):
            message = message._replace(cause="closed")
        elif worker.why_killed:
            message = message._replace(cause=worker.why_killed)
        worker.has_worked |= bool(worker.chunks) and message.position != NOT_BEGUN
        self._record.tell(WorkerExited, worker.slot, worker.name, message.reason)
        self._driver.gone(worker, message)


def _memories(device: Device, environment: Mapping[str, str]) -> set[str]:
    """Return the GPUs that a worker sees, or the device that it is for: whose memory it may have."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return set(visible.split(",")) if visible not in ("", "-1") else {device.id}
