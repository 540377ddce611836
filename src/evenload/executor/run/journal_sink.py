"""A run with a journal: what is done already is not run, and results are on disk before anybody gets them.

    run ──► JournalSink.put ──► journal (a thread, many results per fsync) ──► Delivery.put ──► receiver

An entry of the journal is an item's number; its payload begins with the
fingerprint of the item, so that a result is never given for another item than it was made from.
"""

import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from evenload.errors import ConfigError, WorkerLost
from evenload.executor.decide.delivery import Block, Delivery
from evenload.executor.decide.source import Source
from evenload.executor.journal.journal import Journal
from evenload.executor.task.failure import Failure
from evenload.same_code import CodeFacts, ItemFingerprints

FORM = "1"  # of the payloads
N_DIGEST = 16
EARLIER = "it is of an earlier version of evenload, which did not see all code that a function reaches"
VALUE, FAILED, BEGUN = b"vfb"  # a result | the error of an item that may not run again | it may have run


class _BlockWithItems(NamedTuple):
    block: Block
    items: list[Any]


class _End(NamedTuple):
    error: BaseException | None
    skips_gaps: bool


def open_journal(path: str | os.PathLike, fn: Any, on_change: str) -> Journal:
    """The journal of ``fn`` on some items. Raises as ``Journal.open`` does.

    A task with a ``journal_name`` is known by that: whoever made it names folders by all that matters.
    """
    name = getattr(fn, "journal_name", None)
    if isinstance(name, str):
        return Journal.open(path, {"function": name, "form of the results": FORM}, on_change=on_change)
    code = CodeFacts(fn)

    def tell(was: Mapping[str, str] | None) -> str:
        return EARLIER if was is None else code.change_since(was)

    named = {"function": code.digest, "form of the results": FORM}
    return Journal.open(path, named, on_change=on_change, parts=code.facts, tell=tell)


class JournalSink(Delivery):
    """A delivery of results that are in a journal before. All but its thread is of the executor's thread.

    call        has something called in the executor's thread; None if this is the only thread there is
    is_closed   everything that could be kept is, and the journal is free for others
    n_known     results that came from the journal
    more        arguments of ``Delivery``
    """

    def __init__(
        self,
        journal: Journal,
        source: Source,
        call: Callable[[Callable[[], None]], None] | None,
        *more: Any,
        repeatable: bool,
        on_change: str,
    ):
        super().__init__(*more)
        self.n_known = 0
        self.is_closed = threading.Event()
        self.thread: threading.Thread | None = None
        self._on_broken: Callable[[BaseException], None] = lambda error: None
        self._journal = journal
        self._n_unreadable = 0
        self._source = source
        self._call = call
        self._repeatable = repeatable
        self._refuses = on_change == "refuse"
        self._has_known = len(journal) > 0
        self._digests: dict[int, bytes] = {}
        self._fingerprint = ItemFingerprints()
        self._to_keep: SimpleQueue[_BlockWithItems | _End] = SimpleQueue()
        self._n_waiting_bytes = 0
        self._skips_gaps = False
        self._broken: BaseException | None = None
        weakref.finalize(self, journal.close)  # of a map that nobody ever iterated over

    def begin(self, on_broken: Callable[[BaseException], None]) -> None:
        """The run begins. ``on_broken`` is called in the executor's thread if the journal breaks."""
        self._on_broken = on_broken

    # --- what was done before ---------------------------------------------------------------------

    def what_is_lost(self) -> str:
        """What a person should know of entries that were of no use; "" for none."""
        n_lost = self._journal.n_damaged + self._n_unreadable
        if not n_lost:
            return ""
        what = "ran again" if self._repeatable else "have no result, as they may not run again"
        return f"{n_lost} entries of the journal {self._journal.path} are damaged; those items {what}"

    def known(self, items: range) -> list[Block]:
        """What the journal has of ``items``, which must be in the source still.

        Raises ConfigError if one of them is another than it was, and that is refused.
        """
        if not self._has_known:
            return []
        return [block for index in items if (block := self._known(index)) is not None]

    def _known(self, index: int) -> Block | None:
        n_damaged = self._journal.n_damaged
        payload = self._journal.done(str(index))
        if payload is None and self._journal.n_damaged == n_damaged:
            return None
        (item,) = self._source.take(range(index, index + 1))
        if payload is None or len(payload) <= N_DIGEST:
            if not self._repeatable:  # for the next run, too
                self._journal.record(str(index), self._fingerprint(item) + bytes((BEGUN,)))
            return self._lost(index, "may have run: its entry in the journal is damaged")
        digest, kind, body = payload[:N_DIGEST], payload[N_DIGEST], memoryview(payload)[N_DIGEST + 1 :]
        if digest != self._fingerprint(item):
            if not self._refuses:
                return None
            raise ConfigError(
                f"item {index}, or the code behind it, is not that whose result is in the journal "
                f"{self._journal.path}",
                hint="give the items of then, on_change='rerun' to run changed ones, or another journal",
            )
        if kind != VALUE and self._repeatable:
            return None
        if kind == BEGUN:
            return self._lost(index, "was begun by an earlier run that ended before it")
        try:
            value: Any = pickle.loads(body)
        except BaseException as error:  # of a class that has gone
            self._n_unreadable += 1
            return self._lost(
                index, f"has run, and its result in the journal cannot be read ({type(error).__name__})"
            )
        self.n_known += 1
        failed = frozenset(() if kind == VALUE else (0,))
        return Block(range(index, index + 1), [value], failed, len(body))

    def _lost(self, index: int, why: str) -> Block | None:
        """The error of an item that may have run and may not run again; None if it may."""
        if self._repeatable:
            return None
        text = f"item {index} {why}; it may not be run again, its outcome is unknown"
        self.n_known += 1
        return Block(range(index, index + 1), [WorkerLost(text, index=index)], frozenset((0,)), 0)

    def pass_on(self, blocks: Iterable[Block]) -> None:
        """To the receiver: these are in the journal."""
        for block in blocks:
            super().put(block)

    # --- what is done now -------------------------------------------------------------------------

    def before(self, indices: Sequence[int], items: Sequence[Any]) -> None:
        """Note items that are sent now. What may run once only is on record before it does."""
        if self._call is None:  # the function gets the very items, and may change them
            for index, item in zip(indices, items, strict=True):
                self._digests.setdefault(index, self._fingerprint(item))
        if not self._repeatable:
            begun = bytes((BEGUN,))
            self._journal.record_many(
                [(str(i), self._digest(i, item) + begun) for i, item in zip(indices, items, strict=True)]
            )

    def _digest(self, index: int, item: Any) -> bytes:
        return self._digests.get(index) or self._fingerprint(item)

    def put(self, block: Block) -> None:
        kept = _BlockWithItems(block, self._source.take(block.items))
        self._n_waiting_bytes += block.n_bytes
        if self._call is None:
            self._journal.record_many(self._entries(kept))
            self._arrive([block])
        else:
            self._enqueue(kept)

    def _entries(self, kept: _BlockWithItems) -> list[tuple[str, bytes]]:
        block, entries = kept.block, []
        for at, index in enumerate(block.items):
            value, is_failed = block.values[at], at in block.failed
            if is_failed and self._repeatable:  # it is tried again the next time
                self._digests.pop(index, None)
                continue
            digest = self._digest(index, kept.items[at])
            self._digests.pop(index, None)
            try:
                body = _pickled(value)
            except BaseException as error:
                value = Failure.of(error, "result").to_error(index, block.device)
                block.values[at], block.failed = value, block.failed | {at}
                if self._repeatable:
                    continue
                body, is_failed = _pickled(value), True
            entries.append((str(index), b"".join((digest, bytes((FAILED if is_failed else VALUE,)), body))))
        return entries

    def _arrive(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._n_waiting_bytes -= block.n_bytes
            super().put(block)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self._n_waiting_bytes

    def skip_gaps(self) -> None:
        self._skips_gaps = True

    def close(self, error: BaseException | None = None) -> None:
        end = _End(error, self._skips_gaps)
        if self._call is None:
            self._end(end)
        else:
            self._enqueue(end)

    def _end(self, end: _End) -> None:
        self._journal.close()
        self.is_closed.set()
        if end.skips_gaps:
            super().skip_gaps()
        error = self._broken or end.error  # what could not be kept is not delivered: that is told first
        if self._broken is not None and self._broken is not end.error:
            self._broken.__context__ = end.error
        super().close(error)

    # --- the thread -------------------------------------------------------------------------------

    def _enqueue(self, what: _BlockWithItems | _End) -> None:
        self._to_keep.put(what)
        if self.thread is None:
            self.thread = threading.Thread(target=self._serve, name="evenload-journal", daemon=True)
            self.thread.start()

    def _serve(self) -> None:
        """Write all that waits with one fsync, then have it passed on; again, until the end."""
        assert self._call is not None
        while True:
            waiting = [self._to_keep.get()]
            while True:
                try:
                    waiting.append(self._to_keep.get_nowait())
                except Empty:
                    break
            kept = [one for one in waiting if isinstance(one, _BlockWithItems)]
            if self._broken is None:
                try:
                    self._journal.record_many([entry for one in kept for entry in self._entries(one)])
                    self._call(partial(self._arrive, [one.block for one in kept]))
                except BaseException as error:  # of an item's or a result's own code too
                    self._broken = error
                    self._call(partial(self._on_broken, error))
            if isinstance(waiting[-1], _End):
                # Free for others before the receiver hears that this is the end.
                self._journal.close()
                self._call(partial(self._end, waiting[-1]))
                return


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # what plain pickle refuses, a lambda say, may still be kept by value
        import cloudpickle

        return cloudpickle.dumps(value, protocol=5)
