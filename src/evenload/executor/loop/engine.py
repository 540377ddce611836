"""The loop: receive, decide, send. Joins workers (a back end), devices (seats) and runs.

One thread owns everything here. Others talk to it by ``call``, which runs a function in that thread.
"""

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evenload.balance.policy import Policy
from evenload.devices import Device, DevicePool
from evenload.errors import ExecutorClosed
from evenload.executor.backends import Backend
from evenload.executor.decide.instruction import Send
from evenload.executor.decide.record import Record
from evenload.executor.loop.device_slot import Seat, Worker
from evenload.executor.loop.membership import Roster
from evenload.executor.loop.run import Job, Run
from evenload.executor.loop.watchdog import Watch
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Refused, Said, Spoilt, Up, Warned
from evenload.executor.task.task import Task
from evenload.executor.transport.progress_cell import NOT_BEGUN, QUEUED

__all__ = ["Engine", "serve"]

MOST_TASKS = 32  # that stay built in a worker without being used
TICK_S = 0.05  # how often a load balancer may look at its queues
TELL_S = 0.5  # at least so long from one word on what waits to the next


class Engine:
    """``step`` does what is due, once. Called from a thread of its own, or (inline) by whoever waits."""

    def __init__(self, pool: DevicePool, backend: Backend, record: Record):
        self.roster = Roster(pool, backend)
        self.record = record
        self.backend = backend
        self.seats = self.roster.seats
        self.runs: list[Run] = []
        self.is_closed = False
        self.is_paused = False
        self.ceilings: dict[tuple[int, str], int] = {}  # batches that fit, by task and device
        self._calls: deque[Callable[[], None]] = deque()
        self._is_drained = False
        self._lock = threading.RLock()  # a signal handler may come in while its own thread holds it
        self._workers: dict[int, Seat] = {}
        self._n_workers = 0
        self._n_jobs = 0
        self._watch = Watch(backend, record)
        self._rest_until: float | None = None
        self._told_s = -math.inf
        self._handlers: dict[type, Callable[[Seat, Worker, Any], None]] = {
            Answered: self._on_answered,
            Up: self._on_up,
            Loaded: self._on_loaded,
            Refused: self._on_refused,
            Spoilt: self._on_spoilt,
            Said: self._on_said,
            Warned: self._on_warned,
            Gone: self._on_gone,
        }

    # --- from any thread --------------------------------------------------------------------------

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called in the engine's thread, soon; at once if that has ended. Signals may call.

        While the engine closes it is still called there: nothing of a run is touched by two threads.
        """
        with self._lock:
            if not self._is_drained:
                self._calls.append(function)
                self.wake()
                return
        function()

    def wake(self) -> None:
        with self._lock:
            if not self.is_closed:
                self.backend.wake()

    @property
    def pool(self) -> DevicePool:
        """Every device that has ever taken part."""
        return self.roster.pool

    # --- the engine's own thread ------------------------------------------------------------------

    def start_workers(self) -> None:
        now = time.monotonic()
        for seat in self.seats.values():
            if seat.may_start(now) and not self.is_closed:
                self._start(seat, now)

    def begin(self, run: Run) -> None:
        if self.is_closed:
            return run.end(ExecutorClosed("the executor is closed", hint="make a new one"))
        for seat in self.seats.values():
            seat.refusals.pop(run.task.id, None)  # what it refused in an earlier run, it may build now
            if seat.is_draining:
                run.leave(seat.id, "it was drained", time.monotonic())
        if any(seat.id not in run.devices and not seat.is_draining for seat in self.seats.values()):
            self.roster.add([seat.device for seat in self.seats.values() if not seat.is_draining], [run])
        self.runs.append(run)
        if run.keeper is not None:
            run.keeper.on_broken = partial(self._fail, run)
        try:
            run.begin()
        except Exception as error:
            self._fail(run, error)

    def cancel(self, run: Run) -> None:
        """Nobody wants any more of ``run``."""
        run.end(None)
        self._forget(run)

    def stop(self, run: Run) -> None:
        """Deal nothing more of ``run``; what its workers have is finished."""
        run.is_stopping = True

    def add(self, devices: Sequence[Device]) -> None:
        """These take part from now on."""
        self.roster.add(devices, self.runs)

    def drain(self, ids: Sequence[str], at_once: bool) -> None:
        """These take part no more; see ``Executor.drain``."""
        self.roster.drain(ids, tuple(self.runs), at_once)

    def pause(self, on: bool) -> None:
        """Deal nothing more until it is switched off again; what runs comes to its end."""
        self.is_paused = on

    def set_policy(self, run: Run | None, policy: Policy) -> None:
        """For ``run``, or for all."""
        now = time.monotonic()
        for one in tuple(self.runs) if run is None else [run]:
            if one.options.may_change and not one.is_over:
                try:
                    one.scheduler.dealer.set_policy(policy, now)
                except Exception as error:  # it does not fit this run
                    self._fail(one, error)

    def set_balancing(self, run: Run | None, on: bool) -> None:
        """For ``run``, or for all."""
        for one in self.runs if run is None else [run]:
            one.scheduler.dealer.set_balancing(on)

    def step(self, timeout_s: float | None = None) -> None:
        """Send what can be sent, then wait for news and take it in."""
        while self._calls:
            self._calls.popleft()()
        if self.is_closed:
            return
        now = time.monotonic()
        wait_s = self._serve(now)
        if self._calls:
            wait_s = 0.0
        if timeout_s is not None:
            wait_s = timeout_s if wait_s is None else min(wait_s, timeout_s)
        for message in self.backend.poll(wait_s):
            self._receive(message)

    def close(self, grace_s: float) -> None:
        """Stop everything. Runs that are not over end with ExecutorClosed.

        Workers get ``grace_s`` seconds to let their tasks free what they hold.
        """
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        for run in tuple(self.runs):
            run.end(ExecutorClosed("the executor was closed while this ran"))
            self._forget(run)
        for message in self.backend.close(grace_s):
            if isinstance(message, Said):
                self.record.said(self._workers[message.worker].id, message.line)
        for seat in self.seats.values():
            if seat.worker is not None:
                self.record.worker_exited(seat.id, seat.worker.name, "closed")
                seat.worker = None
        self._drain()

    def _drain(self) -> None:
        """Call what came while the engine closed. From then on ``call`` does so itself."""
        while True:
            with self._lock:
                self._is_drained = not self._calls
                if self._is_drained:
                    return
            self._calls.popleft()()

    # --- decide and send --------------------------------------------------------------------------

    def _serve(self, now: float) -> float | None:
        """Feed the runs and the idle devices. Returns for how long there may be nothing to do."""
        self._rest_until = self.roster.dismiss_drained(now)
        if not self.runs:
            return None if self._rest_until is None else self._rest_until - now
        for run in tuple(self.runs):
            try:
                run.feed()
                if run.has_balancer:
                    self._balance(run, now)
            except Exception as error:
                self._fail(run, error)
        if self.record.listens and now - self._told_s >= TELL_S:
            self._tell_queues(now)
        self._staff(now)
        idle = [] if self.is_paused else [seat for seat in self.seats.values() if seat.may_work]
        if len(idle) > 1 and self.runs:
            idle = self._fastest_first(idle)
        for seat in idle:
            self._deal(seat, now)
        if self.backend.is_threaded and not self.is_paused:
            for seat in self.seats.values():
                if seat.worker is not None and seat.worker.may_queue:
                    self._deal_ahead(seat, seat.worker, now)
        for run in tuple(self.runs):
            try:
                if run.scheduler.is_finished:
                    run.end(run.source.error)
                elif run.is_stopping and not self._n_running(run):
                    run.end_early()
                if run.is_over:
                    self._forget(run)
            except Exception as error:
                self._fail(run, error)
        return self._patience(now)

    def _fastest_first(self, idle: list[Seat]) -> list[Seat]:
        order = self.runs[0].scheduler.dealer.fastest_first(seat.id for seat in idle)
        return [self.seats[device] for device in order]

    def _staff(self, now: float) -> None:
        """Replace workers that are gone; tell the runs of devices that will not come back."""
        missing = [seat for seat in self.seats.values() if seat.worker is None and seat.may_start(now)]
        for seat in sorted(missing, key=lambda seat: -self.pool.score(seat.id)):
            if any(seat.id in run.devices and self._lacks_workers(run) for run in self.runs):
                self._start(seat, now)
        for seat in self.seats.values():
            if seat.lost is not None or seat.refusals:
                for run in tuple(self.runs):
                    why = seat.lost or seat.refusals.get(run.task.id)
                    if why is not None and seat.id in run.devices:
                        self.record.note("warning", f"{seat.id} takes no part in {run.options.stage}: {why}")
                        run.leave(seat.id, why, now)

    def _lacks_workers(self, run: Run) -> bool:
        """Has it fewer than items, or only such as will not take what is left?"""
        if run.source.total is None:
            return True
        seats = [seat for seat in self.seats.values() if seat.worker is not None and seat.id in run.devices]
        if len(seats) * run.n_per_call < max(run.source.total, run.source.n_ready):
            return True
        return run.has_work() and all(seat.may_work and seat.rest is not None for seat in seats)

    def _start(self, seat: Seat, now: float) -> None:
        self._n_workers += 1
        worker = seat.new_worker(self._n_workers, now)
        self._workers[worker.number] = seat
        try:
            self.backend.start(worker.number, seat.device, self.pool, seat.environment)
        except OSError as error:
            del self._workers[worker.number]
            seat.worker_ended(f"could not be started: {error}", now)

    def _deal(self, seat: Seat, now: float) -> None:
        worker = seat.worker
        assert worker is not None
        for run in tuple(self.runs):
            if run.is_over or seat.id not in run.devices:
                continue
            if run.task.id not in worker.tasks:
                if run.has_work():
                    return self._load(worker, run.task)
                continue
            try:
                if self._deal_from(run, seat, worker, now):
                    return self._give_others_a_turn(run)
            except Exception as error:  # of its policy
                self._fail(run, error)

    def _deal_from(self, run: Run, seat: Seat, worker: Worker, now: float) -> bool:
        """Send a chunk of ``run``, if it has one for this device."""
        while not run.is_stopping and not run.is_over:
            instruction = run.deal(seat.id, now)
            if isinstance(instruction, Send):
                if self._send(seat, worker, run, instruction, now):
                    return True
                continue
            if seat.rest is None:
                seat.rest = (instruction.why, now)
            until = instruction.until
            if until is not None and (self._rest_until is None or until < self._rest_until):
                self._rest_until = until
            break
        return False

    def _deal_ahead(self, seat: Seat, worker: Worker, now: float) -> None:
        """Let a chunk wait at the worker: to wake it for each would take longer than the chunk."""
        for run in tuple(self.runs):
            if run.is_over or run.is_stopping or run.task.id not in worker.tasks or run.bundle(seat.id) == 1:
                continue
            if seat.id in run.devices and run.scheduler.dealer.remaining != 0:
                try:
                    instruction = run.deal(seat.id, now)
                    if isinstance(instruction, Send):
                        self._send(seat, worker, run, instruction, now)
                        return self._give_others_a_turn(run)
                except Exception as error:  # of its policy
                    self._fail(run, error)

    def _give_others_a_turn(self, run: Run) -> None:
        if len(self.runs) > 1:
            self.runs.remove(run)
            self.runs.append(run)

    def _load(self, worker: Worker, task: Task) -> None:
        """Have ``task`` built; what no run needs and may hold a model makes room for it."""
        wanted = {run.task.id for run in self.runs}
        for other in tuple(worker.tasks.values()):
            in_the_way = (other.is_class and task.is_class) or len(worker.tasks) > MOST_TASKS
            if in_the_way and other.id not in wanted:
                del worker.tasks[other.id]
                self.backend.unload(worker.number, other.id)
        worker.loading = task
        ceiling = self.ceilings.get((task.id, worker.device))
        self.backend.load(worker.number, task if ceiling is None else replace(task, ceiling=ceiling))

    def _send(self, seat: Seat, worker: Worker, run: Run, send: Send, now: float) -> bool:
        self._n_jobs += 1
        job = Job(self._n_jobs, run, send, worker.name, now, run.source.cost_of(send.items))
        if seat.rest is not None:
            self.record.idle(seat.id, seat.rest[1], now, seat.rest[0])
            seat.rest = None
        if not run.source.claim(send.items):
            run.withdraw(job, now)
            return False
        if run.keeper is not None:
            run.keeper.before(send.items, run.source.take(send.items))
        try:
            items = run.source.take(send.items)
            n_bytes = self.backend.run(worker.number, run.task.id, job.number, items, send.singly)
            run.n_sent_bytes += n_bytes or 0
        except Exception as error:  # the items cannot be pickled
            run.spoilt(job, seat.id, Failure.of(error, "input"), is_run=False, now=now)
            return False
        job.is_tiny = run.bundle(seat.id) > 1
        worker.jobs.append(job)
        self._watch.expect(now, run.options.timeout_s)
        self.pool.task_started(seat.id)
        return True

    def _balance(self, run: Run, now: float) -> None:
        for move in run.tick(now):
            self.record.moved(move.source, move.target, move.n_items, move.imbalance)
        self._rest_until = min(self._rest_until or now + TICK_S, now + TICK_S)

    def _tell_queues(self, now: float) -> None:
        self._told_s = now
        for run in self.runs:
            running = {
                seat.id: sum(len(job.send.items) for job in seat.worker.jobs if job.run is run)
                for seat in self.seats.values()
                if seat.worker is not None
            }
            dealer = run.scheduler.dealer
            self.record.queued(run.options.stage, dealer.remaining, running, dealer.queued())

    def _n_running(self, run: Run) -> int:
        workers = (seat.worker for seat in self.seats.values() if seat.worker is not None)
        return sum(1 for worker in workers for job in worker.jobs if job.run is run)

    def _fail(self, run: Run, error: Exception) -> None:
        """Something is wrong with ``run``, such as its policy: that ends it, and nothing else."""
        run.end(error)
        self._forget(run)

    def _forget(self, run: Run) -> None:
        """``run`` is over: whoever still works for it may stop, and devices rest no longer because of it."""
        now = time.monotonic()
        if run in self.runs:
            self.runs.remove(run)
        for seat in self.seats.values():
            if seat.rest is not None and not self.runs:
                self.record.idle(seat.id, seat.rest[1], now, seat.rest[0])
                seat.rest = None
            for job in seat.worker.jobs if seat.worker is not None else ():
                if job.run is run:
                    self._drop(seat, job, now)
                    run.abandoned(job, seat.id, now)

    def _drop(self, seat: Seat, job: Job, now: float) -> None:
        """Nobody needs ``job`` any more. What stands before it would be dropped too: then leave it."""
        if seat.worker is not None and all(other.dropped_s or other is job for other in seat.worker.jobs):
            job.dropped_s = now
            self.backend.drop(seat.worker.number, job.number)

    # --- time -------------------------------------------------------------------------------------

    def _patience(self, now: float) -> float | None:
        """How long to wait for news: until somebody's time is up, or there is something to look at again."""
        if not self.runs:
            return None
        if now >= self._watch.due_s:
            self._watch.look(self.seats.values(), now)
        due_s = self._watch.due_s
        if self._rest_until is not None:
            due_s = min(due_s, self._rest_until)
        for run in self.runs:
            flush_s = run.sink.flush(now)
            if flush_s is not None and flush_s < due_s:
                due_s = flush_s
        for seat in self.seats.values():
            if seat.worker is None and now < seat.not_before_s < due_s:
                due_s = seat.not_before_s
        return due_s - now if due_s > now else 0.0

    # --- receive ----------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        seat = self._workers.get(message.worker)
        if seat is not None and seat.worker is not None:
            self._handlers[type(message)](seat, seat.worker, message)

    def _on_up(self, seat: Seat, worker: Worker, message: Up) -> None:
        worker.is_up = True
        worker.pid = message.pid

    def _on_loaded(self, seat: Seat, worker: Worker, message: Loaded) -> None:
        assert worker.loading is not None
        worker.startup_s = max(worker.startup_s, message.seconds)
        if not worker.tasks and not worker.has_worked:
            worker.startup_s = time.monotonic() - worker.asked_s
            self.record.worker_started(seat.id, worker.name, worker.pid, worker.startup_s)
        worker.tasks[message.task], worker.loading = worker.loading, None

    def _on_refused(self, seat: Seat, worker: Worker, message: Refused) -> None:
        worker.loading = None
        seat.refusals[message.task] = message.failure.summary
        if message.failure.traceback:
            self.record.note("debug", f"{seat.id}: {message.failure.traceback}")

    def _on_answered(self, seat: Seat, worker: Worker, message: Answered) -> None:
        job = worker.jobs.popleft()
        worker.has_worked = True
        assert job.number == message.chunk
        self.pool.task_finished(seat.id, message.answer.busy_s)
        if job.run.task.batch is not None:
            self._remember_ceiling(job.run.task, seat.id, message.answer.ceiling)
        if not job.run.is_over:
            try:
                job.run.answered(job, seat.id, message.answer, message.n_bytes, time.monotonic())
                if job.run.tally.n_duplicates:
                    self._drop_superseded(job.run)
            except Exception as error:
                self._fail(job.run, error)

    def _remember_ceiling(self, task: Task, device: str, ceiling: int | None) -> None:
        if ceiling is not None:
            self.ceilings[task.id, device] = ceiling
        else:
            self.ceilings.pop((task.id, device), None)

    def _drop_superseded(self, run: Run) -> None:
        for seat in self.seats.values():
            for job in seat.worker.jobs if seat.worker is not None else ():
                is_ours = job.run is run and job.dropped_s is None
                if is_ours and run.scheduler.is_superseded(job.send.chunk):
                    self._drop(seat, job, time.monotonic())

    def _on_spoilt(self, seat: Seat, worker: Worker, message: Spoilt) -> None:
        job = worker.jobs.popleft()
        self.pool.task_finished(seat.id, 0.0)
        if not job.run.is_over:
            try:
                job.run.spoilt(job, seat.id, message.failure, message.is_run, time.monotonic())
            except Exception as error:
                self._fail(job.run, error)

    def _on_said(self, seat: Seat, worker: Worker, message: Said) -> None:
        self.record.said(seat.id, message.line)

    def _on_warned(self, seat: Seat, worker: Worker, message: Warned) -> None:
        self.record.note("warning", message.text)

    def _on_gone(self, seat: Seat, worker: Worker, message: Gone) -> None:
        now = time.monotonic()
        reason = message.reason
        if seat.stop_by_s is not None and message.exit_code == 0:
            reason = "closed"
        elif worker.jobs and worker.jobs[0].dropped_s is not None:
            reason = "was replaced: nobody needed what it still ran"
        del self._workers[message.worker]
        self.record.worker_exited(seat.id, worker.name, reason)
        if worker.jobs:
            worker.has_worked = worker.has_worked or message.position != NOT_BEGUN
            if worker.jobs[0].overtime_at is None:
                self.record.note("info", f"worker {worker.name} {reason}; a new one is started")
        for at, job in enumerate(worker.jobs):
            self.pool.task_finished(seat.id, 0.0)
            if not job.run.is_over:
                # Who was taken away while it worked is not to blame; its item may still not run twice.
                is_blameless = at > 0 or (worker.is_removed and job.run.options.repeatable)
                job.run.died(job, seat.id, message, QUEUED if is_blameless else message.position, now)
        seat.worker_ended(reason, now, message.last_words)


def serve(engine: Engine) -> None:
    """Run ``engine`` until it is closed: the body of its thread."""
    # Where a program has given SIGPIPE its deadly meaning back, a dying worker must not kill us.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        while not engine.is_closed:
            engine.step()
    except BaseException as error:  # a bug of ours: nobody may wait for ever because of it
        for run in tuple(engine.runs):
            run.end(error)
        engine.close(0.0)
        raise
