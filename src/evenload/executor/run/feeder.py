"""Feeds the items of a run to its scheduler, no faster than results are fetched."""

from typing import TYPE_CHECKING

from evenload.executor.decide import instruction as ins
from evenload.executor.decide.scheduler import Scheduler
from evenload.executor.decide.source import Source
from evenload.executor.run.chunk_sizing import ChunkSizing
from evenload.executor.run.run_account import RunAccount
from evenload.executor.run.sink import Sink

if TYPE_CHECKING:
    from evenload.executor.run.journal_sink import JournalSink

__all__ = ["Feeder"]

N_LOOKED_UP = 256  # items at once that are looked for in a journal


class Feeder:
    """Moves items from the source of a run to its scheduler; those that its journal has, to its receiver.

    look_ahead        items that may be begun beyond the last result fetched
    look_ahead_bytes  what results may take that are not fetched, and items that are read ahead
    """

    def __init__(
        self,
        source: Source,
        scheduler: Scheduler,
        sink: Sink,
        sizing: ChunkSizing,
        account: RunAccount,
        journal: "JournalSink | None",
        look_ahead: int,
        look_ahead_bytes: int,
    ):
        self._source, self._scheduler, self._sink = source, scheduler, sink
        self._sizing, self._account, self._journal = sizing, account, journal
        self._look_ahead, self._look_ahead_bytes = look_ahead, look_ahead_bytes

    def feed(self, n_devices: int) -> bool:
        """Let the scheduler have what is there, as far as results may pile up.

        Returns True if there may be more at once: what a journal has makes room without any device.
        """
        scheduler, source, sink = self._scheduler, self._source, self._sink
        if scheduler.is_ended:
            return False
        limit = self._limit()
        source.want(min(limit, self._sizing.demand(n_devices, self._look_ahead_bytes)))
        if scheduler.n_fed == source.n_ready:
            source.call_when_more()
        is_ended, n_ready = source.is_ended, source.n_ready  # in this order: the reader ends last
        n_new = min(n_ready, limit) - scheduler.n_fed
        is_known = False
        if self._journal is not None:
            is_last = is_ended and scheduler.n_fed + n_new == n_ready
            is_known = self._feed_from_journal(self._journal, n_new, is_last)
        elif n_new > 0:
            scheduler.handle(ins.ItemsRead(n_new, source.costs(scheduler.n_fed, n_new)))
        if is_ended and scheduler.n_fed == n_ready:
            scheduler.handle(ins.InputEnded())
        sink.is_waiting_for_room = not scheduler.is_ended and scheduler.n_fed >= limit
        return is_known

    def _feed_from_journal(self, journal: "JournalSink", n_new: int, is_last: bool) -> bool:
        """Deliver what the journal has of the next items at once. Returns True unless that was all."""
        scheduler, source, batch = self._scheduler, self._source, self._sizing.n_per_call
        n_piece = batch * -(-N_LOOKED_UP // batch)
        has_more, n_new = n_new > n_piece, min(n_new, n_piece)
        if n_new % batch and (has_more or not is_last):
            n_new -= n_new % batch  # whole batches, so that one is known as a whole if all of it is
        if n_new <= 0:
            return False
        start = scheduler.n_fed
        scheduler.handle(ins.ItemsRead(n_new, source.costs(start, n_new)))
        blocks = journal.known(range(start, start + n_new))
        if blocks:
            items = tuple(item for block in blocks for item in block.items)
            scheduler.handle(ins.ItemsRestored(items))
            self._sizing.restored(len(items))
            self._account.restored(blocks, items)
            source.release(items)
            journal.pass_on(blocks)
        return has_more or bool(blocks)

    def _limit(self) -> int:
        """No item beyond this one yet: results wait for their turn, or for whoever fetches them.

        Whole batches, so that none waits for ever for items that must wait for its results.
        """
        room = self._look_ahead if self._sink.n_bytes < self._look_ahead_bytes else 0
        batch = self._sizing.n_per_call
        return -(-max(self._sink.n_taken + room, self._scheduler.n_fed) // batch) * batch
