"""A backend whose workers live in a heap of events and a clock of their own: hours of faults in milliseconds.

The real engine drives it. A worker does, at random times, what real ones have been seen to do: it starts and
builds tasks slowly, refuses them, dies at any moment (idle ones too), is slow, answers with failures, or
with what cannot be read.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.executor.backends import Backend
from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Loaded, Message, Spoilt, TaskRefused, Up
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING, UNPACKING

__all__ = ["Clock", "VirtualBackend"]

MOST_TIMES = 200  # that anybody would run one item
NEVER_S = 1000.0  # without any news: whoever waits so long waits for ever
RAISED = Failure("raised", "ValueError", "bad luck")
NO_MEMORY = Failure("memory", "MemoryError", "too large")
UNREADABLE = Failure("result", "TypeError", "cannot be pickled")


class Clock:
    """What stands for the module ``time``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Order:
    """A chunk, or with ``items`` None the order to build ``task``, or to leave if that is None."""

    task: PreparedTask | None
    chunk: int = 0
    items: tuple[Any, ...] | None = None
    singly: bool = False


@dataclass(slots=True, eq=False)
class VirtualWorker:
    """A worker, and where it is. ``life`` yields for how long it does something, None: until it is told."""

    number: int
    life: Iterator[float | None] = field(default_factory=lambda: iter(()))
    orders: deque[Order] = field(default_factory=deque)
    tasks: dict[int, PreparedTask] = field(default_factory=dict)
    n_run: Counter[int] = field(default_factory=Counter)
    chunk: int = 0
    held: tuple[Any, ...] = ()
    position: int = NOT_BEGUN
    since_s: float = 0.0
    last_dropped: int = 0
    is_killed: bool = False
    has_machine: bool = True
    waits_for: int = 0


class VirtualBackend(Backend):
    """The backend. An item is a number; its result is twice that.

    n_faults   so many happen at most, at random
    bad        items that raise whenever they run
    n_losses   item -> so many times that it runs, the machine is lost with it
    begun      how often each item has begun
    failed     how often each item has raised, found too little memory, or was in an answer nobody can read
    struck     items that a worker had begun, or was to begin or to answer, when it ended
    most_run   of each hundred of items, the most that one worker has begun
    """

    is_threaded = True

    def __init__(
        self,
        pool: DevicePool,
        clock: Clock,
        seed: int,
        n_faults: int = 0,
        bad: frozenset[int] = frozenset(),
        n_losses: Mapping[int, int] | None = None,
    ):
        self.clock, self.rng, self.n_faults, self.bad = clock, random.Random(seed), n_faults, bad
        self._n_losses = Counter(n_losses or {})
        self.begun: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.struck: set[int] = set()
        self.most_run: Counter[int] = Counter()
        self._pool = pool
        self._workers: dict[int, VirtualWorker] = {}
        self._heap: list[tuple[float, int, int, int]] = []  # (at, tie, worker, which of its waits)
        self._n_waits = 0
        self._news: list[Message] = []
        self._silent_since_s = clock.now

    # --- as a backend -----------------------------------------------------------------------------

    def devices(self, spec: Any) -> DevicePool:
        return self._pool

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        if self._happens(0.1):
            raise OSError("no more processes")
        one = self._workers[worker] = VirtualWorker(worker)
        one.life = self._live(one)
        self._go_on(one)

    def load(self, worker: int, task: PreparedTask) -> None:
        self._tell(worker, Order(task))

    def unload(self, worker: int, task: int) -> None:
        if worker in self._workers:
            self._workers[worker].tasks.pop(task, None)

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int | None:
        if worker in self._workers:
            self._tell(worker, Order(self._workers[worker].tasks[task], chunk, tuple(items), singly))
        return 100

    def drop(self, worker: int, chunk: int) -> None:
        if worker in self._workers:
            one = self._workers[worker]
            one.last_dropped = max(one.last_dropped, chunk)

    def position(self, worker: int) -> tuple[int, float]:
        one = self._workers.get(worker)
        if one is None or not one.chunk:
            return NOT_BEGUN, 0.0
        return one.position, self.clock.now - one.since_s

    def stop(self, worker: int) -> None:
        self._tell(worker, Order(None))

    def kill(self, worker: int) -> None:
        if worker in self._workers:
            self._workers[worker].is_killed = True
            self._wait(self._workers[worker], 0.01)

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Let time pass until there is news; AssertionError if there would be none for ever."""
        until_s = self.clock.now + (NEVER_S / 10 if timeout_s is None else timeout_s)
        while not self._news and self._heap and self._heap[0][0] <= until_s:
            at_s, _, number, waits_for = heappop(self._heap)
            self.clock.now = max(at_s, self.clock.now)
            worker = self._workers.get(number)
            if worker is not None and worker.waits_for == waits_for:
                self._go_on(worker)
        news, self._news = self._news, []
        if news:
            self._silent_since_s = self.clock.now
        else:
            self.clock.now = max(until_s, self.clock.now + 1e-6)
            assert self.clock.now - self._silent_since_s < NEVER_S, "nothing happens any more"
        return news

    def close(self, grace_s: float) -> list[Message]:
        self._workers.clear()
        return []

    # --- the life of a worker ---------------------------------------------------------------------

    def _live(self, one: VirtualWorker) -> Iterator[float | None]:
        yield self._some_s()
        if self._happens(0.1):
            return self._end(one)
        self._news.append(Up(one.number))
        while True:
            while not one.orders:
                if self._happens(0.1):  # what an item did to it takes effect when nobody expects it
                    yield self._some_s()
                    return self._end(one)
                yield None
            order = one.orders.popleft()
            if order.items is not None:
                yield from self._run(one, order, order.items)
            elif order.task is None:
                return self._end(one, 0)
            else:
                yield self._some_s()
                if self._happens(0.1):
                    return self._end(one)
                if self._happens(0.05):
                    self._news.append(TaskRefused(one.number, order.task.id, RAISED))
                else:
                    one.tasks[order.task.id] = order.task
                    self._news.append(Loaded(one.number, order.task.id, 0.1))

    def _run(self, one: VirtualWorker, order: Order, items: tuple[Any, ...]) -> Iterator[float | None]:
        assert order.task is not None
        one.chunk, began_s = order.chunk, self.clock.now
        one.held = items
        self._is_at(one, UNPACKING)
        if self._happens(0.05):
            self._answer(one, Spoilt(one.number, order.chunk, UNREADABLE, is_run=False))
            return
        step = 1 if order.singly else order.task.batch or 1
        failures: dict[int, Failure] = {}
        n_run = 0
        for start in range(0, len(items), step):
            if one.last_dropped >= order.chunk:
                break
            part = items[start : start + step]
            self._is_at(one, start)
            one.held = part
            self.begun.update(part)
            one.n_run.update(item // 100 for item in part)
            self.most_run |= one.n_run
            assert max(self.begun[item] for item in part) < MOST_TIMES, "it is run again and again"
            n_run = start + len(part)
            yield self.rng.uniform(5.0, 50.0) if self._happens(0.05) else self._some_s() / 100
            if self._happens(0.08):
                yield from self._die_here(one)
            if self._loses_machine(part):
                one.has_machine = False
                yield from self._die_here(one)
            for at, item in enumerate(part, start):
                if item in self.bad or self._happens(0.15):
                    failures[at] = RAISED
                elif self._happens(0.03):
                    failures[at] = NO_MEMORY
                self.failed[item] += at in failures
        self._is_at(one, PACKING)
        one.held = items[:n_run]
        if self._happens(0.03):
            yield from self._die_here(one)
        if self._happens(0.05):
            self.failed.update(items[:n_run])
            self._answer(one, Spoilt(one.number, order.chunk, UNREADABLE, is_run=True))
            return
        values = [None if at in failures else 2 * item for at, item in enumerate(items[:n_run])]
        skipped = n_run if n_run < len(items) else None
        now = self.clock.now
        answer = Answer(values, failures, began_s, now, now - began_s, None, skipped)
        self._answer(one, Answered(one.number, order.chunk, answer, 100))

    def _die_here(self, one: VirtualWorker) -> Iterator[float | None]:
        one.is_killed = True
        yield 0.0

    def _answer(self, one: VirtualWorker, message: Message) -> None:
        one.chunk, one.position, one.held = 0, NOT_BEGUN, ()
        self._news.append(message)

    def _is_at(self, one: VirtualWorker, position: int) -> None:
        one.position, one.since_s = position, self.clock.now

    def _end(self, one: VirtualWorker, code: int = -9) -> None:
        del self._workers[one.number]
        given = [order.items for order in one.orders if order.items]
        self.struck.update(one.held or (given[0] if given else ()))
        cut_off = Gone(one.number, None, PACKING, cause="was lost with its machine", is_cut_off=True)
        self._news.append(Gone(one.number, code, one.position) if one.has_machine else cut_off)

    def _loses_machine(self, part: tuple[Any, ...]) -> bool:
        unlucky = [item for item in part if self._n_losses[item] > 0]
        self._n_losses.subtract(unlucky)
        return bool(unlucky)

    def _happens(self, share: float) -> bool:
        is_so = self.n_faults > 0 and self.rng.random() < share
        self.n_faults -= is_so
        return is_so

    def _some_s(self) -> float:
        return self.rng.expovariate(2.0)

    def _tell(self, worker: int, order: Order) -> None:
        one = self._workers.get(worker)
        if one is not None:
            one.orders.append(order)
            if one.waits_for == 0:  # it has nothing to do
                self._wait(one, 0.0)

    def _go_on(self, one: VirtualWorker) -> None:
        one.waits_for = 0
        if one.is_killed:
            return self._end(one)
        wait_s = next(one.life, None)
        if wait_s is not None:
            self._wait(one, wait_s)
        return None

    def _wait(self, one: VirtualWorker, seconds: float) -> None:
        self._n_waits += 1
        one.waits_for = self._n_waits
        heappush(self._heap, (self.clock.now + seconds, self._n_waits, one.number, one.waits_for))
