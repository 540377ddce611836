"""The scheduler of a run, a pure state machine: it deals items and settles each exactly once.

    event ──► Scheduler.handle ──► instructions

A dealer chooses the items for each device. The scheduler adds the faults: workers that die or hang, chunks
that cannot be unpickled, duplicates that come second, tasks that must not run twice. It has no clock and no
process, and knows items by number only, so every fault is tested as a list of events.

With ``batch`` the dealer deals units of so many items; events and instructions are about items.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from evenload.balance.dealing.deal import Deal
from evenload.balance.dealing.dealer import Dealer
from evenload.executor.decide import instruction as ins
from evenload.executor.decide.attempts import Losses, MemoryNeeds, RetryQueue
from evenload.executor.decide.device_trust import DeviceTrust
from evenload.executor.decide.instruction import Indices
from evenload.executor.decide.spans import Spans
from evenload.executor.transport.progress_cell import PACKING, QUEUED


class HeldChunk(NamedTuple):
    """A chunk that a device holds."""

    device: str
    units: Indices
    items: Indices
    singly: bool

    def blamed(self, position: int, batch: int) -> tuple[int, range]:
        """Return how many items had begun, and the positions of those that may have ended the worker."""
        n = len(self.items)
        if position == PACKING:
            return n, range(n)
        if position < 0:
            return 0, range(n)
        stop = min(n, position + (1 if self.singly else batch))
        return stop, range(position, stop)


class HungChunk(NamedTuple):
    """A chunk whose device is stuck: all but the stuck ``items`` was given to others."""

    held: HeldChunk
    items: list[int]


class Scheduler:
    """The state of a run's items; ``handle`` takes an event and returns instructions.

    batch              items that are dealt as one unit; 1 unless the task takes lists
    repeatable         an item that began may be run again
    max_worker_deaths  an item is given up after it has ended so many workers
    memory_bytes       memory by device, where it is known
    most_retries       retries of an item whose task raises, each after twice the pause of the one before

    ``retries`` counts items that are run again, by cause: died | overtime | memory | spoilt | raised.
    """

    def __init__(
        self,
        dealer: Dealer,
        *,
        batch: int = 1,
        repeatable: bool = True,
        max_worker_deaths: int = 2,
        memory_bytes: Mapping[str, int] | None = None,
        most_retries: int = 0,
    ):
        self.dealer = dealer
        self.settled = Spans()
        self.n_fed = 0
        self.is_ended = False
        self.retries: Counter[str] = Counter()
        self._batch = batch
        self._repeatable = repeatable
        self._n_units = 0
        self._unit_cost: float | None = None
        self._sent: dict[int, HeldChunk] = {}
        self._hung: dict[int, HungChunk] = {}
        self._losses = Losses(max_worker_deaths)
        self._suspects: set[int] = set()  # units whose items are sent one by one
        self._partial: set[int] = set()  # units of which some items are settled
        self._later = RetryQueue(most_retries)
        self._trust = DeviceTrust()
        self._memory = MemoryNeeds(memory_bytes or {})

    def handle(self, event: ins.Event) -> list[ins.Instruction]:
        """Take in ``event``; returns what to do about it."""
        return _HANDLERS[type(event)](self, event)

    @property
    def is_finished(self) -> bool:
        return self.is_ended and self.settled.n == self.n_fed

    def expect(self, n_items: int) -> None:
        """Tell the dealer that there will be ``n_items`` in all."""
        self.dealer.expect(-(-n_items // self._batch))

    def is_superseded(self, chunk: int) -> bool:
        """Whether every item of the chunk is settled already."""
        items = self._hung[chunk].items if chunk in self._hung else self._sent[chunk].items
        return not self._open(items)

    # --- items come -------------------------------------------------------------------------------

    def _on_read(self, event: ins.ItemsRead) -> list[ins.Instruction]:
        if event.costs is None:
            self.n_fed += event.n
            n_new = self.n_fed // self._batch - self._n_units
            self.dealer.add_range(self._n_units, n_new)
            self._n_units += n_new
            return []
        for cost in event.costs:
            self.n_fed += 1
            self._unit_cost = cost + (self._unit_cost or 0.0)
            if self.n_fed % self._batch == 0:
                self._add_unit()
        return []

    def _on_input_end(self, event: ins.InputEnded) -> list[ins.Instruction]:
        if self.n_fed > self._n_units * self._batch:
            self._add_unit()
            if not self._open_in(self._n_units - 1):
                self.dealer.forget([self._n_units - 1])
        self.is_ended = True
        self.dealer.close()
        return []

    def _on_restored(self, event: ins.ItemsRestored) -> list[ins.Instruction]:
        for item in event.items:
            self.settled.add(item, item + 1)
        units = {item // self._batch for item in event.items}
        open_ = {unit for unit in units if self._open_in(unit)}
        self._partial |= open_
        self.dealer.forget(units - open_)
        return []

    def _add_unit(self) -> None:
        self.dealer.add(self._n_units, self._unit_cost)
        self._n_units += 1
        self._unit_cost = None

    # --- devices ask ------------------------------------------------------------------------------

    def _on_free(self, event: ins.DeviceFree) -> list[ins.Instruction]:
        for unit, failed_on in self._later.due(event.now):
            self.dealer.strike(unit)  # an idle device's copy of it may run just where it has failed
            self.dealer.requeue([unit], avoid=failed_on)
        most = None if event.most is None else max(1, event.most // self._batch)
        answer = self.dealer.next(event.device, event.now, event.bundle, most, event.may_copy)
        if not isinstance(answer, Deal):
            dues_s = [at_s for at_s in (answer.until, self._later.next_s) if at_s is not None]
            return [ins.Rest(event.device, answer.why, min(dues_s, default=None))]
        units = answer.indices
        singly = bool(self._suspects) and not self._suspects.isdisjoint(units)
        items = units if self._batch == 1 else self._items(units)
        if singly and self._batch > 1:
            items = self._one_by_one(items)
        self._sent[answer.chunk] = HeldChunk(event.device, units, items, singly)
        return [ins.Send(answer.chunk, event.device, items, answer.why, answer.duplicate, singly)]

    def _items(self, units: ins.Indices) -> ins.Indices:
        is_whole = self._suspects.isdisjoint(units) and self._partial.isdisjoint(units)
        if isinstance(units, range) and is_whole:
            return range(units.start * self._batch, min(units.stop * self._batch, self.n_fed))
        return tuple(item for unit in units for item in self._open_in(unit))

    def _one_by_one(self, items: ins.Indices) -> ins.Indices:
        """Return those suspects that have ended no worker; if all may have, the first alone.

        What an item does to its worker may take effect at a later one, which must not be taken for it twice.
        """
        return tuple(item for item in items if not self._losses.is_suspect(item)) or items[:1]

    def _open_in(self, unit: int) -> list[int]:
        return self.settled.missing(unit * self._batch, min((unit + 1) * self._batch, self.n_fed))

    def _open(self, items: Iterable[int]) -> list[int]:
        return [item for item in items if item not in self.settled]

    # --- chunks come back -------------------------------------------------------------------------

    def _on_answer(self, event: ins.ChunkAnswered) -> list[ins.Instruction]:
        if event.chunk in self._hung:
            return self._on_late_answer(event)
        sent = self._sent.pop(event.chunk, None)
        if sent is None:
            return []
        if event.no_memory:
            return self._settle(event, sent)
        begun, here = sent.items[: event.skipped], self.dealer.devices_here()
        return self._trust.judge(sent.device, begun, event.raised, here) + self._settle(event, sent)

    def _settle(self, event: ins.ChunkAnswered, sent: HeldChunk) -> list[ins.Instruction]:
        if event.skipped is not None:  # it was dropped as others were faster: what is still open runs again
            begun = set(range(event.skipped))
            if self._repeatable:
                begun -= {*event.no_memory, *event.raised}
            accepted = self._accept(sent, [at for at in sorted(begun) if sent.items[at] not in self.settled])
            self._redo_rest(event.chunk, sent, event.now)
            return accepted
        retry = [p for p in event.no_memory if self._may_retry_elsewhere(sent.items[p], sent.device)]
        again = [p for p in event.raised if self._may_try_again(sent.items[p])]
        if retry or again:
            return self._accept_part(event, sent, retry, again)
        if sent.singly and any(item not in sent.items for unit in sent.units for item in self._open_in(unit)):
            accepted = self._accept(sent, self._open_positions(sent))
            self._redo_rest(event.chunk, sent, event.now)
            return accepted
        first = self.dealer.done(event.chunk, event.now, event.busy_s)
        if len(first) == len(sent.units) and isinstance(sent.items, range) and not self._suspects:
            self.settled.add(sent.items.start, sent.items.stop)
            return [ins.Accept(sent.items, None)]
        return self._accept(sent, self._open_positions(sent))

    def _on_late_answer(self, event: ins.ChunkAnswered) -> list[ins.Instruction]:
        """Accept the open items of a chunk that was stuck; others may have run some of them meanwhile."""
        sent = self._hung.pop(event.chunk).held
        n = len(sent.items) if event.skipped is None else event.skipped
        again = {p for p in event.no_memory if self._may_retry_elsewhere(sent.items[p], sent.device)}
        again |= {p for p in event.raised if self._may_try_again(sent.items[p])}
        accepted = self._accept(sent, [at for at in self._open_positions(sent) if at < n and at not in again])
        is_open = {unit for unit in sent.units if self._open_in(unit)}
        self.dealer.failed(event.chunk, event.now, is_open)
        self.dealer.forget(set(sent.units) - is_open)
        self._suspects |= is_open  # some of their items may be settled
        return accepted

    def _open_positions(self, sent: HeldChunk) -> list[int]:
        return [at for at, item in enumerate(sent.items) if item not in self.settled]

    def _redo_rest(self, chunk: int, sent: HeldChunk, now: float) -> None:
        """End a chunk of which some items are settled; units with open ones are dealt again."""
        again = [unit for unit in sent.units if self._open_in(unit)]
        self._partial.update(again)
        self.dealer.failed(chunk, now, again)

    def _accept(self, sent: HeldChunk, positions: list[int]) -> list[ins.Instruction]:
        for position in positions:
            self.settled.add(sent.items[position], sent.items[position] + 1)
        return [ins.Accept(sent.items, tuple(positions))] if positions else []

    def _may_retry_elsewhere(self, item: int, device: str) -> bool:
        may_run = self._repeatable and item not in self.settled
        return may_run and self._memory.may_retry(item, device, self.dealer.devices_here())

    def _may_try_again(self, item: int) -> bool:
        return item not in self.settled and self._repeatable and self._later.may_retry(item)

    def _accept_part(
        self, event: ins.ChunkAnswered, sent: HeldChunk, retry: list[int], again: list[int]
    ) -> list[ins.Instruction]:
        """Run positions ``retry`` where there is more memory, ``again`` after a pause; accept the others."""
        short = {sent.items[position] for position in retry}
        unlucky = {sent.items[position] for position in again} - short
        units, later = ({item // self._batch for item in items} for items in (short, unlucky))
        later -= units
        self.retries += Counter(memory=len(short), raised=len(unlucky))
        self._suspects |= units | later
        ended = [at for at in self._open_positions(sent) if sent.items[at] not in short | unlucky]
        accepted = self._accept(sent, ended)
        units |= {unit for unit in sent.units if self._open_in(unit)} - later
        avoid = self._memory.to_avoid(short, sent.device, self.dealer.devices_here())
        self.dealer.failed(event.chunk, event.now, units, avoid=avoid, later=later)
        for item in unlucky:
            if item // self._batch in later:
                self._later.put(item // self._batch, item, self._trust.failed_on(item), event.now)
                later.discard(item // self._batch)
        return accepted

    def _on_unreadable(self, event: ins.ChunkUnreadable) -> list[ins.Instruction]:
        if event.chunk in self._hung:
            return self._end_hung(event.chunk, event.now, "spoilt")
        sent = self._sent.pop(event.chunk, None)
        if sent is None:
            return []
        open_ = self._open(sent.items)
        is_unknown = event.is_run and not self._repeatable
        if is_unknown or sent.singly:
            return self._give_up(event.chunk, event.now, sent, open_, "unknown" if is_unknown else "spoilt")
        self._suspects.update(sent.units)
        self.retries["spoilt"] += len(open_)
        self.dealer.failed(event.chunk, event.now, sent.units)
        return []

    def _give_up(
        self, chunk: int, now: float, sent: HeldChunk, items: list[int], why: str
    ) -> list[ins.Instruction]:
        failed = self._fail(items, why)
        self._redo_rest(chunk, sent, now)
        return failed

    def _on_withdrawn(self, event: ins.ChunkWithdrawn) -> list[ins.Instruction]:
        sent = self._sent.pop(event.chunk)
        self._give_up(event.chunk, event.now, sent, self._open(sent.items), "withdrawn")
        return []

    # --- workers die ------------------------------------------------------------------------------

    def _on_death(self, event: ins.WorkerDied) -> list[ins.Instruction]:
        instructions: list[ins.Instruction] = []
        if event.chunk in self._hung:
            why = "overtime" if event.is_overtime else "died" if event.position != QUEUED else ""
            return self._end_hung(event.chunk, event.now, why, event.position)
        for deal in self.dealer.lost(event.device, event.now):
            sent = self._sent.pop(deal.chunk)
            if deal.chunk == event.chunk and event.position != QUEUED:
                began, blamed = sent.blamed(event.position, self._batch)
                instructions += self._settle_blamed(sent, began, blamed, event.is_overtime)
            elif event.position == PACKING and not self._repeatable:  # it may have gone on to this one
                instructions += self._fail(self._open(sent.items), "unknown")
            again = [unit for unit in sent.units if self._open_in(unit)]
            self.dealer.forget(set(sent.units) - set(again))
            self.dealer.requeue([u for u in again if u in self._suspects], alone=True, avoid=event.device)
            self.dealer.requeue(again)
        return instructions

    def _on_stuck(self, event: ins.WorkerStuck) -> list[ins.Instruction]:
        """Take back what the device holds but the stuck items; its answers still count if they come first.

        Not of what may run only once: the device may begin it before it learns of this.
        """
        held = self._sent.pop(event.chunk, None) if self._repeatable else None
        if held is None:
            return []
        _, stuck = held.blamed(event.position, self._batch)
        items = [held.items[at] for at in stuck]
        units = {item // self._batch for item in items}
        self._hung[event.chunk] = HungChunk(held, items)
        self.dealer.narrow(event.chunk, units)  # so that copies can be made of these alone
        again = [unit for unit in held.units if unit not in units]
        for deal in self.dealer.lost(event.device, event.now, but=event.chunk):
            waiting = self._sent.pop(deal.chunk)
            self._hung[deal.chunk] = HungChunk(waiting, [])
            again += waiting.units
        self.dealer.requeue(again)
        return []

    def _end_hung(self, chunk: int, now: float, why: str, at: int = QUEUED) -> list[ins.Instruction]:
        """The stuck item of a chunk has ended its worker, unless another device has it; or its batch has.

        A worker that went on after all was ``at`` another position when it ended.
        """
        hung = self._hung.pop(chunk)
        stuck = self._open(hung.items)
        if at >= 0 and (stuck or why == "overtime"):
            last = self._open(hung.held.items[position] for position in hung.held.blamed(at, self._batch)[1])
            stuck = last if why == "overtime" else sorted({*stuck, *last})
        has_copy, ends = self.dealer.has_copy(chunk), []
        if len(stuck) == 1 and (why == "overtime" or (why == "spoilt" and not has_copy)):
            ends = self._fail(stuck, why)
        elif len(stuck) == 1 and why == "died" and not has_copy:
            ends = self._strike(stuck[0])
        elif len(stuck) > 1 and why:
            self._suspects.update(item // self._batch for item in stuck)
            self.retries[why] += len(stuck)
        self._redo_rest(chunk, hung.held, now)
        self.dealer.forget({unit for unit in hung.held.units if not self._open_in(unit)})
        return ends

    def _settle_blamed(
        self, sent: HeldChunk, n_began: int, blamed: range, is_overtime: bool
    ) -> list[ins.Instruction]:
        suspects = self._open(sent.items[p] for p in blamed)
        if is_overtime and (len(suspects) == 1 or not self._repeatable):
            ends = self._fail(suspects, "overtime")
        elif len(suspects) == 1:
            ends = self._strike(suspects[0])
        else:
            self._suspects.update(item // self._batch for item in suspects)
            if sent.singly:  # nothing else would tell which of them it was
                self._losses.suspect(suspects)
            self.retries["overtime" if is_overtime else "died"] += len(suspects)
            ends = []
        if not self._repeatable:
            ends = ends + self._fail(self._open(sent.items[:n_began]), "unknown")
        return ends

    def _strike(self, item: int) -> list[ins.Instruction]:
        unit = item // self._batch
        self._suspects.add(unit)
        self.dealer.strike(unit)
        if self._losses.blame(item):
            return self._fail([item], "died")
        self.retries["died"] += 1
        return []

    def _fail(self, items: list[int], why: str) -> list[ins.Instruction]:
        for item in items:
            self.settled.add(item, item + 1)
        self._partial.update(item // self._batch for item in items)  # the others go without them
        return [ins.Fail(tuple(items), why)] if items else []

    # --- devices come and go ----------------------------------------------------------------------

    def _on_left(self, event: ins.DeviceLeft) -> list[ins.Instruction]:
        self.dealer.leave(event.device, event.now)
        return []

    def _on_joined(self, event: ins.DeviceJoined) -> list[ins.Instruction]:
        self.dealer.join(event.device, event.now, event.prior, event.is_helper)
        return []


_HANDLERS: dict[type, Callable[[Scheduler, Any], list[ins.Instruction]]] = {
    ins.ItemsRead: Scheduler._on_read,
    ins.InputEnded: Scheduler._on_input_end,
    ins.ItemsRestored: Scheduler._on_restored,
    ins.DeviceFree: Scheduler._on_free,
    ins.ChunkAnswered: Scheduler._on_answer,
    ins.ChunkUnreadable: Scheduler._on_unreadable,
    ins.WorkerDied: Scheduler._on_death,
    ins.DeviceLeft: Scheduler._on_left,
    ins.DeviceJoined: Scheduler._on_joined,
    ins.ChunkWithdrawn: Scheduler._on_withdrawn,
    ins.WorkerStuck: Scheduler._on_stuck,
}
