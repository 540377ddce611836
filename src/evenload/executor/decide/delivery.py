"""Delivery of results from the executor's thread to the receiver's, in input order if asked for.

Order is restored only here: what a device does next never depends on the result that is due.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

WAIT_S = 10.0  # for results, before whoever asked is asked whether they can come

Indices = range | tuple[int, ...]


@dataclass(slots=True)
class Block:
    """Results that are handed over together. ``failed``: positions that have an error instead of a value."""

    items: Indices
    values: list[Any]
    failed: frozenset[int] = frozenset()
    n_bytes: int = 0
    device: str = ""

    def __len__(self) -> int:
        return len(self.values)


class Sink:
    """A place where the results of a run go; this one hands each on at once, so that none waits in it.

    n_taken              results that the receiver has
    is_waiting_for_room  the executor waits until the receiver has taken results
    """

    n_taken = 0
    is_waiting_for_room = False

    @property
    def n_bytes(self) -> int:
        """The bytes of results that wait here, as they were sent."""
        return 0

    @property
    def n_ready_bytes(self) -> int:
        """The bytes of those that the receiver can fetch now."""
        return 0

    def put(self, block: Block) -> None:
        """Add results."""
        raise NotImplementedError

    def flush(self) -> None:
        """Hand over what is ready, with one waking of the receiver."""

    def skip_gaps(self) -> None:
        """Make all waiting results ready, as the ones before them will not come."""

    def close(self, error: BaseException | None = None) -> None:
        """End it. ``error`` is raised to the receiver after the last result."""
        raise NotImplementedError


@dataclass(slots=True)
class _End:
    error: BaseException | None = field(default=None)


class Delivery(Sink):
    """A queue of results: the executor calls ``put`` and ``close``, the receiver ``blocks``.

    pump       called while the queue is empty, to make results in this thread (the inline backend); or None
    on_room    called when the receiver has taken results and the executor waits for room
    on_wait    called now and then while the receiver waits, in its thread
    is_over    the receiver has fetched the end
    """

    def __init__(
        self,
        ordered: bool,
        on_room: Callable[[], None],
        pump: Callable[[], None] | None,
        on_wait: Callable[[], object] = lambda: None,
    ):
        self._ordered = ordered
        self._on_room, self._on_wait = on_room, on_wait
        self.pump = pump
        self.is_over = False
        self._on_news: Callable[[], None] | None = None
        self._queue: SimpleQueue[list[Block] | _End] = SimpleQueue()
        self._ready: list[Block] = []
        self._next = 0
        self._held: dict[int, Block] = {}
        self._n_held_bytes = 0
        self._n_put_bytes = 0  # the executor's counts
        self._n_taken_bytes = 0  # the receiver's

    @property
    def n_bytes(self) -> int:
        return self._n_put_bytes - self._n_taken_bytes

    @property
    def n_ready_bytes(self) -> int:
        return self._n_put_bytes - self._n_taken_bytes - self._n_held_bytes

    def put(self, block: Block) -> None:
        """Add results; those that come too early wait for their predecessors."""
        self._n_put_bytes += block.n_bytes
        if not self._ordered:
            self._ready.append(block)
        elif isinstance(block.items, range):
            self._put_in_order(block)
        else:
            for at, index in enumerate(block.items):
                failed = frozenset((0,)) if at in block.failed else frozenset()
                n_bytes = block.n_bytes // len(block)
                one = Block(range(index, index + 1), [block.values[at]], failed, n_bytes, block.device)
                self._put_in_order(one)

    def flush(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, []
            self._hand_over(ready)

    def skip_gaps(self) -> None:
        for start in sorted(self._held):
            self._ready.append(self._held.pop(start))
        self._n_held_bytes = 0

    def close(self, error: BaseException | None = None) -> None:
        self.flush()
        self._hand_over(_End(error))

    def listen(self, on_news: Callable[[], None] | None) -> None:
        """Have ``on_news`` called, in the executor's thread, when there is something to fetch."""
        self._on_news = on_news

    def blocks(self) -> Iterator[Block]:
        """Yield blocks as they come, until the end. Raises the error of ``close``."""
        while not self.is_over:
            if self.pump is not None:
                while self._queue.empty():
                    self.pump()
            yield from self._fetched(self._next_ready())

    def blocks_there(self) -> Iterator[Block]:
        """Yield the blocks that can be fetched without waiting. Raises the error of ``close``."""
        while not self.is_over:
            try:
                ready = self._queue.get_nowait()
            except Empty:
                return
            yield from self._fetched(ready)

    def _next_ready(self) -> list[Block] | _End:
        while True:
            try:
                return self._queue.get(timeout=WAIT_S)
            except Empty:
                self._on_wait()

    def _fetched(self, ready: list[Block] | _End) -> Iterator[Block]:
        if isinstance(ready, _End):
            self.is_over = True
            if ready.error is not None:
                raise ready.error
            return
        for block in ready:
            self.n_taken += len(block)
            self._n_taken_bytes += block.n_bytes
            if self.is_waiting_for_room:
                self._on_room()
            yield block

    def _hand_over(self, ready: list[Block] | _End) -> None:
        self._queue.put(ready)
        if self._on_news is not None:
            self._on_news()

    def _put_in_order(self, block: Block) -> None:
        if block.items[0] != self._next:
            self._held[block.items[0]] = block
            self._n_held_bytes += block.n_bytes
            return
        held: Block | None = block
        while held is not None:
            self._ready.append(held)
            self._next = held.items[-1] + 1
            held = self._held.pop(self._next, None)
            if held is not None:
                self._n_held_bytes -= held.n_bytes
