"""One map while it runs: joins the items' source, the scheduler and the delivery of results.

All of it belongs to the executor's thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from evenload.balance.dealing.dealer import Dealer
from evenload.balance.policy import Policy, Pull
from evenload.balance.policy.estimate import Cost
from evenload.balance.sizes.size_model import SizeModel
from evenload.errors import NoUsableDevice, TaskError, TaskTimeout, WorkerLost
from evenload.executor.decide.attempts import Losses
from evenload.executor.decide.delivery import Block, Sink
from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Accept, Rest, Scheduler, Send
from evenload.executor.decide.source import Source
from evenload.executor.decide.summary import Summary
from evenload.executor.run.chunk_sizing import ChunkSizing
from evenload.executor.run.item_describer import ItemDescriber
from evenload.executor.run.map_options import MapOptions
from evenload.executor.run.progress_line import ProgressLine
from evenload.executor.run.run_account import RunAccount, SentChunk
from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import OVER_MEMORY, Answered, Gone
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import QUEUED

if TYPE_CHECKING:
    from evenload.executor.run.journal_sink import JournalSink

LOOK_AHEAD = 100_000
LOOK_AHEAD_BYTES = 512 * 1024 * 1024


N_LOOKED_UP = 256  # items at once that are looked for in a journal


def error_of_lost_item(item: int, why: str, device: str, gone: Gone, timeout_s: float | None) -> TaskError:
    """What is delivered for ``item``. ``why``: overtime | unknown (it may not run again) | died."""
    if why == "overtime":
        return TaskTimeout(
            f"item {item} ran longer than {timeout_s:g} s; its worker was replaced",
            index=item,
            device=device,
            remote_traceback=gone.last_words,
            hint="raise timeout_s if it only needs longer",
        )
    how = gone.reason
    if why == "unknown":
        text = f"the worker with item {item} {how}; it may not be run again, its outcome is unknown"
        hint = None
    else:
        text = f"item {item} was given up: every worker that ran it {how}"
        hint = "run it alone, or inline"
        if gone.cause.startswith(OVER_MEMORY):
            hint = "raise memory_limit, or have an item (or batch) need less at once"
    error = WorkerLost(text, index=item, device=device, remote_traceback=gone.last_words, hint=hint)
    error.exit_code_of_worker = gone.exit_code
    return error


class Run:
    """One map, or all submitted calls, from its first item to the end of its results.

    devices   those that take part; given with what is known of each
    journal   its sink, if it has a journal
    trust     what to do about devices that fail
    on_over   called once, when nothing more will be delivered
    size      of its items, by which costs are remembered; None if they are not to be
    summary   how it went, once it is over; then ``certificate()`` makes its certificate
    """

    def __init__(
        self,
        task: PreparedTask,
        source: Source,
        dealer: Dealer,
        scheduler: Scheduler,
        sink: Sink,
        record: Record,
        options: MapOptions,
        devices: Mapping[str, Mapping[str, Any]],
        *,
        on_over: "Callable[[Run], None]" = lambda run: None,
        size: str | None = None,
        describer: ItemDescriber | None = None,
    ):
        self.task, self.source, self.options = task, source, options
        self.devices = set(devices)
        self.size = size
        # pyrefly: ignore
        self.journal: JournalSink | None = sink if options.journal is not None else None
        self.is_over = self.is_stopping = self.is_held_up = False
        self.error: BaseException | None = None
        self.summary: Summary | None = None
        self.sizing, self.trust = ChunkSizing(task.batch or 1), scheduler.trust
        self._describer = describer
        self._dealer, self._scheduler, self._sink, self._on_over = dealer, scheduler, sink, on_over
        self._account = RunAccount(record, options.stage, devices, options.work)
        self.certificate = self._account.certificate
        self._look_ahead_bytes = options.look_ahead_bytes or LOOK_AHEAD_BYTES
        self._look_ahead = options.look_ahead or LOOK_AHEAD
        self._causes: dict[str, str] = {}
        self._losses = Losses()
        self._progress: ProgressLine | None = None
        self._call_s = self._began_s = 0.0
        self._ended_s: float | None = None
        self._first_sent_s: float | None = None

    def show_progress(self, line: ProgressLine | None) -> None:
        """Show on ``line`` how far the run is, until it is over."""
        self._progress = line

    def count_call(self, seconds: float) -> None:
        """Add ``seconds`` that the caller waited for the call that made this run, before it begins."""
        self._call_s += seconds

    def ask(self) -> None:
        """Let the run's time begin, as the first result is asked for."""
        self._began_s = time.monotonic() - self._call_s

    def begin(self, on_broken: Callable[[BaseException], None]) -> None:
        """``on_broken`` is called if its journal cannot be written."""
        self._began_s = self._began_s or time.monotonic()
        if self.journal is not None:
            self.journal.begin(on_broken)
        self._account.begin(self.source.total)
        if self.source.total is not None:
            self._scheduler.expect(self.source.total)

    # --- what others may ask ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Every item has its fate."""
        return self._scheduler.is_finished

    @property
    def n_waiting(self) -> int | None:
        """Items (or batches) that no device has yet; None if nobody knows how many will come."""
        return self._dealer.remaining

    @property
    def n_most_items(self) -> int | None:
        """Items that there are, or will be; None if nobody knows."""
        total = self.source.total
        return None if total is None else max(total, self.source.n_ready)

    @property
    def has_duplicates(self) -> bool:
        return self._account.n_duplicates > 0

    @property
    def has_balancer(self) -> bool:
        return self.options.balancer is not None

    @property
    def law(self) -> SizeModel | None:
        """What was learned of the sizes of its items, if that is of use."""
        return None if self._dealer.sizes is None else self._dealer.sizes.model

    def has_work(self) -> bool:
        """Is it worth building the task on one more device? Not for copies only, unless an item hangs."""
        may_deal = self._dealer.remaining != 0 or self.is_held_up
        return may_deal and not (self.is_over or self.is_stopping)

    def has_items_for(self, device: str) -> bool:
        """Whether items wait here that ``device`` may get."""
        return (
            bool(self._dealer.n_ready) and device in self.devices and not (self.is_over or self.is_stopping)
        )

    def is_superseded(self, chunk: "Sent") -> bool:
        """Every item of ``chunk`` has its fate already."""
        return self._scheduler.is_superseded(chunk.send.chunk)

    def queued(self) -> dict[str, int]:
        """Items that wait for one device alone, by device."""
        return self._dealer.queued()

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        return self._dealer.fastest_first(devices)

    def costs(self, least_measured: int = 0) -> dict[str, Cost]:
        """Measured costs of an item, by device; only of those with so many measured chunks."""
        devices = [d for d in self._dealer.devices_here() if self._dealer.n_measured(d) >= least_measured]
        costs = {device: self._dealer.cost(device) for device in devices}
        return {device: cost for device, cost in costs.items() if cost is not None}

    # --- what others may change -------------------------------------------------------------------

    def stop(self) -> None:
        """Deal nothing more; what workers have is finished."""
        self.is_stopping = True

    def set_policy(self, policy: Policy, now: float) -> None:
        """Deal the rest by ``policy``. Raises what a policy raises that does not fit."""
        self._dealer.set_policy(policy, now)

    def set_balancing(self, on: bool) -> None:
        self._dealer.set_balancing(on)

    def balance(self, now: float) -> None:
        """Let the balancer move queued items, if it is time."""
        for move in self._dealer.tick(now):
            self._account.moved(move)

    def join(self, device: str, prior: float, is_helper: bool, now: float) -> None:
        """``device`` takes part from now on."""
        if not self.is_over and device not in self.devices:
            self.devices.add(device)
            self._dealer.join(device, now, prior, is_helper)

    def leave(self, device: str, why: str, now: float) -> None:
        """``device`` can do nothing for this run. Ends the run if it was the last."""
        if device not in self.devices:
            return
        self.devices.discard(device)
        self._causes[device] = why
        self._dealer.leave(device, now)
        if not self.devices and not self._scheduler.is_finished:
            self.end(NoUsableDevice(f"no device can run {self.task.name}", causes=self._causes))

    # --- items in, chunks out ---------------------------------------------------------------------

    def feed(self) -> None:
        """Let the scheduler have what is there, as far as results may pile up."""
        while not self.is_over and self._feed():
            pass
        if self._describer is not None and not self.is_over:
            self._describer.refresh()

    def _feed(self) -> bool:
        """Let the scheduler have what is there, as far as results may pile up.

        Returns True if there may be more at once: what a journal has makes room without any device.
        """
        scheduler, source, sink = self._scheduler, self.source, self._sink
        if scheduler.is_ended:
            return False
        limit = self._limit()
        source.want(min(limit, self.sizing.demand(len(self.devices), self._look_ahead_bytes)))
        if scheduler.states.n == source.n_ready:
            source.call_when_more()
        is_ended, n_ready = source.is_ended, source.n_ready  # in this order: the reader ends last
        n_new = min(n_ready, limit) - scheduler.states.n
        is_known = False
        if self.journal is not None:
            is_last = is_ended and scheduler.states.n + n_new == n_ready
            is_known = self._feed_from_journal(self.journal, n_new, is_last)
        elif n_new > 0:
            scheduler.read(n_new, source.costs(scheduler.states.n, n_new))
        if is_ended and scheduler.states.n == n_ready:
            scheduler.end_input()
        sink.is_waiting_for_room = not scheduler.is_ended and scheduler.states.n >= limit
        return is_known

    def _feed_from_journal(self, journal: "JournalSink", n_new: int, is_last: bool) -> bool:
        """Deliver what the journal has of the next items at once. Returns True unless that was all."""
        scheduler, source, batch = self._scheduler, self.source, self.sizing.n_per_call
        n_piece = batch * -(-N_LOOKED_UP // batch)
        has_more, n_new = n_new > n_piece, min(n_new, n_piece)
        if n_new % batch and (has_more or not is_last):
            n_new -= n_new % batch  # whole batches, so that one is known as a whole if all of it is
        if n_new <= 0:
            return False
        start = scheduler.states.n
        scheduler.read(n_new, source.costs(start, n_new))
        blocks = journal.known(range(start, start + n_new))
        if blocks:
            items = tuple(item for block in blocks for item in block.items)
            scheduler.restored(items)
            self.sizing.restored(len(items))
            self._account.restored(blocks, items)
            source.release(items)
            journal.pass_on(blocks)
        return has_more or bool(blocks)

    def _limit(self) -> int:
        """No item beyond this one yet: results wait for their turn, or for whoever fetches them.

        Whole batches, so that none waits for ever for items that must wait for its results.
        """
        room = self._look_ahead if self._sink.n_bytes < self._look_ahead_bytes else 0
        batch = self.sizing.n_per_call
        return -(-max(self._sink.n_taken + room, self._scheduler.states.n) // batch) * batch

    def deal(self, device: str, now: float, *, may_copy: bool = True, most: int | None = None) -> Send | Rest:
        """The next chunk for ``device``, or why there is none now.

        may_copy  or one that another has
        most      items in it, None without limit
        """
        if self._sink.n_ready_bytes >= self._look_ahead_bytes:
            self._sink.is_waiting_for_room = True
            return Rest(device, "results wait to be fetched", None)
        bundle = 1 if self.source.is_apart else self.bundle(device)
        # A worker that dies takes with it what it has not sent: of what may not run again, one call at most.
        fits = self.sizing.most_items(self.source) if self.options.repeatable else 1
        most = min((n for n in (most, fits) if n is not None), default=None)
        instruction = self._scheduler.free(device, now, bundle, most, may_copy)
        if isinstance(instruction, Send):
            self.sizing.dealt(len(instruction.items), is_copy=instruction.duplicate)
            if self._first_sent_s is None:
                self._first_sent_s = now
            self._account.n_duplicates += instruction.duplicate
        return instruction

    def free(self, device: str, now: float, why: str = "") -> None:
        """``device`` was free: it gets a chunk now, or nothing for the reason ``why``."""
        self._account.seconds.asked(device, now, why)

    def worked_elsewhere(self, device: str, seconds: float) -> None:
        """``device`` worked for another run."""
        self._account.seconds.elsewhere(device, seconds)

    def n_more_items(self, n_items: int) -> int | None:
        """How many items a worker may still run that was sent ``n_items``; None if there is no limit."""
        fresh = self.options.fresh
        return None if fresh is False else max(0, int(fresh) - n_items)

    def bundle(self, device: str) -> int:
        """How many chunks should go to ``device`` together, and as many wait there.

        Only where their size is fixed: other policies make them longer instead. Only what may run twice:
        what waits there might have to be taken back.
        """
        policy = self._dealer.policy
        if not (isinstance(policy, Pull) and self.options.repeatable) or self.options.fresh is not False:
            return 1
        return self.sizing.n_together(device, policy.chunk)

    def items_to_send(self, send: Send, now: float) -> list[Any] | None:
        """The items of ``send``, which are sent now; None if nobody wants them any more."""
        if not self.source.claim(send.items):
            self._scheduler.withdrawn(send.chunk, now)
            return None
        items = self.source.take(send.items)
        if self.journal is not None:
            self.journal.before(send.items, items)
        if self._describer is not None and self.sizing.is_worth_ordering:
            self._describer.sent(send.items, items)
        return items

    def flush(self) -> None:
        """Hand over results that are ready."""
        self._sink.flush()

    # --- what became of a chunk -------------------------------------------------------------------

    def answered(self, chunk: "Sent", device: str, message: Answered, now: float) -> None:
        answer = message.answer
        no_memory = tuple(at for at, failure in answer.failures.items() if failure.kind == "memory")
        raised: tuple[int, ...] = ()
        if self.options.retries:
            raised = tuple(at for at, failure in answer.failures.items() if failure.kind == "raised")
        if self._describer is not None:
            self._describer.answered(chunk.send.items, has_failures=bool(answer.failures))
        accepted = self._scheduler.answered(
            chunk.send.chunk, now, answer.busy_s, no_memory, answer.skipped, raised
        )
        self._count(chunk, device, message, accepted)
        self.sizing.answered(device, len(answer.values), answer.busy_s, message.n_bytes)
        for accept in accepted:
            self._accept(accept, device, answer, message.n_bytes)
        if self._progress is not None:
            self._progress.show(self._scheduler.states.n_over, self.source.total)

    def spoilt(self, chunk: "Sent", device: str, failure: Failure, is_run: bool, now: float) -> None:
        """``chunk`` came back without results, or could not be sent."""
        failed = self._scheduler.unreadable(chunk.send.chunk, now, is_run)
        self._account.ended(chunk, device, now, "failed", self._suspects(chunk))
        for fail in failed:
            for item in fail.items:
                error = failure.to_error(item, device)
                if fail.why == "unknown":
                    error.message += "; it has run and must not run again, so its result is lost"
                self._fail_item(item, error, device)

    def died(self, chunk: "Sent", device: str, gone: Gone, position: int, now: float) -> None:
        """The worker with ``chunk`` is gone; it was at ``position`` of it, or at another chunk (QUEUED)."""
        if position != QUEUED:
            self._account.worker_lost()
            may_excuse = gone.is_cut_off and self.options.repeatable and chunk.overtime_at is None
            if may_excuse and self._losses.excuse(chunk.send.items):
                position = QUEUED  # as if it had run another chunk
        is_overtime = chunk.overtime_at is not None and chunk.overtime_at == position
        failed = self._scheduler.died(chunk.send.chunk, device, now, position, is_overtime)
        self._account.ended(chunk, device, now, "lost", self._suspects(chunk))
        for fail in failed:
            for item in fail.items:
                error = error_of_lost_item(item, fail.why, device, gone, self.options.timeout_s)
                self._fail_item(item, error, device)

    def release_rest(self, chunk: "Sent", device: str, position: int, now: float, *, has_queue: bool) -> bool:
        """The item at ``position`` takes very long: others get what waits behind it, if anything does."""
        self.is_held_up = True
        has_rest = has_queue or len(chunk.send.items) > self.sizing.n_per_call
        if self.is_over or not self.options.repeatable or not has_rest:
            return False
        self._scheduler.stuck(chunk.send.chunk, device, now, position)
        return True

    def abandoned(self, chunk: "Sent", device: str, now: float) -> None:
        """The run is over and ``chunk`` still runs: its span ends here, whatever becomes of it."""
        self._account.ended(chunk, device, now, "superseded")

    # --- the end ----------------------------------------------------------------------------------

    def end_early(self) -> None:
        """End a run that was to stop, when nothing runs any more."""
        self._sink.skip_gaps()
        self.end(None)

    @property
    def status(self) -> str:
        """How a run that is over ended, in the words of ``events.RunFinished``."""
        if self.error is not None:
            return "failed"
        if not self._scheduler.is_finished:
            return "interrupted"
        return "failures" if self._account.n_failed else "done"

    @property
    def is_done(self) -> bool:
        """Whether every item has its result or its error, and nothing ended the run before."""
        return self.is_over and self.status in ("done", "failures")

    def over_for_s(self) -> float:
        """Seconds since the last result was there; 0 while the run is not over."""
        return 0.0 if self._ended_s is None else time.monotonic() - self._ended_s

    def end(self, error: BaseException | None) -> None:
        """Deliver nothing more; ``error`` is raised to the receiver when it has fetched what there is."""
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        try:
            self.source.close()
            if self._describer is not None:
                self._describer.close()
            now = self._ended_s = time.monotonic()
            startup_s = (now if self._first_sent_s is None else self._first_sent_s) - self._began_s
            if self.journal is not None:
                self._account.count_journal(self.journal.n_known, self.journal.what_is_lost())
            n_ended, retries = self._scheduler.states.n_over, self._scheduler.retries
            self.summary = self._account.close(
                n_ended, self.source.total, self._began_s, now, startup_s, retries, str(self.law or "")
            )
            self._on_over(self)
        finally:
            if self._progress is not None:
                self._progress.close()
            self._sink.close(error)

    # --- inside -----------------------------------------------------------------------------------

    def _count(self, chunk: "Sent", device: str, message: Answered, accepted: Iterable[Accept]) -> None:
        answer = message.answer
        n_first = sum(len(one.items if one.positions is None else one.positions) for one in accepted)
        if n_first:
            self.sizing.counted(len(answer.values), answer.busy_s)
        self._account.answered(
            chunk, device, answer, n_first=n_first, n_bytes=message.n_bytes, suspects=self._suspects(chunk)
        )

    def _suspects(self, chunk: "Sent") -> list[int]:
        return self._scheduler.states.suspects(chunk.send.items)

    def _accept(self, accept: Accept, device: str, answer: Answer, n_bytes: int) -> None:
        items, values, failures = accept.items, answer.values, answer.failures
        if accept.positions is not None:
            values = [values[at] for at in accept.positions]
            failures = {new: failures[at] for new, at in enumerate(accept.positions) if at in failures}
            items = tuple(items[at] for at in accept.positions)
        for at, failure in failures.items():
            error = failure.to_error(items[at], device)
            values[at] = error
            self._account.item_failed(items[at], error, failure.type_name, failure.message, device)
        self._sink.put(Block(items, values, frozenset(failures), n_bytes, device))
        self.source.release(items)

    def _fail_item(self, item: int, error: TaskError, device: str) -> None:
        """``item`` ends with ``error``, which is not its own."""
        self._account.item_failed(item, error, type(error).__name__, error.message, device)
        self._sink.put(Block((item,), [error], frozenset((0,)), 0, device))
        self.source.release((item,))


Sent = SentChunk[Run]
