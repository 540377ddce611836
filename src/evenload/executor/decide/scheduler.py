"""The scheduler of a run, a pure state machine: it deals items and settles each exactly once.

    what has happened (a method of Scheduler) ──► instructions

A dealer chooses the items for each device. The scheduler adds the faults: workers that die or hang, chunks
that cannot be unpickled, duplicates that come second, tasks that must not run twice. It has no clock and no
process, and knows items by number only, so every fault is tested as a list of calls.

With ``batch`` the dealer deals units of so many items; whoever calls, and instructions, speak of items.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenload.balance.dealing.dealer import Deal, Dealer
from evenload.executor.decide.attempts import Losses, MemoryNeeds, RetryQueue
from evenload.executor.decide.device_trust import DeviceTrust
from evenload.executor.decide.item_states import Indices, ItemStates
from evenload.executor.transport.progress_cell import PACKING, QUEUED


class Send(NamedTuple):
    """An instruction to run ``items`` on ``device``. ``singly``: one by one, as one of them may bring
    workers down.
    """

    chunk: int
    device: str
    items: Indices
    why: str
    duplicate: bool
    singly: bool


class Rest(NamedTuple):
    """Send nothing to ``device`` now: ask again when something has changed, or at ``until``."""

    device: str
    why: str
    until: float | None


class Accept(NamedTuple):
    """An instruction to take the results at ``positions`` of the chunk (None: all); those of its other
    items came before.
    """

    items: Indices
    positions: tuple[int, ...] | None


class Fail(NamedTuple):
    """An instruction to give these items up. ``why``: died | overtime | spoilt | unknown (began, must not
    be run twice).
    """

    items: tuple[int, ...]
    why: str


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
    """The state of a run's items: it is told what happens, and returns instructions.

    batch              items that are dealt as one unit; 1 unless the task takes lists
    repeatable         an item that began may be run again
    max_worker_deaths  an item is given up after it has ended so many workers
    memory_bytes       memory by device, where it is known
    most_retries       retries of an item whose task raises, each after twice the pause of the one before

    ``states`` says of each item what became of it; what an item did to be suspect is kept beside, for those
    few. ``retries`` counts items that are run again, by cause: died | overtime | memory | spoilt | raised.
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
        self.states = ItemStates()
        self.is_ended = False
        self.retries: Counter[str] = Counter()
        self._batch = batch
        self._repeatable = repeatable
        self._n_units = 0
        self._unit_cost: float | None = None
        self._sent: dict[int, HeldChunk] = {}
        self._hung: dict[int, HungChunk] = {}
        self._losses = Losses(max_worker_deaths)
        self._later = RetryQueue(most_retries)
        self.trust = DeviceTrust()
        self._memory = MemoryNeeds(memory_bytes or {})

    @property
    def is_finished(self) -> bool:
        return self.is_ended and self.states.n_over == self.states.n

    def expect(self, n_items: int) -> None:
        """Tell the dealer that there will be ``n_items`` in all."""
        self.dealer.expect(-(-n_items // self._batch))

    def is_superseded(self, chunk: int) -> bool:
        """Whether every item of the chunk is settled already."""
        items = self._hung[chunk].items if chunk in self._hung else self._sent[chunk].items
        return not self.states.open(items)

    # --- items come -------------------------------------------------------------------------------

    def read(self, n: int, costs: Sequence[float] | None = None) -> None:
        """Take in that ``n`` more items were read; ``costs``: size hints for all of them, or None."""
        n_before = self.states.n
        self.states.add(n)
        if costs is None:
            n_new = self.states.n // self._batch - self._n_units
            self.dealer.add_range(self._n_units, n_new)
            self._n_units += n_new
            return
        for at, cost in enumerate(costs, n_before + 1):
            self._unit_cost = cost + (self._unit_cost or 0.0)
            if at % self._batch == 0:
                self._add_unit()

    def end_input(self) -> None:
        """Take in that all items have been read."""
        if self.states.n > self._n_units * self._batch:
            self._add_unit()
            if not self._open_in(self._n_units - 1):
                self.dealer.forget([self._n_units - 1])
        self.is_ended = True
        self.dealer.close()

    def restored(self, items: Indices) -> None:
        """Take in that the results of these items, which were read, come from an earlier run's journal."""
        self.states.move(items, "restored")
        self.dealer.forget(unit for unit in self._units(items) if not self._open_in(unit))

    def _add_unit(self) -> None:
        self.dealer.add(self._n_units, self._unit_cost)
        self._n_units += 1
        self._unit_cost = None

    # --- devices ask ------------------------------------------------------------------------------

    def free(
        self, device: str, now: float, bundle: int = 1, most: int | None = None, may_copy: bool = True
    ) -> Send | Rest:
        """Deal to ``device``, whose worker is ready and has nothing to do, or is about to have nothing.

        bundle    the most chunks that may be sent as one
        most      the most items to send; None for no limit
        may_copy  whether it may run items that another device has
        """
        if self._later.next_s is not None:
            for unit, failed_on in self._later.due(now):
                self.dealer.strike(unit)  # an idle device's copy of it may run just where it has failed
                self.dealer.requeue([unit], avoid=failed_on)
        most = None if most is None else max(1, most // self._batch)
        answer = self.dealer.next(device, now, bundle, most, may_copy)
        if not isinstance(answer, Deal):
            dues_s = [at_s for at_s in (answer.until, self._later.next_s) if at_s is not None]
            return Rest(device, answer.why, min(dues_s, default=None))
        units = answer.indices
        items, singly = self._whole(units), False
        if not (isinstance(items, range) and self.states.moved_alike(items, "dealt")):
            items, singly = self._picked(items)
            self.states.move(items, "dealt")
        self._sent[answer.chunk] = HeldChunk(device, units, items, singly)
        return Send(answer.chunk, device, items, answer.why, answer.duplicate, singly)

    def _whole(self, units: Indices) -> Indices:
        """Return all items of ``units``."""
        if self._batch == 1:
            return units
        if isinstance(units, range):
            return range(units.start * self._batch, min(units.stop * self._batch, self.states.n))
        return tuple(item for unit in units for item in self._items_of(unit))

    def _picked(self, items: Indices) -> tuple[Indices, bool]:
        """Return those of ``items`` to send, and whether they are run one by one.

        What an item does to its worker may take effect at a later one, which must not be taken for it twice.
        So of a batch with suspects, those go first that have ended no worker; if all may have, one alone.
        """
        singly = bool(self.states.suspects(items))
        if self._batch > 1:
            items = tuple(self.states.open(items))
            if singly:
                items = tuple(item for item in items if not self._losses.is_suspect(item)) or items[:1]
        return items, singly

    def _open_in(self, unit: int) -> list[int]:
        return self.states.open(self._items_of(unit))

    def _items_of(self, unit: int) -> range:
        return range(unit * self._batch, min((unit + 1) * self._batch, self.states.n))

    def _units(self, items: Iterable[int]) -> set[int]:
        return {item // self._batch for item in items}

    # --- chunks come back -------------------------------------------------------------------------

    def answered(
        self,
        chunk: int,
        now: float,
        busy_s: float,
        no_memory: tuple[int, ...] = (),
        skipped: int | None = None,
        raised: tuple[int, ...] = (),
    ) -> list[Accept]:
        """Settle a chunk that came back with results.

        no_memory  positions in the chunk that need more memory than the device has
        skipped    from this position on nothing was run, because the chunk was dropped; None: all was run
        raised     positions where the task raised something else and may be tried again
        """
        if chunk in self._hung:
            return self._settle_late(chunk, now, no_memory, skipped, raised)
        sent = self._sent.pop(chunk, None)
        if sent is None:
            return []
        if not no_memory and (raised or self.trust.has_failures):
            begun, here = sent.items[:skipped], self.dealer.devices_here()
            self.trust.judge(sent.device, begun, raised, here)
        if skipped is not None:  # it was dropped as others were faster: what is still open runs again
            vain = {*no_memory, *raised} if self._repeatable else set()
            accepted = self._accept(sent, [at for at in range(skipped) if at not in vain])
            self.states.move(self.states.open(sent.items[at] for at in sorted(vain)), "went wrong")
            self._redo_rest(chunk, sent, now)
            return accepted
        if no_memory or raised:
            retry = [p for p in no_memory if self._may_retry_elsewhere(sent.items[p], sent.device)]
            again = [p for p in raised if self._may_try_again(sent.items[p])]
            if retry or again:
                return self._accept_part(chunk, now, sent, retry, again)
        if sent.singly and any(item not in sent.items for unit in sent.units for item in self._open_in(unit)):
            accepted = self._accept(sent, range(len(sent.items)))
            self._redo_rest(chunk, sent, now)
            return accepted
        self.dealer.done(chunk, now, busy_s)
        if isinstance(sent.items, range) and self.states.moved_alike(sent.items, "answered"):
            return [Accept(sent.items, None)]
        return self._accept(sent, range(len(sent.items)))

    def _settle_late(
        self, chunk: int, now: float, no_memory: tuple[int, ...], skipped: int | None, raised: tuple[int, ...]
    ) -> list[Accept]:
        """Accept the open items of a chunk that was stuck; others may have run some of them meanwhile."""
        sent = self._hung.pop(chunk).held
        n = len(sent.items) if skipped is None else skipped
        again = {p for p in no_memory if self._may_retry_elsewhere(sent.items[p], sent.device)}
        again |= {p for p in raised if self._may_try_again(sent.items[p])}
        accepted = self._accept(sent, [at for at in range(n) if at not in again])
        self.states.move([sent.items[at] for at in again], "went wrong")
        self._redo_rest(chunk, sent, now)
        self._forget_over(sent)
        return accepted

    def _redo_rest(self, chunk: int, sent: HeldChunk, now: float) -> None:
        """End a chunk of which some items are over; units with open ones are dealt again."""
        self.dealer.failed(chunk, now, self._return(sent))

    def _return(self, sent: HeldChunk) -> list[int]:
        """Take a chunk that has ended from its worker; returns its units that have open items."""
        left = set(self.states.open(sent.items))
        if left:
            others = (*self._sent.values(), *(hung.held for hung in self._hung.values()))
            self.states.move(sorted(left.difference(*(other.items for other in others))), "returned")
        return [unit for unit in sent.units if self._open_in(unit)]

    def _forget_over(self, sent: HeldChunk) -> None:
        self.dealer.forget({unit for unit in sent.units if not self._open_in(unit)})

    def _accept(self, sent: HeldChunk, positions: Iterable[int]) -> list[Accept]:
        """Take the results at those of ``positions`` whose items are not over."""
        first = tuple(position for position in positions if not self.states.is_over(sent.items[position]))
        self.states.move([sent.items[position] for position in first], "answered")
        return [Accept(sent.items, first)] if first else []

    def _may_retry_elsewhere(self, item: int, device: str) -> bool:
        may_run = self._repeatable and not self.states.is_over(item)
        return may_run and self._memory.may_retry(item, device, self.dealer.devices_here())

    def _may_try_again(self, item: int) -> bool:
        return not self.states.is_over(item) and self._repeatable and self._later.may_retry(item)

    def _accept_part(
        self, chunk: int, now: float, sent: HeldChunk, retry: list[int], again: list[int]
    ) -> list[Accept]:
        """Run positions ``retry`` where there is more memory, ``again`` after a pause; accept the others."""
        short = {sent.items[position] for position in retry}
        unlucky = {sent.items[position] for position in again} - short
        later = self._units(unlucky) - self._units(short)
        self.retries += Counter(memory=len(short), raised=len(unlucky))
        self.states.move(sorted(short | unlucky), "went wrong")
        in_vain = {*retry, *again}
        accepted = self._accept(sent, [at for at in range(len(sent.items)) if at not in in_vain])
        units = set(self._return(sent)) - later
        avoid = self._memory.to_avoid(short, sent.device, self.dealer.devices_here())
        self.dealer.failed(chunk, now, units, avoid=avoid, later=later)
        for item in unlucky:
            if item // self._batch in later:
                self._later.put(item // self._batch, item, self.trust.failed_on(item), now)
                later.discard(item // self._batch)
        return accepted

    def unreadable(self, chunk: int, now: float, is_run: bool) -> list[Fail]:
        """Settle a chunk without results: its items or results could not be pickled or unpickled.

        ``is_run`` is False if none of its items was begun.
        """
        if chunk in self._hung:
            return self._end_hung(chunk, now, "spoilt")
        sent = self._sent.pop(chunk, None)
        if sent is None:
            return []
        open_ = self.states.open(sent.items)
        is_unknown = is_run and not self._repeatable
        failed: list[Fail] = []
        if is_unknown or sent.singly:
            failed = self._fail(open_, "unknown" if is_unknown else "spoilt")
        else:
            self.states.move(open_, "went wrong")
            self.retries["spoilt"] += len(open_)
        self._redo_rest(chunk, sent, now)
        return failed

    def withdrawn(self, chunk: int, now: float) -> None:
        """Take in that the chunk was not sent after all: its items are not wanted any more."""
        sent = self._sent.pop(chunk)
        self.states.move(self.states.open(sent.items), "withdrawn")
        self._redo_rest(chunk, sent, now)

    # --- workers die ------------------------------------------------------------------------------

    def died(
        self, chunk: int, device: str, now: float, position: int, is_overtime: bool = False
    ) -> list[Fail]:
        """Settle all that a worker held which ended at ``position`` of ``chunk`` (see ``progress_cell``).

        ``is_overtime``: it was killed because the item there ran for too long.
        """
        if chunk in self._hung:
            why = "overtime" if is_overtime else "died" if position != QUEUED else ""
            return self._end_hung(chunk, now, why, position)
        failed: list[Fail] = []
        for deal in self.dealer.lost(device, now):
            sent = self._sent.pop(deal.chunk)
            if deal.chunk == chunk and position != QUEUED:
                began, blamed = sent.blamed(position, self._batch)
                failed += self._settle_blamed(sent, began, blamed, is_overtime)
            elif position == PACKING and not self._repeatable:  # it may have gone on to this one
                failed += self._fail(self.states.open(sent.items), "unknown")
            again = self._return(sent)
            self._forget_over(sent)
            suspects = self._units(self.states.suspects(sent.items))
            self.dealer.requeue([u for u in again if u in suspects], alone=True, avoid=device)
            self.dealer.requeue(again)
        return failed

    def stuck(self, chunk: int, device: str, now: float, position: int) -> None:
        """Take back what the device holds but the items at ``position``, which take very long.

        Its answers still count if they come first. Not of what may run only once: the device may begin it
        before it learns of this.
        """
        held = self._sent.pop(chunk, None) if self._repeatable else None
        if held is None:
            return
        items = [held.items[at] for at in held.blamed(position, self._batch)[1]]
        units = self._units(items)
        self._hung[chunk] = HungChunk(held, items)
        self.dealer.narrow(chunk, units)  # so that copies can be made of these alone
        again = [unit for unit in held.units if unit not in units]
        for deal in self.dealer.lost(device, now, but=chunk):
            waiting = self._sent.pop(deal.chunk)
            self._hung[deal.chunk] = HungChunk(waiting, [])
            again += waiting.units
        self.dealer.requeue(again)

    def _end_hung(self, chunk: int, now: float, why: str, at: int = QUEUED) -> list[Fail]:
        """The stuck item of a chunk has ended its worker, unless another device has it; or its batch has.

        A worker that went on after all was ``at`` another position when it ended.
        """
        hung = self._hung.pop(chunk)
        stuck = self.states.open(hung.items)
        if at >= 0 and (stuck or why == "overtime"):
            blamed = hung.held.blamed(at, self._batch)[1]
            last = self.states.open(hung.held.items[position] for position in blamed)
            stuck = last if why == "overtime" else sorted({*stuck, *last})
        has_copy, ends = self.dealer.has_copy(chunk), []
        if len(stuck) == 1 and (why == "overtime" or (why == "spoilt" and not has_copy)):
            ends = self._fail(stuck, why)
        elif len(stuck) == 1 and why == "died" and not has_copy:
            ends = self._strike(stuck[0])
        elif len(stuck) > 1 and why:
            self.states.move(stuck, "went wrong")
            self.retries[why] += len(stuck)
        self._redo_rest(chunk, hung.held, now)
        self._forget_over(hung.held)
        return ends

    def _settle_blamed(self, sent: HeldChunk, n_began: int, blamed: range, is_overtime: bool) -> list[Fail]:
        suspects = self.states.open(sent.items[p] for p in blamed)
        if is_overtime and (len(suspects) == 1 or not self._repeatable):
            ends = self._fail(suspects, "overtime")
        elif len(suspects) == 1:
            ends = self._strike(suspects[0])
        else:
            self.states.move(suspects, "went wrong")
            if sent.singly:  # nothing else would tell which of them it was
                self._losses.suspect(suspects)
            self.retries["overtime" if is_overtime else "died"] += len(suspects)
            ends = []
        if not self._repeatable:
            ends = ends + self._fail(self.states.open(sent.items[:n_began]), "unknown")
        return ends

    def _strike(self, item: int) -> list[Fail]:
        self.states.move([item], "went wrong")
        self.dealer.strike(item // self._batch)
        if self._losses.blame(item):
            return self._fail([item], "died")
        self.retries["died"] += 1
        return []

    def _fail(self, items: list[int], why: str) -> list[Fail]:
        self.states.move(items, "given up")
        return [Fail(tuple(items), why)] if items else []
