"""Gives workers their next chunk, and takes back what nobody needs any more."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Send
from evenload.executor.loop.membership import DeviceSlot, Membership
from evenload.executor.loop.watchdog import Watchdog
from evenload.executor.run.run import Run, Sent
from evenload.executor.run.run_account import SentChunk
from evenload.executor.supervisor.supervisor import Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.seeds import with_seeds
from evenload.executor.task.task import PreparedTask

MOST_TASKS = 32  # that stay built in a worker without being used


class ChunkSender:
    """Sends chunks of the runs to workers that are free, or about to be.

    ceilings     (task, device) -> items per call that fit, as workers have found
    ask_again_s  when a device may get work although nothing has happened; None if it will not
    faults       what is caught where a user's code is called
    """

    def __init__(
        self,
        membership: Membership,
        supervisor: Supervisor,
        watchdog: Watchdog,
        record: Record,
        fail: Callable[[Run, BaseException], None],
        faults: type[BaseException],
    ):
        self.ceilings: dict[tuple[int, str], int] = {}
        self.ask_again_s: float | None = None
        self._membership, self._supervisor = membership, supervisor
        self._watchdog, self._record = watchdog, record
        self._fail, self._faults = fail, faults

    # --- send -------------------------------------------------------------------------------------

    def serve(self, slot: DeviceSlot, worker: Worker, runs: Sequence[Run], now: float) -> Run | None:
        """Send a free worker a chunk, or have a task built for one. Returns the run whose turn it was."""
        for run in runs:
            if run.is_over or slot.id not in run.devices:
                continue
            if run.trust.takes_renewal(slot.id) and run.has_work():
                self._record.note("info", f"{slot.id}: a new worker, as what this one has built fails again")
                self._supervisor.retire(worker, now)
                return None
            if run.n_more_items(worker.n_items) == 0:
                if run.has_work():
                    self._supervisor.retire(worker, now)
                    return None
                continue
            if run.task.id not in worker.tasks:
                if run.has_work():
                    self._load(worker, run.task, runs)
                    return None
                continue
            try:
                others = (other for other in runs if other is not run)
                may_copy = not any(other.has_items_for(slot.id) for other in others)
                if self._deal_from(run, slot, worker, now, may_copy):
                    return run
            except self._faults as error:  # of its policy
                self._fail(run, error)
        return None

    def serve_ahead(self, slot: DeviceSlot, worker: Worker, runs: Sequence[Run], now: float) -> Run | None:
        """Let a chunk wait at the worker: to wake it for each would take longer than the chunk."""
        for run in runs:
            if run.is_over or run.is_stopping or run.task.id not in worker.tasks or run.bundle(slot.id) == 1:
                continue
            if slot.id in run.devices and run.n_waiting != 0:
                try:
                    instruction = run.deal(slot.id, now)
                    if isinstance(instruction, Send):
                        self._send(slot, worker, run, instruction, now)
                        return run
                except self._faults as error:  # of its policy
                    self._fail(run, error)
        return None

    def _deal_from(self, run: Run, slot: DeviceSlot, worker: Worker, now: float, may_copy: bool) -> bool:
        """Send a chunk of ``run``, if it has one for this device; a copy only if no other run has items."""
        while not run.is_stopping and not run.is_over:
            most = run.n_more_items(worker.n_items)
            may_copy = may_copy and (most is None or not worker.n_items)  # a copy is as long as its chunk
            instruction = run.deal(slot.id, now, may_copy=may_copy, most=most)
            if isinstance(instruction, Send):
                run.free(slot.id, now)
                if self._send(slot, worker, run, instruction, now):
                    return True
                continue
            run.free(slot.id, now, instruction.why)
            if slot.rest is None:
                slot.rest = (instruction.why, now)
            if instruction.until is not None:
                self.ask_again_by(instruction.until)
            break
        return False

    def begin_round(self, at_s: float | None) -> None:
        """All devices are about to be served; ``at_s``: when there is something to do in any case."""
        self.ask_again_s = at_s

    def ask_again_by(self, at_s: float) -> None:
        """A device may get work then, whatever happens until then."""
        self.ask_again_s = at_s if self.ask_again_s is None else min(self.ask_again_s, at_s)

    def _load(self, worker: Worker, task: PreparedTask, runs: Sequence[Run]) -> None:
        """Have ``task`` built; what no run needs and may hold a model makes room for it."""
        wanted = {run.task.id for run in runs}
        for other in tuple(worker.tasks.values()):
            in_the_way = (other.is_class and task.is_class) or len(worker.tasks) > MOST_TASKS
            if in_the_way and other.id not in wanted:
                self._supervisor.unload(worker, other)
        ceiling = self.ceilings.get((task.id, worker.slot))
        self._supervisor.load(worker, task if ceiling is None else replace(task, ceiling=ceiling))

    def _send(self, slot: DeviceSlot, worker: Worker, run: Run, send: Send, now: float) -> bool:
        cost = run.source.cost_of(send.items)
        chunk: Sent = SentChunk(self._supervisor.next_chunk(), run, send, worker.name, now, cost)
        if slot.rest is not None:
            self.end_rest(slot, now)
        items = run.items_to_send(send, now)
        if items is None:
            return False
        try:
            items = with_seeds(run.options.seed, send.items, items)
            n_bytes = self._supervisor.send(worker, chunk, run.task, items, send.singly)
        except self._faults as error:  # the items cannot be pickled
            run.spoilt(chunk, slot.id, Failure.of(error, "input"), is_run=False, now=now)
            return False
        worker.n_items += len(items)
        run.sizing.sent(n_bytes)
        chunk.is_tiny = run.bundle(slot.id) > 1
        if run.options.timeout_s is not None:
            self._watchdog.expect(now, run.options.timeout_s)
        self._membership.pool.task_started(slot.id)
        return True

    def end_rest(self, slot: DeviceSlot, now: float) -> None:
        """The device is left without work no longer."""
        if slot.rest is not None:
            self._record.idle(slot.id, slot.rest[1], now, slot.rest[0])
            slot.rest = None

    # --- take back --------------------------------------------------------------------------------

    def abandon(self, run: Run, now: float) -> None:
        """``run`` is over: whoever still works for it may stop."""
        for slot, worker in self._membership.with_workers():
            for chunk in worker.chunks:
                if chunk.run is run:
                    self._drop(worker, chunk, now)
                    run.abandoned(chunk, slot.id, now)

    def drop_superseded(self, run: Run) -> None:
        """Have workers skip what other devices have answered before."""
        for worker in self._supervisor.workers.values():
            for chunk in worker.chunks:
                if chunk.run is run and chunk.dropped_s is None and run.is_superseded(chunk):
                    self._drop(worker, chunk, time.monotonic())

    def _drop(self, worker: Worker, chunk: Sent, now: float) -> None:
        """Nobody needs ``chunk`` any more. What stands before it would be dropped too: then leave it."""
        if all(other.dropped_s or other is chunk for other in worker.chunks):
            chunk.dropped_s = now
            self._supervisor.drop(worker, chunk)

    def n_running(self, run: Run) -> int:
        """Chunks of ``run`` that workers have."""
        return sum(
            chunk.run is run for worker in self._supervisor.workers.values() for chunk in worker.chunks
        )

    def items_running(self, run: Run) -> dict[str, int]:
        """Items of ``run`` that workers have, by device."""
        return {
            device: sum(len(chunk.send.items) for chunk in worker.chunks if chunk.run is run)
            for device, worker in self._supervisor.workers.items()
        }

    def remember_ceiling(self, task: PreparedTask, device: str, ceiling: int | None) -> None:
        """So many items in one call fit there; None if nothing is known to be too much."""
        if ceiling is not None:
            self.ceilings[task.id, device] = ceiling
        else:
            self.ceilings.pop((task.id, device), None)
