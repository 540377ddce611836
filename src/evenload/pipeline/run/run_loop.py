"""The loop of a run: decide, send, receive. Joins the dispatcher with a back end's workers.

What came of the tasks is handed over once for each round of the loop, so that all of a round's results share
one wait for the disk.
"""

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, NoUsableDevice
from evenload.executor.backends import Backend
from evenload.executor.decide.record import Record
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Refused, Said, Spoilt, Up, Warned
from evenload.executor.task.prepare import Tasks
from evenload.executor.task.task import PreparedTask
from evenload.pipeline.dispatch.actions import Action, Load, Run, Start, Stop
from evenload.pipeline.dispatch.dispatcher import Dispatcher
from evenload.pipeline.dispatch.item_flow import Task
from evenload.pipeline.dispatch.worker_protocol import LOAD, RUN, WAIT, HostSpec, Job, Order, Outcome
from evenload.pipeline.plan import Fit
from evenload.pipeline.run.workers import Worker, group_environment
from evenload.pipeline.stage import StageSetup
from evenload.pipeline.worker.stage_host import StageHost

__all__ = ["Driver", "Ended"]

GRACE_S = 1.0
LONGEST_START_S = 300.0  # a worker that is not up by then is given up
POLL_S = 0.5  # at most, so that a drained device or a control file is seen soon


@dataclass(slots=True)
class Ended:
    """A task that is over: ``outcome`` has its outputs or its error, ``device`` the group that ran it."""

    task: Task
    outcome: Outcome
    device: str


class Driver:
    """Runs what the dispatcher decides on the workers of ``backend``.

    job_for     makes of a task what its stage is given
    park_bytes  host memory of a worker for models that wait there

    load_s, peak_bytes, batches, parked   what was seen of groups: seconds to load each stage, most memory,
                                          what became of batches, stages that waited in host memory
    """

    def __init__(
        self,
        backend: Backend,
        pool: DevicePool,
        dispatcher: Dispatcher,
        stages: Sequence[StageSetup],
        record: Record,
        job_for: Callable[[Task], Job],
        park_bytes: int = 0,
    ):
        self.dispatcher = dispatcher
        self.load_s: dict[str, dict[str, float]] = {}
        self.peak_bytes: dict[str, int] = {}
        self.batches: dict[str, dict[str, str]] = {}
        self.parked: dict[str, set[int]] = {}
        self.pool = pool
        self._backend, self._record = backend, record
        self._stages = tuple(stages)
        self._job_for, self._park_bytes = job_for, park_bytes
        self._tasks = Tasks()
        self._sendable: dict[int, PreparedTask] = {}
        self._workers: dict[int, Worker] = {}
        self._of_group: dict[str, Worker] = {}
        self._n_workers = self._n_chunks = 0
        self._ended: deque[Ended] = deque()

    def step(self, *, deals: bool = True, timeout_s: float | None = None) -> list[Ended]:
        """Send what can be sent, wait for news, take it in; returns the tasks that are over.

        Raises NoUsableDevice if tasks are left that no device can run.
        """
        now = time.monotonic()
        self._free_drained()
        actions = self._deal(now, deals)
        if deals and not actions and not self.dispatcher.n_running and not self._has_orders():
            self._refuse_if_stuck(now)
        if not self._ended:
            wait_s = self.dispatcher.wake_s(now)
            limits = [limit for limit in (wait_s, timeout_s, POLL_S) if limit is not None]
            for message in self._backend.poll(min(limits)):
                self._receive(message)
            self._look_at_starts(time.monotonic())
            if all(one.outcome.kind == "done" for one in self._ended):
                self._deal(time.monotonic(), deals)  # nobody waits while results are written
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _deal(self, now: float, deals: bool) -> list[Action]:
        actions = self.dispatcher.decide(now, deals=deals)
        for action in actions:
            self._do(action, now)
        self._wait_on_lanes()
        return actions

    @property
    def is_busy(self) -> bool:
        return bool(self.dispatcher.n_running)

    def active_devices(self) -> list[str]:
        """Devices that take work."""
        groups = [g for g in self.dispatcher.groups.values() if g.state != "lost" and not g.is_draining]
        return [device.id for device in self.pool if any(device.id in group.devices for group in groups)]

    def devices_there(self) -> list[str]:
        """Devices that take work, or could."""
        groups = self.dispatcher.groups.values()
        gone = {device for group in groups if group.state == "lost" for device in group.devices}
        return [one.id for one in self.pool if one.id not in gone | self.dispatcher.drained]

    def drain(self, devices: Sequence[str], at_once: bool) -> None:
        """See ``Fleet.drain``."""
        for device in devices:
            self.pool.device(device)
        left = [device for device in self.active_devices() if device not in devices]
        if not left:
            raise ConfigError(f"{', '.join(devices)} are all that works", hint="add another device first")
        for device in devices:
            self.dispatcher.drain(device)
        for worker in tuple(self._of_group.values()):
            if at_once and self.dispatcher.groups[worker.group].is_draining:
                self.dispatcher.restart(worker.group)
                self._stop(worker)

    def join(self, found: Sequence[Device]) -> None:
        """See ``Fleet.add``."""
        new = [device for device in found if device.id not in self.pool]
        if new:
            self.pool = DevicePool([*self.pool, *new], n_cores=self.pool.n_cores)
        for device in found:
            self.dispatcher.join(device.id)

    def _free_drained(self) -> None:
        """Workers of drained devices end when they have nothing left."""
        for worker in tuple(self._of_group.values()):
            group = self.dispatcher.groups[worker.group]
            if group.is_draining and not group.is_working:
                self.dispatcher.restart(worker.group)
                self._stop(worker)

    def close(self, grace_s: float = GRACE_S) -> None:
        for message in self._backend.close(grace_s):
            if isinstance(message, Said) and message.worker in self._workers:
                self._record.said(self._workers[message.worker].group, message.line)
        for worker in self._workers.values():
            self._record.worker_exited(worker.group, worker.name, "closed")
        self._workers.clear()
        self._of_group.clear()

    # --- decide -----------------------------------------------------------------------------------

    def _has_orders(self) -> bool:
        return any(not worker.is_up or worker.order is not None for worker in self._workers.values())

    def _refuse_if_stuck(self, now: float) -> None:
        stuck = self.dispatcher.why_stuck()
        if stuck is not None and self.dispatcher.wake_s(now) is None:
            stage, causes = stuck
            raise NoUsableDevice(f"no device can run stage {self._stages[stage].stage!r}", causes=causes)

    def _do(self, action: Action, now: float) -> None:
        if isinstance(action, Start):
            return self._start(action.group, now)
        worker = self._of_group[action.group]
        if isinstance(action, Stop):
            return self._stop(worker)
        if isinstance(action, Load):
            order = Order(LOAD, action.stage, action.fit, action.keep, action.later)
            self._idle(worker, now, f"nothing was ready before {self._stages[action.stage].stage}")
            return self._send(worker, order)
        assert isinstance(action, Run)
        self._idle(worker, now, "nothing was ready")
        jobs = tuple(map(self._job_for, action.tasks))
        self._send(worker, Order(RUN, action.tasks[0].stage, jobs=jobs))

    def _look_at_starts(self, now: float) -> None:
        for worker in tuple(self._workers.values()):
            if not worker.is_up and now - worker.asked_s > LONGEST_START_S:
                self._on_lost(worker, f"was not up after {LONGEST_START_S:.0f} s")
                self._backend.kill(worker.number)

    def _idle(self, worker: Worker, now: float, why: str) -> None:
        if worker.idle_since_s is not None:
            self._record.idle(worker.group, worker.idle_since_s, now, why)
            worker.idle_since_s = None

    def _wait_on_lanes(self) -> None:
        """A worker whose lanes all run, or that gets no more, is asked for what is over next."""
        for worker in self._of_group.values():
            if worker.order is None and worker.is_up:
                group = self.dispatcher.groups[worker.group]
                if group.running or group.saving:
                    group.is_ordered = True
                    self._send(worker, Order(WAIT))

    # --- send -------------------------------------------------------------------------------------

    def _start(self, group_id: str, now: float) -> None:
        group = self.dispatcher.groups[group_id]
        self._n_workers += 1
        worker = Worker(self._n_workers, f"{group_id}/{self._n_workers}", group_id, now)
        self._workers[worker.number] = self._of_group[group_id] = worker
        environment = group_environment(self.pool, group.devices)
        try:
            self._backend.start(worker.number, self.pool.device(group.devices[0]), self.pool, environment)
            self._backend.load(worker.number, self._host_for(len(group.devices)))
        except OSError as error:
            del self._workers[worker.number], self._of_group[group_id]
            self.dispatcher.lost(group_id, now, f"could not be started: {error}")

    def _host_for(self, n_devices: int) -> PreparedTask:
        if n_devices not in self._sendable:
            spec = HostSpec(self._stages, n_devices, self._park_bytes)
            host = functools.partial(StageHost, spec)
            self._sendable[n_devices] = self._tasks.prepare(host, sends=self._backend.is_threaded)
        return self._sendable[n_devices]

    def _send(self, worker: Worker, order: Order) -> None:
        self._n_chunks += 1
        worker.order = order
        task = self._host_for(len(self.dispatcher.groups[worker.group].devices))
        self._backend.run(worker.number, task.id, self._n_chunks, [order], False)

    def _stop(self, worker: Worker) -> None:
        """What it has is on disk, so that there is nothing to wait for."""
        self._idle(worker, time.monotonic(), "its devices were wanted elsewhere")
        self._forget(worker)
        self._record.worker_exited(worker.group, worker.name, "closed")
        self._backend.kill(worker.number)

    def _forget(self, worker: Worker) -> None:
        self._workers.pop(worker.number, None)
        if self._of_group.get(worker.group) is worker:
            del self._of_group[worker.group]

    # --- receive ----------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        worker = self._workers.get(message.worker)
        if worker is None:
            return
        if isinstance(message, Answered):
            self._on_answer(worker, message)
        elif isinstance(message, Up):
            worker.pid = message.pid
        elif isinstance(message, Loaded):
            self._on_loaded(worker)
        elif isinstance(message, Refused):
            self._on_lost(worker, message.failure.summary)
            self._backend.kill(worker.number)
        elif isinstance(message, Spoilt):
            self._on_spoilt(worker, message)
        elif isinstance(message, Said):
            self._record.said(worker.group, message.line)
        elif isinstance(message, Warned):
            self._record.note("warning", f"{worker.group}: {message.text}")
        elif isinstance(message, Gone):
            self._on_lost(worker, message.reason, message.last_words)

    def _on_loaded(self, worker: Worker) -> None:
        now = time.monotonic()
        worker.is_up = True
        worker.idle_since_s = now
        self._record.worker_started(worker.group, worker.name, worker.pid, now - worker.asked_s)
        self.dispatcher.up(worker.group)

    def _on_answer(self, worker: Worker, message: Answered) -> None:
        order, worker.order = worker.order, None
        assert order is not None
        if worker.idle_since_s is None or self.dispatcher.groups[worker.group].running:
            worker.idle_since_s = time.monotonic()  # an answer to ``wait`` ends no rest
        self.dispatcher.answered(worker.group)
        for failure in message.answer.failures.values():  # not the stage's exception: that is an outcome
            self._unanswered(worker, order, (failure.type_name, failure.message, failure.traceback))
        for outcomes in message.answer.values:
            for outcome in outcomes or ():
                self._take(worker, outcome, order.fit)

    def _unanswered(self, worker: Worker, order: Order, error: tuple[str, str, str]) -> None:
        if order.kind == LOAD:
            self._take(worker, Outcome("refused", order.stage, error=error))
        for job in order.jobs:
            self._take(worker, Outcome("failed", order.stage, job.task, error=error))

    def _take(self, worker: Worker, outcome: Outcome, fit: Fit | None = None) -> None:
        group, name = worker.group, self._stages[outcome.stage].stage
        if outcome.peak_bytes is not None:
            self.peak_bytes[group] = max(self.peak_bytes.get(group, 0), outcome.peak_bytes)
        if outcome.task is None:
            self._on_load_outcome(worker, outcome, fit or Fit())
        elif outcome.kind == "made":
            self.dispatcher.made(group, outcome.task, outcome.stop_s - outcome.start_s)
        elif outcome.kind == "again":
            self.dispatcher.again(group, outcome.task)
        elif outcome.kind == "memory":
            tried = self.dispatcher.out_of_memory(group, outcome.task)
            if tried is None:
                self._end(worker, outcome)
            else:
                self._record.note("warning", f"{group}: no memory for an item of {name}; trying {tried}")
        else:
            self._end(worker, outcome)
        if outcome.task is not None and outcome.how:
            self._on_batch(group, outcome.stage, outcome.how)

    def _on_batch(self, group: str, stage: int, how: str) -> None:
        """What a worker says of the first batch of a stage."""
        name = self._stages[stage].stage
        self.batches.setdefault(name, {})[group] = how
        if how.startswith("equal"):
            text = f"{group}: a batch of {name} gives the bytes of single items: {how}"
            return self._record.note("info", text)
        self.dispatcher.one_by_one(group, stage)
        why = "it has no method batch" if how == "refused" else "a batch gives other bytes than single items"
        self._record.note("warning", f"{group}: {name} is done one by one: {why}")

    def _on_load_outcome(self, worker: Worker, outcome: Outcome, fit: Fit) -> None:
        name, seconds = self._stages[outcome.stage].stage, outcome.stop_s - outcome.start_s
        if outcome.kind == "loaded":
            is_read = outcome.how == "read"
            if is_read:
                self.load_s.setdefault(worker.group, {})[name] = seconds
            if outcome.parked:
                self.parked.setdefault(worker.group, set()).update(outcome.parked)
            back = f"brings {name} back from host memory" if outcome.how == "unparked" else f"has {name}"
            why = f"loads {name}" if is_read else back
            self._record.idle(worker.group, outcome.start_s, outcome.stop_s, why)
            self.dispatcher.loaded(
                worker.group, outcome.stage, fit, seconds if is_read else None, outcome.parked
            )
            if outcome.must_replace:
                self._replace(worker)
            return
        kind, text, _ = outcome.error
        lower = self.dispatcher.smaller_fit(worker.group, outcome.stage) if outcome.kind == "memory" else None
        if lower is not None:
            return self._record.note("warning", f"{worker.group}: no memory to load {name}; trying {lower}")
        self._record.note("warning", f"{worker.group} takes no part in {name}: {kind}: {text}")
        self.dispatcher.refused(worker.group, outcome.stage, f"{kind}: {text}")

    def _replace(self, worker: Worker) -> None:
        self._record.note("warning", f"{worker.group}: memory did not come back; a new worker takes over")
        self._forget(worker)
        self._record.worker_exited(worker.group, worker.name, "replaced: memory did not come back")
        self.dispatcher.restart(worker.group)
        self._backend.kill(worker.number)

    def _end(self, worker: Worker, outcome: Outcome) -> None:
        assert outcome.task is not None
        seconds = outcome.stop_s - outcome.start_s
        is_told = outcome.task in self.dispatcher.groups[worker.group].saving
        is_measured = outcome.kind == "done" and seconds > 0 and not is_told
        self.dispatcher.ended(worker.group, outcome.task, seconds if is_measured else None)
        if seconds > 0:
            status = "ok" if outcome.kind == "done" else "failed"
            self._span(worker, outcome.task, outcome.start_s, outcome.stop_s, status)
        self._ended.append(Ended(outcome.task, outcome, worker.group))

    def _span(self, worker: Worker, task: Task, start_s: float, stop_s: float, status: str) -> None:
        self._record.span(
            self._stages[task.stage].stage, worker.group, worker.name, (task.strand,), start_s, stop_s,
            stop_s - start_s if status != "lost" else 0.0, status, "", start_s, False,
        )  # fmt: skip

    def _on_spoilt(self, worker: Worker, message: Spoilt) -> None:
        """The order could not be read there, or its answer here."""
        order, worker.order = worker.order, None
        assert order is not None
        self.dispatcher.answered(worker.group)
        failure = message.failure
        self._unanswered(worker, order, (failure.type_name, failure.message, failure.traceback))

    def _on_lost(self, worker: Worker, reason: str, last_words: str = "") -> None:
        now = time.monotonic()
        self._forget(worker)
        self._record.worker_exited(worker.group, worker.name, reason)
        group = self.dispatcher.groups[worker.group]
        for task, since_s in group.running.items():
            self._span(worker, task, since_s, now, "lost")
        if group.running:
            self._record.note("info", f"worker {worker.name} {reason}; a new one is started")
        said = last_words.strip().rpartition("\n")[2]
        given_up = self.dispatcher.lost(worker.group, now, reason + (f", saying: {said}" if said else ""))
        for task in given_up:
            text = f"the item was given up: every worker that ran it {reason}"
            outcome = Outcome("failed", task.stage, task, error=("WorkerLost", text, last_words))
            self._ended.append(Ended(task, outcome, worker.group))
