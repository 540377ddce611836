"""Runs what the dispatcher decides on the workers of a supervisor.

    dispatcher ──► actions ──► StageDriver ──► supervisor's workers (each with a ``StageHost``)
    dispatcher, record, ended tasks ◄── OutcomeReader ◄── answers

What came of the tasks is handed over once for each round of the loop, so that all of a round's results share
one wait for the disk.
"""

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, NoUsableDevice, quoted, reason_of
from evenload.events import Batched
from evenload.executor.decide.record import Record
from evenload.executor.supervisor.back_off import saying
from evenload.executor.supervisor.group_environment import group_environment
from evenload.executor.supervisor.start_watch import StartLimits
from evenload.executor.supervisor.supervisor import GRACE_S, Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Spoilt
from evenload.executor.task.prepare import Tasks
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import NOT_BEGUN
from evenload.pipeline.dispatch.device_group import Action, LoadStage, RunTasks, StartWorker, StopWorker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker, HangWatch
from evenload.pipeline.dispatch.item_flow import STOPPED
from evenload.pipeline.dispatch.worker_protocol import (
    ADOPT,
    KEYS,
    LOAD,
    RUN,
    WAIT,
    HostSpec,
    Order,
    OrderOutcome,
)
from evenload.pipeline.plan import Fit
from evenload.pipeline.run.machines.fleet import RunFleet
from evenload.pipeline.run.machines.remote_workers import RemoteWorkers
from evenload.pipeline.run.outcome_check import OutcomeCheck
from evenload.pipeline.run.outcome_reader import EndedTask, OutcomeReader
from evenload.pipeline.run.stage_inputs import RunContext, StageInputs, stage_setups
from evenload.pipeline.run.workers.slow_workers import SlowWorkers
from evenload.pipeline.site import SiteReport
from evenload.pipeline.worker.stage_host import StageHost

LONGEST_START_S = 300.0  # a worker that is not up by then is given up
START_LIMITS = StartLimits(up_s=LONGEST_START_S, build_s=LONGEST_START_S, most_s=LONGEST_START_S)
REPLACED_S = 10.0  # others may come by then for devices that left
POLL_S = 0.5  # at most, so that a drained device or a control file is seen soon


@dataclass(frozen=True, slots=True)
class _SentOrder:
    """An order that a worker has not answered."""

    number: int
    order: Order


class StageDriver:
    """The driver of a run's workers, each of which holds stages on a group of devices.

    pool        every device that has ever taken part
    inputs      makes of a task what its stage is given
    watch       who takes too long
    park_bytes  host memory of a worker for models that wait there
    outcomes    what was seen of the groups
    """

    def __init__(
        self,
        context: RunContext,
        inputs: StageInputs,
        dispatcher: GroupScheduler,
        fleet: RunFleet,
        watch: HangWatch,
        park_bytes: int,
    ):
        record, stages = Record(context.log), stage_setups(context)
        backend = fleet.take_backend()  # from now on it is closed here
        self.pool = fleet.pool
        self.outcomes = OutcomeReader(dispatcher, stages, record)
        self._dispatcher, self._record, self._stages = dispatcher, record, tuple(stages)
        self._inputs, self._park_bytes, self._kept = inputs, park_bytes, fleet.kept
        self._supervisor = (
            Supervisor(backend, record, self, limits=START_LIMITS)
            if self._kept is None
            else self._kept.supervisor(record, self, START_LIMITS)
        )
        self._slow = SlowWorkers(
            watch, self._supervisor, dispatcher, record, inputs.name_of, context.shortest_limit_s
        )
        self._remote: RemoteWorkers | None = None  # all workers are on this machine
        if fleet.machines is not None:
            folder, limit = context.run_folder.path, context.spec.backend.file_limit
            self._remote = RemoteWorkers(stages, folder, record, inputs.place_of, backend.wake, limit)
        self._check = OutcomeCheck(stages, inputs.place_of, is_remote=self._remote is not None)
        self._sends = backend.is_threaded
        self._tasks = Tasks()
        self._hosts: dict[int, PreparedTask] = {}
        self._idle_since_s: dict[str, float] = {}
        self._patient_until_s = 0.0

    def step(self, *, deals: bool, seeks_plan: Callable[[str], bool]) -> list[EndedTask]:
        """Send what can be sent, wait for news, take it in; returns the tasks that are over.

        Raises NoUsableDevice if no device can run a task and ``seeks_plan(why)`` says no plan is sought.
        """
        now = time.monotonic()
        self._stop_drained()
        actions = self._deal(now, deals)
        if deals and not actions and not self._dispatcher.n_running and not self._is_awaiting():
            self._refuse_if_stuck(now, seeks_plan)
        self._take_fetched()
        if not self.outcomes.ended:
            wait_s = self._dispatcher.wake_s(now)
            most_s = min(POLL_S, self._slow.poll_s)
            self._supervisor.poll(most_s if wait_s is None else min(wait_s, most_s))
            self._take_fetched()
            for worker, order, stack in self._slow.look(time.monotonic()):
                self._end(worker, order, stack)
            if all(one.outcome.kind == "done" for one in self.outcomes.ended):
                self._deal(time.monotonic(), deals)  # nobody waits while results are written
        return self.outcomes.take_ended()

    @property
    def is_busy(self) -> bool:
        return bool(self._dispatcher.n_running)

    def wake(self) -> None:
        """Make ``step`` return soon; from any thread."""
        self._supervisor.wake()

    def close(self) -> None:
        try:
            for worker in self._supervisor.workers.values():
                self.outcomes.superseded(worker)
            if self._kept is None:
                self._supervisor.close(GRACE_S)
            else:
                self._kept.give_back([group for group in self._supervisor.workers if self._is_through(group)])
        finally:
            if self._remote is not None:
                self._remote.close()

    def _is_through(self, group: str) -> bool:
        """Whether nothing of its tasks may still be computed, or be on its way to the disk."""
        held = self._dispatcher.groups[group]
        return not (held.running or held.saving or held.n_unbegun)

    def _end(self, worker: Worker, order: EndWorker, stack: str = "") -> None:
        self._supervisor.discard(worker, order.why)
        self._slow.tell_end(worker, order, stack)
        self._forget(worker)
        self.outcomes.ended_slow(worker, order, stack)

    def give_up(self, strands: Collection[int]) -> None:
        """End the tasks of ``strands``, those that run with their workers; others there are dealt again."""
        self.outcomes.given_up(self._dispatcher.withdraw(strands))
        for group, worker in tuple(self._supervisor.workers.items()):
            held = self._dispatcher.groups[group]
            tasks = tuple(t for t in (*held.running, *held.unbegun) if t.strand in strands)
            if tasks:
                self._end(worker, EndWorker(group, "was killed: its item was stopped", tasks, error=STOPPED))

    # --- devices that come and go -----------------------------------------------------------------

    def active_devices(self) -> list[str]:
        """Devices that take work."""
        active = self._dispatcher.active_devices()
        return [device.id for device in self.pool if device.id in active]

    def devices_there(self) -> list[str]:
        """Devices that take work, or could."""
        gone = self._dispatcher.lost_devices() | self._dispatcher.drained
        return [device.id for device in self.pool if device.id not in gone]

    def drain(self, devices: Sequence[str], at_once: bool) -> None:
        """See ``DeviceChanges.drain``."""
        for device in devices:
            self.pool.device(device)
        left = [device for device in self.active_devices() if device not in devices]
        if not left:
            raise ConfigError(f"{', '.join(devices)} are all that works", hint="add another device first")
        self._refuse_if_last(devices, left)
        for device in devices:
            self._dispatcher.drain(device)
        if at_once:
            self._stop_drained(at_once=True)

    def _refuse_if_last(self, devices: Sequence[str], left: Sequence[str]) -> None:
        """Raise ConfigError if a stage with work may run on none of the devices that are ``left``."""
        fleet = self._dispatcher
        groups = [group for group in fleet.groups.values() if set(group.devices) <= set(left)]
        for stage, name in enumerate(fleet.stages):
            if not fleet.is_over(stage) and all(stage in group.barred for group in groups):
                text = f"{', '.join(devices)}: stage {quoted(name)} may run on no other device (`devices`)"
                raise ConfigError(text, hint="wait until the stage is over")

    def join(self, found: Sequence[Device], barred: Mapping[str, Collection[int]]) -> None:
        """See ``DeviceChanges.add``. ``barred``: device -> stages that may not run on it."""
        known = {device.id: device for device in self.pool}
        if any(known.get(device.id) != device for device in found):
            devices = known | {device.id: device for device in found}
            self.pool = DevicePool(list(devices.values()), n_cores=self.pool.n_cores)
        for device in found:
            self._dispatcher.join(device.id, barred.get(device.id, ()))

    def leave(self, devices: Collection[str], why: str) -> None:
        """Run elsewhere what devices ran that are gone. ``why``: said after "the worker" and "it"."""
        for group, worker in tuple(self._supervisor.workers.items()):
            if not set(devices).isdisjoint(self._dispatcher.groups[group].devices):
                self._lose(worker, why, is_cut_off=True)
        for device in devices:
            self._dispatcher.leave(device, f"it {why}")
        self._patient_until_s = time.monotonic() + REPLACED_S

    def _stop_drained(self, *, at_once: bool = False) -> None:
        """Workers of drained devices end when they have nothing left, or ``at_once``."""
        for group in self._dispatcher.draining(with_work=at_once):
            if group in self._supervisor.workers:
                given_up = self._dispatcher.restart(group)
                self.outcomes.not_again(given_up, group, "was ended with its device")
                self._stop(group)

    # --- decide -----------------------------------------------------------------------------------

    def _deal(self, now: float, deals: bool) -> list[Action]:
        actions = self._dispatcher.decide(now, deals=deals)
        for action in actions:
            self._do(action, now)
        for group, worker in self._supervisor.workers.items():
            if worker.is_ready and not worker.chunks and self._dispatcher.awaits_lanes(group):
                self._send(worker, Order(WAIT))
        return actions

    def _is_awaiting(self) -> bool:
        """Is there a worker that has something to say?"""
        return any(worker.chunks or not worker.is_ready for worker in self._supervisor.workers.values())

    def _refuse_if_stuck(self, now: float, seeks_plan: Callable[[str], bool]) -> None:
        stuck = self._dispatcher.why_stuck() if self._dispatcher.wake_s(now) is None else None
        if stuck is not None:
            why = f"no device can run stage {quoted(self._stages[stuck[0]].stage)}"
            if not seeks_plan(why) and now >= self._patient_until_s:
                raise NoUsableDevice(why, causes=stuck[1])

    def _do(self, action: Action, now: float) -> None:
        if isinstance(action, StartWorker):
            return self._start(action.group)
        if isinstance(action, StopWorker):
            return self._stop(action.group)
        worker = self._supervisor.workers[action.group]
        if isinstance(action, LoadStage):
            self._end_idle(action.group, now, f"nothing was ready before {self._stages[action.stage].stage}")
            return self._send(worker, Order(LOAD, action.stage, action.fit, action.keep, action.later))
        assert isinstance(action, RunTasks)
        self._end_idle(action.group, now, "nothing was ready")
        inputs = tuple(map(self._inputs.of, action.tasks))
        if action.tasks[0].stage in self._dispatcher.copies.stages:
            inputs = tuple(one._replace(staged=worker.number) for one in inputs)
        if self._remote is not None:
            inputs = tuple(self._remote.inputs_for(worker, one) for one in inputs)
        stage, kind = action.tasks[0].stage, KEYS if action.asks else RUN
        if action.most > 1 and not action.asks:
            name = self._stages[stage].stage
            self._record.tell(Batched, name, action.group, len(action.tasks), action.most)
        return self._send(worker, Order(kind, stage, inputs=inputs, key=action.key or ""))

    def _end_idle(self, group: str, now: float, why: str) -> None:
        since_s = self._idle_since_s.pop(group, None)
        if since_s is not None:
            self._record.idle(group, since_s, now, why)

    # --- send -------------------------------------------------------------------------------------

    def _start(self, group: str) -> None:
        devices = self._dispatcher.groups[group].devices
        environment = group_environment(self.pool, devices)
        worker = self._supervisor.start(group, self.pool.device(devices[0]), self.pool, environment)
        if worker is None:
            return
        spec = HostSpec(self._stages, len(devices), self._park_bytes)
        if len(devices) not in self._hosts:
            self._hosts[len(devices)] = self._tasks.prepare(
                functools.partial(StageHost, spec), sends=self._sends
            )
        host = self._hosts[len(devices)]
        if worker.tasks:
            order = _SentOrder(self._supervisor.next_chunk(), Order(ADOPT, spec=spec))
            self._supervisor.adopt(worker, order, host, order.order)
        else:
            self._supervisor.load(worker, host)

    def _send(self, worker: Worker, order: Order) -> None:
        (task,) = worker.tasks.values()
        self._supervisor.send(worker, _SentOrder(self._supervisor.next_chunk(), order), task, [order])

    def _stop(self, group: str) -> None:
        """Stop the worker at once; its results are saved already."""
        self._end_idle(group, time.monotonic(), "its devices were wanted elsewhere")
        worker = self._supervisor.workers[group]
        self._forget(worker)
        self._supervisor.discard(worker, "closed")

    # --- what the supervisor tells ----------------------------------------------------------------

    def loaded(self, worker: Worker) -> None:
        self._idle_since_s[worker.slot] = time.monotonic()
        if self._remote is None:
            self._dispatcher.up(worker.slot)
        else:
            self._send(worker, self._remote.greeting(worker))

    def refused(self, worker: Worker, task: PreparedTask, failure: Failure) -> None:
        self._lose(worker, failure.summary)

    def answered(self, worker: Worker, chunk: _SentOrder, message: Answered) -> None:
        if fault := self._check.fault_of(message.answer, chunk.order, self._dispatcher.groups[worker.slot]):
            return self._lose(worker, f"was killed as it sent {fault}")
        now = time.monotonic()
        is_rest = worker.slot in self._idle_since_s and not self._dispatcher.running_on(worker.slot)
        if not worker.chunks and not is_rest:  # an answer to ``wait`` ends no rest
            self._idle_since_s[worker.slot] = now
        self._dispatcher.answered(worker.slot, now)
        must_replace = ""
        for failure in message.answer.failures.values():  # not the stage's exception: that is an outcome
            self.outcomes.unanswered(worker, chunk.order, failure)
        for outcomes in message.answer.values if not message.answer.failures else ():
            for outcome in outcomes:
                if self._take(worker, outcome, chunk.order.fit, message.answer.stop_s):
                    is_load = outcome.task is None
                    must_replace = "memory did not come back" if is_load else "an item could not be ended"
        if must_replace:
            self._replace(worker, must_replace)

    def _lose(self, worker: Worker, why: str, *, is_cut_off: bool = False) -> None:
        """End the worker now: what it ran is run elsewhere. ``why``: in words after "the worker"."""
        self._supervisor.discard(worker, why)
        self.gone(worker, Gone(worker.number, None, NOT_BEGUN, cause=why, is_cut_off=is_cut_off))

    def _take(self, worker: Worker, outcome: OrderOutcome, fit: Fit, answered_s: float) -> bool:
        """Take in one outcome; returns True if the worker must be replaced."""
        if self._remote is None:
            return self.outcomes.take(worker, outcome, fit)
        if outcome.site is not None:
            self._meet(worker, self._remote, outcome.site)
            return False
        if outcome.kind == "lacks":
            outcome.kind = "again"  # it gets its files when it is dealt again
            if not self._remote.must_give(worker):
                self._refuse(worker, {outcome.stage: "its machine does not see files of the items"})
        here = self._remote.take(worker, outcome, answered_s, self._dispatcher.groups[worker.slot].has)
        return here is not None and self.outcomes.take(worker, here, fit)

    def _meet(self, worker: Worker, remote: RemoteWorkers, report: SiteReport) -> None:
        """A worker says what its machine has: give it what it lacks, or let it begin."""
        try:
            more = remote.meet(worker, report)
        except (ConfigError, OSError) as error:
            self._refuse(worker, {at: reason_of(error, with_path=True) for at in range(len(self._stages))})
        else:
            if more is not None:
                return self._send(worker, more)
            self._refuse(worker, remote.lacks(worker))
        return self._dispatcher.up(worker.slot)

    def _refuse(self, worker: Worker, stages: Mapping[int, str]) -> None:
        for stage, why in stages.items():
            name = self._stages[stage].stage
            self._record.note("warning", f"{worker.slot} takes no part in {name}: {why}")
            self._dispatcher.refused(worker.slot, stage, why)

    def _take_fetched(self) -> None:
        """Take in what is over because its files have arrived."""
        workers = {worker.number: worker for worker in self._supervisor.workers.values()}
        for number, outcome in self._remote.done() if self._remote is not None else ():
            if number in workers:
                self.outcomes.take(workers[number], outcome, Fit())

    def _forget(self, worker: Worker) -> None:
        self._idle_since_s.pop(worker.slot, None)
        self._slow.gone(worker.slot)
        if self._remote is not None:
            self._remote.forget(worker)

    def spoilt(self, worker: Worker, chunk: _SentOrder, message: Spoilt) -> None:
        """The order could not be read there, or its answer here: nobody knows then what is over."""
        if message.is_run:
            return self._lose(worker, f"was killed as it sent what cannot be read: {message.failure.summary}")
        self._dispatcher.answered(worker.slot, time.monotonic())
        self.outcomes.unanswered(worker, chunk.order, message.failure)

    def gone(self, worker: Worker, message: Gone) -> None:
        self._forget(worker)
        self.outcomes.worker_gone(worker, message, saying(message.last_words))

    def _replace(self, worker: Worker, why: str) -> None:
        self._record.note("warning", f"{worker.slot}: {why}; a new worker takes over")
        self._forget(worker)
        self._supervisor.discard(worker, f"replaced: {why}")
        given_up = self._dispatcher.restart(worker.slot)
        self.outcomes.not_again(given_up, worker.slot, f"was replaced as {why}")
