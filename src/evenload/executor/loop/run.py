"""One map while it runs: joins the items' source, the scheduler and the delivery of results.

All of it belongs to the executor's thread.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from evenload.balance.migrate import Move
from evenload.balance.policy import Pull
from evenload.errors import NoUsableDevice, TaskError, TaskTimeout, WorkerLost
from evenload.executor.decide import instruction as ins
from evenload.executor.decide.delivery import Block
from evenload.executor.decide.instruction import Accept, Fail, Instruction, Rest, Send
from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Scheduler
from evenload.executor.decide.source import Source, rough_bytes
from evenload.executor.decide.summary import Summary, Tally
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Gone
from evenload.executor.task.task import Answer, Task
from evenload.executor.transport.progress_cell import QUEUED

if TYPE_CHECKING:
    from evenload.executor.loop.journal_sink import Keeper

__all__ = ["Job", "Options", "Run", "Sink"]

TINY_S = 0.0005  # of work at most is sent together
MOST_TOGETHER = 32
FORGET = 0.9
LARGE_ITEM_BYTES = 64 * 1024
CHUNK_BYTES = 16 * 1024 * 1024
N_LOOKED_UP = 256  # items at once that are looked for in a journal


class Sink(Protocol):
    """Where results go; see ``delivery.Delivery``."""

    @property
    def is_waiting_for_room(self) -> bool: ...

    @is_waiting_for_room.setter
    def is_waiting_for_room(self, waits: bool) -> None: ...

    @property
    def n_taken(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def n_ready_bytes(self) -> int: ...

    def put(self, block: Block) -> None: ...

    def flush(self, now: float) -> float | None: ...

    def skip_gaps(self) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """A chunk on its way: what was sent, to whom, when. ``number`` names it among all chunks of the executor.

    cost           sum of the items' size hints
    dropped_s      when the worker was told to skip the rest
    is_released    its items but the one that runs were given to others
    is_warned_of   a person was told that it takes long
    is_tiny        it is expected to be done before the next could be sent
    overtime_at    position at which its worker was killed for taking too long
    """

    number: int
    run: "Run"
    send: Send
    worker: str
    dealt_s: float
    cost: float | None = None
    dropped_s: float | None = None
    is_released: bool = False
    is_warned_of: bool = False
    overtime_at: int | None = None
    is_tiny: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of a run; see ``Executor.map``. ``may_change``: a new policy is for it too."""

    stage: str = "map"
    look_ahead: int = 100_000
    timeout_s: float | None = None
    repeatable: bool = True
    may_change: bool = True
    look_ahead_bytes: int = 512 * 1024 * 1024
    retries: int = 0


@dataclass(slots=True, eq=False)
class Run:
    """``devices`` take part; ``on_over`` is called once, when nothing more will be delivered.

    ``keeper`` is the sink if the run has a journal.
    """

    task: Task
    source: Source
    scheduler: Scheduler
    sink: Sink
    tally: Tally
    record: Record
    options: Options
    devices: set[str]
    on_over: "Callable[[Run], None]" = lambda run: None
    began_s: float = 0.0
    first_sent_s: float | None = None
    has_balancer: bool = False
    keeper: "Keeper | None" = None
    size: str | None = None
    is_over: bool = False
    is_stopping: bool = False
    is_held_up: bool = False
    error: BaseException | None = None
    summary: Summary | None = None
    causes: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0
    item_s: dict[str, float] = field(default_factory=dict)
    n_dealt: int = 0
    n_sent_bytes: int = 0
    n_answered: int = 0
    n_result_bytes: int = 0
    largest: int = 1

    @property
    def n_per_call(self) -> int:
        """Items in one call of the function."""
        return self.task.batch or 1

    def begin(self) -> None:
        self.began_s = time.monotonic()
        self.record.stage_started(self.options.stage, self.source.total)
        if self.source.total is not None:
            self.scheduler.expect(self.source.total)

    # --- items in, chunks out ---------------------------------------------------------------------

    def feed(self) -> None:
        """Let the scheduler have what is there, as far as results may pile up."""
        while self._feed_once():
            pass

    def _feed_once(self) -> bool:
        """Returns True if there may be more at once: what a journal has makes room without any device."""
        scheduler, source, sink = self.scheduler, self.source, self.sink
        if scheduler.is_ended or self.is_over:
            return False
        limit = self._limit()
        source.want(min(limit, self._demand()))
        if scheduler.n_fed == source.n_ready:
            source.call_when_more()
        is_ended, n_ready = source.is_ended, source.n_ready  # in this order: the reader ends last
        n_new = min(n_ready, limit) - scheduler.n_fed
        is_known = False
        if self.keeper is not None:
            is_known = self._feed_unknown(self.keeper, n_new, is_ended and scheduler.n_fed + n_new == n_ready)
        elif n_new > 0:
            scheduler.handle(ins.Fed(n_new, source.costs(scheduler.n_fed, n_new)))
        if is_ended and scheduler.n_fed == n_ready:
            scheduler.handle(ins.Ended())
        sink.is_waiting_for_room = not scheduler.is_ended and scheduler.n_fed >= limit
        return is_known

    def _feed_unknown(self, keeper: "Keeper", n_new: int, is_last: bool) -> bool:
        """The same with a journal: what it has is delivered at once. Returns True unless that was all."""
        scheduler, source, batch = self.scheduler, self.source, self.n_per_call
        n_piece = batch * -(-N_LOOKED_UP // batch)
        has_more, n_new = n_new > n_piece, min(n_new, n_piece)
        if n_new % batch and (has_more or not is_last):
            n_new -= n_new % batch  # whole batches, so that one is known as a whole if all of it is
        if n_new <= 0:
            return False
        start = scheduler.n_fed
        scheduler.handle(ins.Fed(n_new, source.costs(start, n_new)))
        blocks = keeper.known(range(start, start + n_new))
        if blocks:
            items = tuple(item for block in blocks for item in block.items)
            scheduler.handle(ins.Known(items))
            self.n_dealt += len(items)
            self.record.restored(self.options.stage, items)
            self._count_known_failures(blocks)
            source.release(items)
            keeper.pass_on(blocks)
        return has_more or bool(blocks)

    def _count_known_failures(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.failed:
                (item,), (error,) = block.items, block.values
                self._count_failure(item, error, type(error).__name__, error.message, "")

    def _limit(self) -> int:
        """No item beyond this one yet: results wait for their turn, or for whoever fetches them.

        Whole batches, so that none waits for ever for items that must wait for its results.
        """
        room = self.options.look_ahead if self.sink.n_bytes < self.options.look_ahead_bytes else 0
        batch = self.n_per_call
        return -(-max(self.sink.n_taken + room, self.scheduler.n_fed) // batch) * batch

    def _demand(self) -> int:
        """How far to read: an iterator's items shall be there when a device asks, and not long before."""
        n_ahead = 2 * len(self.devices) * max(self.largest, self.n_per_call)
        if self.n_sent_bytes:
            n_affordable = int(self.options.look_ahead_bytes * self.n_dealt / self.n_sent_bytes)
            n_ahead = min(n_ahead, max(n_affordable, self.n_per_call))
        return self.n_dealt + n_ahead

    def deal(self, device: str, now: float) -> Send | Rest:
        if self.sink.n_ready_bytes >= self.options.look_ahead_bytes:
            self.sink.is_waiting_for_room = True
            return Rest(device, "results wait to be fetched", None)
        bundle = 1 if self.source.is_apart else self.bundle(device)
        (instruction,) = self.scheduler.handle(ins.Free(device, now, bundle, self._most()))
        assert isinstance(instruction, Send | Rest)
        if isinstance(instruction, Send):
            n_items = len(instruction.items)
            self.largest = max(self.largest, n_items)
            if self.first_sent_s is None:
                self.first_sent_s = now
            if instruction.duplicate:
                self.tally.n_duplicates += 1
            else:
                self.n_dealt += n_items
        return instruction

    def bundle(self, device: str) -> int:
        """How many chunks should go to ``device`` together, and as many wait there.

        More than 1 if they are so short that messages would cost more than they do.

        Only where their size is fixed: other policies make them longer instead. Only what may run twice:
        what waits there might have to be taken back.
        """
        policy = self.scheduler.dealer.policy
        if not (isinstance(policy, Pull) and self.options.repeatable):
            return 1
        chunk_s = self.item_s.get(device, math.inf) * self.n_per_call * policy.chunk
        return max(1, min(int(TINY_S / max(chunk_s, 1e-6)), MOST_TOGETHER))

    def _most(self) -> int | None:
        """Items per chunk that are large: more would only fill memory that is not warm yet."""
        if self.n_sent_bytes:
            item_bytes = self.n_sent_bytes / self.n_dealt + self.n_result_bytes / max(1, self.n_answered)
        elif self.source.n_ready and not (self.n_dealt or self.source.is_apart):
            item_bytes = 2 * rough_bytes(self.source.take(range(1))[0])
        else:
            return None
        return max(1, int(CHUNK_BYTES / item_bytes)) if item_bytes > LARGE_ITEM_BYTES else None

    def has_work(self) -> bool:
        """Is it worth building the task on one more device? Not for copies only, unless an item hangs."""
        may_deal = self.scheduler.dealer.remaining != 0 or self.is_held_up
        return may_deal and not (self.is_over or self.is_stopping)

    def tick(self, now: float) -> tuple[Move, ...]:
        return self.scheduler.dealer.tick(now)

    # --- what became of a chunk -------------------------------------------------------------------

    def answered(self, job: Job, device: str, answer: Answer, n_bytes: int, now: float) -> None:
        no_memory = tuple(at for at, failure in answer.failures.items() if failure.kind == "memory")
        raised: tuple[int, ...] = ()
        if self.options.retries:
            raised = tuple(at for at, failure in answer.failures.items() if failure.kind == "raised")
        event = ins.Answered(job.send.chunk, now, answer.busy_s, no_memory, answer.skipped, raised)
        instructions = self.scheduler.handle(event)
        self._count(job, device, answer, instructions)
        self.n_answered += len(answer.values)
        self.n_result_bytes += n_bytes
        if answer.values:  # among items of mixed length the long ones count: nothing should wait behind them
            item_s = answer.busy_s / len(answer.values)
            self.item_s[device] = max(item_s, FORGET * self.item_s.get(device, 0.0))
        for accept in instructions:
            assert isinstance(accept, Accept)
            self._accept(accept, device, answer, n_bytes)

    def spoilt(self, job: Job, device: str, failure: Failure, is_run: bool, now: float) -> None:
        self._span(job, device, job.dealt_s, now, 0.0, "failed")
        for fail in self.scheduler.handle(ins.Spoilt(job.send.chunk, now, is_run)):
            assert isinstance(fail, Fail)
            for item in fail.items:
                error = failure.to_error(item, device)
                if fail.why == "unknown":
                    error.message += "; it has run and must not run again, so its result is lost"
                self._settle(item, error, device)

    def withdraw(self, job: Job, now: float) -> None:
        self.scheduler.handle(ins.Withdrawn(job.send.chunk, now))

    def died(self, job: Job, device: str, gone: Gone, position: int, now: float) -> None:
        """The worker with ``job`` is gone; it was at ``position`` of it, or at another job (QUEUED)."""
        if position != QUEUED:
            self.tally.n_workers_lost += 1
        is_overtime = job.overtime_at is not None and job.overtime_at == position
        self._span(job, device, job.dealt_s, now, 0.0, "lost")
        for fail in self.scheduler.handle(ins.Died(job.send.chunk, device, now, position, is_overtime)):
            assert isinstance(fail, Fail)
            for item in fail.items:
                self._settle(item, self._loss(item, fail.why, device, gone), device)

    def release_rest(self, job: Job, device: str, position: int, now: float, *, has_queue: bool) -> bool:
        """The item at ``position`` takes very long: others get what waits behind it, if anything does."""
        self.is_held_up = True
        has_rest = has_queue or len(job.send.items) > self.n_per_call
        if self.is_over or not self.options.repeatable or not has_rest:
            return False
        self.scheduler.handle(ins.Stuck(job.send.chunk, device, now, position))
        return True

    def abandoned(self, job: Job, device: str, now: float) -> None:
        """The run is over and ``job`` still runs: its span ends here, whatever becomes of it."""
        self._span(job, device, job.dealt_s, now, 0.0, "superseded")

    def leave(self, device: str, why: str, now: float) -> None:
        """``device`` can do nothing for this run. Ends the run if it was the last."""
        if device not in self.devices:
            return
        self.devices.discard(device)
        self.causes[device] = why
        self.scheduler.handle(ins.Left(device, now))
        if not self.devices and not self.scheduler.is_finished:
            self.end(NoUsableDevice(f"no device can run {self.task.name}", causes=self.causes))

    # --- the end ----------------------------------------------------------------------------------

    def end_early(self) -> None:
        """It was to stop, and nothing runs any more."""
        self.sink.skip_gaps()
        self.end(None)

    @property
    def status(self) -> str:
        """Of a run that is over, in the words of ``events.RunFinished``."""
        if self.error is not None:
            return "failed"
        if not self.scheduler.is_finished:
            return "interrupted"
        return "failures" if self.tally.n_failed else "done"

    def end(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        try:
            self.source.close()
            now = time.monotonic()
            startup_s = (now if self.first_sent_s is None else self.first_sent_s) - self.began_s
            if self.keeper is not None:
                self._tell_of(self.keeper)
            times = now - self.began_s, startup_s
            self.summary = self.tally.summarise(self.scheduler.fated.n, *times, self.scheduler.retries)
            self.record.stage_finished(self.options.stage, self.summary.bound_s or None)
            self.on_over(self)
        finally:
            self.sink.close(error)

    # --- inside -----------------------------------------------------------------------------------

    def _tell_of(self, keeper: "Keeper") -> None:
        self.tally.n_restored = keeper.n_known
        n_lost = keeper.journal.n_damaged + keeper.n_unreadable
        if n_lost:
            text = f"{n_lost} entries of the journal {keeper.journal.path} are damaged; those items ran again"
            self.record.note("warning", text)

    def _count(self, job: Job, device: str, answer: Answer, accepted: Iterable[Instruction]) -> None:
        n_first = sum(
            len(a.items if a.positions is None else a.positions) for a in accepted if isinstance(a, Accept)
        )
        n_items = len(answer.values)
        status = "failed" if answer.failures else "ok"
        if not n_first:
            self.tally.add_waste(device, answer.busy_s)
            status = "superseded"
        else:
            self.longest_s = max(self.longest_s, answer.busy_s / n_items)
            self.tally.add(device, answer.busy_s, n_items, cost=job.cost, is_good=not answer.failures)
        self._span(job, device, answer.start_s, answer.stop_s, answer.busy_s, status)

    def _span(self, job: Job, device: str, start_s: float, stop_s: float, busy_s: float, status: str) -> None:
        send = job.send
        self.record.span(
            self.options.stage, device, job.worker, send.items, start_s, stop_s, busy_s, status, send.why,
            job.dealt_s, send.duplicate, job.cost,
        )  # fmt: skip

    def _accept(self, accept: Accept, device: str, answer: Answer, n_bytes: int) -> None:
        items, values, failures = accept.items, answer.values, answer.failures
        if accept.positions is not None:
            values = [values[at] for at in accept.positions]
            failures = {new: failures[at] for new, at in enumerate(accept.positions) if at in failures}
            items = tuple(items[at] for at in accept.positions)
        for at, failure in failures.items():
            error = failure.to_error(items[at], device)
            values[at] = error
            self._count_failure(items[at], error, failure.type_name, failure.message, device)
        self.sink.put(Block(items, values, frozenset(failures), n_bytes, device))
        self.source.release(items)

    def _settle(self, item: int, error: TaskError, device: str) -> None:
        """``item`` ends with ``error``, which is not its own."""
        self._count_failure(item, error, type(error).__name__, error.message, device)
        self.sink.put(Block((item,), [error], frozenset((0,)), 0, device))
        self.source.release((item,))

    def _count_failure(self, item: int, error: TaskError, name: str, message: str, device: str) -> None:
        self.tally.n_failed += 1
        self.record.item_failed(self.options.stage, item, name, message, device, error.remote_traceback)

    def _loss(self, item: int, why: str, device: str, gone: Gone) -> TaskError:
        if why == "overtime":
            return TaskTimeout(
                f"item {item} ran longer than {self.options.timeout_s:g} s; its worker was replaced",
                index=item,
                device=device,
                remote_traceback=gone.last_words,
                hint="raise timeout_s if it only needs longer",
            )
        how = gone.reason
        if why == "unknown":
            text, hint = (
                f"the worker with item {item} {how}; it may not be run again, its outcome is unknown",
                None,
            )
        else:
            text, hint = (
                f"item {item} was given up: every worker that ran it {how}",
                "run it alone, or inline",
            )
        error = WorkerLost(text, index=item, device=device, remote_traceback=gone.last_words, hint=hint)
        error.exit_code_of_worker = gone.exit_code
        return error
