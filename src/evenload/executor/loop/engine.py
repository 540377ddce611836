"""The loop: receive, decide, send. Drives workers (a supervisor) on devices (a membership) for runs.

One thread owns everything here. Others talk to it by ``call``, which runs a function in that thread.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from evenload.balance.policy import Policy
from evenload.devices import Device, DevicePool
from evenload.devices.fork_guard import ForkGuard
from evenload.errors import ExecutorClosed
from evenload.events import Queued
from evenload.executor.backends import Backend
from evenload.executor.decide.record import Record
from evenload.executor.loop.chunk_sender import ChunkSender
from evenload.executor.loop.membership import DeviceSlot, Membership
from evenload.executor.loop.watchdog import Watchdog
from evenload.executor.run.calls import CallSource
from evenload.executor.run.run import Run, Sent
from evenload.executor.supervisor.call_queue import CallQueue
from evenload.executor.supervisor.reading_watch import LOOK_S, ReadingWatch
from evenload.executor.supervisor.supervisor import GRACE_S, Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Spoilt
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import QUEUED

TICK_S = 0.05  # how often a load balancer may look at its queues
TELL_S = 0.5  # at least so long from one word on what waits to the next
KEEP_S = 30.0  # for a journal to keep what is finished


class RunEngine:
    """The loop of an executor, and the driver of its workers. ``step`` does what is due, once.

    ``step`` is called from a thread of its own, or (inline) by whoever waits. Runs that are not over are in
    ``runs``.
    """

    def __init__(self, pool: DevicePool, backend: Backend, record: Record):
        self.backend = backend
        self.runs: list[Run] = []
        self.is_closed = False
        self.is_paused = False
        self._record = record
        # In a thread of its own, whatever a user's code raises (SystemExit, say) ends its run only.
        self._faults = BaseException if backend.is_threaded else Exception
        self._supervisor = Supervisor(backend, record, self)
        self._calls = CallQueue(self._supervisor.wake)
        self._membership = Membership(pool, self._supervisor, record)
        self._watchdog = Watchdog(self._supervisor, record)
        self._sender = ChunkSender(
            self._membership, self._supervisor, self._watchdog, record, self.end, self._faults
        )
        self._told_s = -math.inf

    # --- from any thread --------------------------------------------------------------------------

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called in the engine's thread; see ``CallQueue.call``."""
        self._calls.call(function)

    def wake(self) -> None:
        self._calls.wake()

    @property
    def reading(self) -> ReadingWatch:
        """Says whose results hold up the engine's thread."""
        return self._supervisor.reading

    @property
    def ceilings(self) -> dict[tuple[int, str], int]:
        """Batches that fit, by task and device."""
        return self._sender.ceilings

    # --- the engine's own thread ------------------------------------------------------------------

    def start_workers(self) -> None:
        if not self.is_closed:
            self._membership.start_workers()

    def begin(self, run: Run) -> None:
        if self.is_closed:
            return run.end(ExecutorClosed("the executor is closed", hint="make a new one"))
        self._membership.enter(run)
        self.runs.append(run)
        try:
            run.begin(on_broken=partial(self.end, run))
        except self._faults as error:
            self.end(run, error)

    def end(self, run: Run, error: BaseException | None = None) -> None:
        """End ``run`` and nothing else: nobody wants more of it, or its policy, say, has this ``error``."""
        run.end(error)
        self._forget(run)

    def add(self, devices: Sequence[Device]) -> None:
        """Let devices take part from now on."""
        self._membership.add(devices, self.runs)

    def drain(self, ids: Sequence[str], at_once: bool) -> None:
        """Let devices take part no more; see ``Executor.drain``."""
        self._membership.drain(ids, tuple(self.runs), at_once, "it was drained")

    def lose(self, ids: Sequence[str]) -> None:
        """Replace no worker of these devices: their machine has left the cluster."""
        self._record.note("warning", f"{', '.join(ids)}: lost with the machine, which has left the cluster")
        self._membership.drain(ids, tuple(self.runs), True, "its machine has left the cluster")

    def pause(self, on: bool) -> None:
        """Deal nothing more until it is switched off again; what runs comes to its end."""
        self.is_paused = on

    def set_policy(self, run: Run | None, policy: Policy) -> None:
        """For ``run``, or for all."""
        now = time.monotonic()
        for one in tuple(self.runs) if run is None else [run]:
            if not one.options.is_policy_fixed and not one.is_over:
                try:
                    one.set_policy(policy, now)
                except self._faults as error:  # it does not fit this run
                    self.end(one, error)

    def set_balancing(self, run: Run | None, on: bool) -> None:
        """For ``run``, or for all."""
        for one in self.runs if run is None else [run]:
            one.set_balancing(on)

    def step(self, timeout_s: float | None = None) -> None:
        """Send what can be sent, then wait for news and take it in."""
        self._calls.run_waiting()
        if self.is_closed:
            return
        wait_s = self._serve(time.monotonic())
        if self._calls:
            wait_s = 0.0
        if timeout_s is not None:
            wait_s = timeout_s if wait_s is None else min(wait_s, timeout_s)
        self._supervisor.poll(wait_s)

    def close(self, grace_s: float) -> None:
        """Stop everything. Runs that are not over end with ExecutorClosed.

        Workers get ``grace_s`` seconds to let their tasks free what they hold.
        """
        if not self._calls.close():
            return
        self.is_closed = True
        for run in tuple(self.runs):
            self.end(run, ExecutorClosed("the executor was closed while this ran"))
        for worker in tuple(self._supervisor.workers.values()):
            if worker.chunks and all(chunk.run.is_done for chunk in worker.chunks):
                self._supervisor.kill(worker)  # copies that came second: nobody waits for them
        self._supervisor.close(grace_s)
        self._calls.run_last()

    # --- decide and send --------------------------------------------------------------------------

    def _serve(self, now: float) -> float | None:
        """Feed the runs and the idle devices. Returns for how long there may be nothing to do."""
        sender, membership = self._sender, self._membership
        leave_s = membership.dismiss_leaving(now)
        sender.begin_round(leave_s)
        if not self.runs:
            return None if leave_s is None else leave_s - now
        self._feed(now)
        if self._record.listens and now - self._told_s >= TELL_S:
            self._tell_queues(now)
        membership.staff(self.runs, now)
        membership.exclude_useless(self.runs, now)
        if not self.is_paused:
            self._deal(now)
        self._end_runs()
        return self._patience(now)

    def _feed(self, now: float) -> None:
        for run in tuple(self.runs):
            try:
                run.feed()
                if run.has_balancer:
                    run.balance(now)
                    self._sender.ask_again_by(now + TICK_S)
            except self._faults as error:
                self.end(run, error)

    def _deal(self, now: float) -> None:
        """Give every idle device a chunk, and those one in advance whose chunks are tiny."""
        slots, workers = self._membership.slots, self._supervisor.workers
        idle = [device for device in slots if device in workers and workers[device].may_work]
        if len(idle) > 1 and self.runs:
            idle = self.runs[0].fastest_first(idle)
        for device in idle:
            served = self._sender.serve(slots[device], workers[device], tuple(self.runs), now)
            self._give_others_a_turn(served)
        if self.backend.is_threaded:
            for slot, worker in self._membership.with_workers():
                if len(worker.chunks) == 1 and worker.chunks[0].is_tiny and worker.loading is None:
                    served = self._sender.serve_ahead(slot, worker, tuple(self.runs), now)
                    self._give_others_a_turn(served)

    def _give_others_a_turn(self, run: Run | None) -> None:
        if run is not None and len(self.runs) > 1:
            self.runs.remove(run)
            self.runs.append(run)

    def _end_runs(self) -> None:
        for run in tuple(self.runs):
            try:
                if run.is_finished:
                    run.end(run.source.error)
                elif run.is_stopping and not self._sender.n_running(run):
                    run.end_early()
                if run.is_over:
                    self._forget(run)
            except self._faults as error:
                self.end(run, error)

    def _tell_queues(self, now: float) -> None:
        self._told_s = now
        for run in self.runs:
            running = self._sender.items_running(run)
            self._record.tell(Queued, run.options.stage, run.n_waiting, running, run.queued())

    def _forget(self, run: Run) -> None:
        """``run`` is over: whoever still works for it may stop, and devices rest no longer because of it."""
        now = time.monotonic()
        if run in self.runs:
            self.runs.remove(run)
        if not self.runs:
            for slot in self._membership.slots.values():
                self._sender.end_rest(slot, now)
        self._sender.abandon(run, now)

    def _patience(self, now: float) -> float | None:
        """How long to wait for news: until somebody's time is up, or there is something to look at again."""
        if not self.runs:
            return None
        if now >= self._watchdog.due_s:
            self._watchdog.look(self._supervisor.workers.values(), self.runs, now)
        due_s = self._watchdog.due_s
        for at_s in (self._sender.ask_again_s, self._membership.next_start_s(now)):
            if at_s is not None and at_s < due_s:
                due_s = at_s
        for run in self.runs:
            run.flush()
        return due_s - now if due_s > now else 0.0

    # --- what the supervisor tells ----------------------------------------------------------------

    def loaded(self, worker: Worker) -> None:
        pass  # it is idle now, and served with the others

    def refused(self, worker: Worker, task: PreparedTask, failure: Failure) -> None:
        self._slot(worker).refusals[task.id] = failure.summary
        if failure.traceback:
            self._record.note("debug", f"{worker.slot}: {failure.traceback}")

    def answered(self, worker: Worker, chunk: Sent, message: Answered) -> None:
        run = chunk.run
        now = time.monotonic()
        self._membership.worked(self._slot(worker))
        message.answer.bound_times(chunk.dealt_s, now)
        self._membership.pool.task_finished(worker.slot, message.answer.busy_s)
        for other in self.runs:
            if other is not run:
                other.worked_elsewhere(worker.slot, message.answer.busy_s)
        if run.task.batch is not None:
            self._sender.remember_ceiling(run.task, worker.slot, message.answer.ceiling)
        if not run.is_over:
            try:
                run.answered(chunk, worker.slot, message, now)
                if run.has_duplicates:
                    self._sender.drop_superseded(run)
                for device, why in run.trust.take_left().items():
                    self._membership.slots[device].refusals[run.task.id] = why
            except self._faults as error:
                self.end(run, error)

    def spoilt(self, worker: Worker, chunk: Sent, message: Spoilt) -> None:
        self._membership.pool.task_finished(worker.slot, 0.0)
        if not chunk.run.is_over:
            try:
                chunk.run.spoilt(chunk, worker.slot, message.failure, message.is_run, time.monotonic())
            except self._faults as error:
                self.end(chunk.run, error)

    def gone(self, worker: Worker, message: Gone) -> None:
        now = time.monotonic()
        if worker.chunks and worker.chunks[0].overtime_at is None:
            self._record.note("info", f"worker {worker.name} {message.reason}; a new one is started")
        for at, chunk in enumerate(worker.chunks):
            self._membership.pool.task_finished(worker.slot, 0.0)
            if not chunk.run.is_over:
                # Who was taken away while it worked is not to blame; its item may still not run twice.
                is_taken_back = chunk.send.duplicate and chunk.dropped_s is not None
                is_removed = worker.is_removed and chunk.run.options.repeatable
                is_blameless = at > 0 or is_removed or is_taken_back
                position = QUEUED if is_blameless else chunk.position_at_end(message.position)
                chunk.run.died(chunk, worker.slot, message, position, now)
        self._membership.worker_gone(worker, message, now)

    def _slot(self, worker: Worker) -> DeviceSlot:
        return self._membership.slots[worker.slot]


def serve(engine: RunEngine) -> None:
    """Run ``engine`` until it is closed: the body of its thread."""
    # Where a program has given SIGPIPE its deadly meaning back, a dying worker must not kill us.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    engine.reading.thread_id = threading.get_ident()
    try:
        while not engine.is_closed:
            engine.step()
    except BaseException as error:  # a bug of ours: nobody may wait for ever because of it
        for run in tuple(engine.runs):
            run.end(error)
        engine.close(0.0)
        raise


class EngineThread:
    """The thread of ``engine``; there is none where the backend works in the caller's own.

    at_end  called when the engine is closed, maybe more than once
    It holds on to no executor: one that is forgotten ends its workers.
    """

    def __init__(self, engine: RunEngine, at_end: Callable[[], None]):
        self._engine, self._at_end = engine, at_end
        self._is_needed = engine.backend.is_threaded
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._guard = ForkGuard("this executor", "make an executor of the child's own")

    def asks(self) -> bool:
        """Does this very thread ask, in a future's callback, an event sink or a policy?"""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._lock:
            if self._is_needed and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="evenload", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        try:
            serve(self._engine)
        finally:
            self._at_end()

    def shut_down(self) -> None:
        """End the workers; also when an executor was forgotten, and at the interpreter's end."""
        thread = self._thread
        if self._guard.is_child:  # it has no such thread, no workers of its own, and locks that may be held
            return
        if thread is None:
            self._engine.close(GRACE_S)
            self._at_end()
        elif thread.is_alive():
            self._engine.call(partial(self._engine.close, GRACE_S))
            if not self.asks():  # a future's callback may close the executor
                self._wait_until(lambda seconds: thread.join(seconds) or not thread.is_alive())

    def cancel(self, run: Run, status: str, over_s: float) -> None:
        """The receiver is through with ``run``, whether that is over or not."""
        journal = run.journal
        if not run.is_over:
            if journal is not None and not self._is_needed:
                return self._engine.end(run)  # nobody else would, and the journal stay locked
            self._engine.call(partial(self._engine.end, run))
        if journal is None or not self._is_needed or self.asks():
            return None
        if threading.current_thread() is not journal.thread:
            journal.is_closed.wait(KEEP_S)  # what is finished is kept, and the journal free for the next run
        return None

    def wait_for(self, calls: CallSource) -> None:
        """Until every submitted call is done."""
        if not self._is_needed:
            while calls.why_over is None and not self._engine.is_closed:
                self._engine.step()
        elif self._thread is not None and self._thread.is_alive():
            self._wait_until(calls.is_over.wait)

    def _wait_until(self, is_so: Callable[[float], bool]) -> None:
        """Wait; but not for results that cannot be read. The workers end with the program then."""
        while not is_so(LOOK_S):
            if self._engine.reading.look():
                return
