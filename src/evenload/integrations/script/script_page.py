"""``evenload exec --dash``: what a script's pools do, as the events that its live page reads.

    Team ──► PoolEvents ──► ScriptPage ──► events.jsonl ──► the page, a process of its own

Nothing here waits for the page. Short calls are told together: a line for each would cost more than they do.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evenload.events import (
    Counted,
    Event,
    ItemFailed,
    Queued,
    RunFinished,
    RunStarted,
    Span,
    WorkerExited,
    WorkerStarted,
    encode,
)
from evenload.integrations.script.dealt_tasks import UnderWay
from evenload.integrations.script.measured_work import Done
from evenload.integrations.script.worker_ends import failure_of

# The least time of a call that is told alone, the most of calls together, and of a pause between them.
ALONE_S, TOGETHER_S, GAP_S = 0.1, 0.25, 0.05
MOST_FAILURES = 200  # that are told each; the others are counted


class _OwnFile:
    """A descriptor, used only while it is what it was: some programs close all that they do not know."""

    def __init__(self, fd: int):
        os.set_inheritable(fd, False)  # it is not for programs that the script starts
        self.fd, self._is = fd, os.fstat(fd)

    @property
    def is_open(self) -> bool:
        try:
            return os.path.samestat(self._is, os.fstat(self.fd))
        except OSError:
            return False

    def close(self) -> None:
        if self.is_open:
            os.close(self.fd)


class ScriptPage:
    """The events file of a script's live page, which ends when ``alive_fd`` is closed.

    name      of the script
    events    the file, which the page deletes
    alive_fd  the page ends when no process has it open any more
    status    of the script, in the words of ``RunFinished``
    """

    def __init__(self, name: str, events: str, alive_fd: int):
        self._name, self._unix_s, self._began_s = name, time.time(), time.monotonic()
        self._alive = _OwnFile(alive_fd)
        self._file: _OwnFile | None = None
        with contextlib.suppress(OSError):  # the page may be gone already
            self._file = _OwnFile(os.open(events, os.O_WRONLY | os.O_APPEND))
        self.lock = threading.Lock()
        self.status = "done"
        self._is_begun = False
        self._lines: list[str] = []
        self._pools: list[PoolEvents] = []
        self._n_done: Counter[str] = Counter()
        self._n_failed: Counter[str] = Counter()
        self._told: dict[str, Event] = {}
        self._pid = os.getpid()

    def join(self, slots: Iterable[str]) -> "PoolEvents":
        """Return where a new pool with workers in ``slots`` tells what it does."""
        with self.lock:
            pool = PoolEvents(self)
            self._pools.append(pool)
            self._begin(slots)
        return pool

    def since(self, clock_s: float) -> float:
        """Return the time of the page at a time of ``time.monotonic``."""
        return max(0.0, clock_s - self._began_s)

    def emit(self, event: Event) -> None:
        """Write an event, with the next ones; nothing if the disk was full before."""
        if self._file is not None:
            self._lines.append(encode(event))

    def count(self, name: str, n_items: int, n_failed: int = 0) -> int:
        """Count items of a function that are over; return the number of the first."""
        first = self._n_done[name] + self._n_failed[name]
        self._n_done[name] += n_items - n_failed
        self._n_failed[name] += n_failed
        return first

    @property
    def n_failed(self) -> int:
        """Failures so far."""
        return self._n_failed.total()

    def tell_state(self) -> None:
        """Write how many items are done, wait and run, if that has changed, and all that was told before."""
        states: dict[str, UnderWay] = {}
        for pool in self._pools:
            for name, one in pool.under_way.items():
                state = states.setdefault(name, UnderWay())
                state.n_waiting += one.n_waiting
                state.running.update(one.running)
                state.queued.update(one.queued)
        now_s = self.since(time.monotonic())
        done, failed = self._n_done.total(), self.n_failed
        n_open = sum(one.n_open for one in states.values())
        ends = {"total": done + failed + n_open, "done": done, "failed": failed, "unfinished": n_open}
        self._tell_if_new("", Counted(0.0, ends), Counted(now_s, ends))
        for name in {**self._told, **states}:
            one = states.get(name, UnderWay())
            if name:
                what = name, one.n_waiting, dict(one.running), dict(one.queued)
                self._tell_if_new(name, Queued(0.0, *what), Queued(now_s, *what))
        self._write()

    def close(self) -> None:
        """Tell how the script ended, and wait until the page has shown that."""
        if os.getpid() != self._pid:
            return
        with self.lock:
            self._begin(())
            for pool in self._pools:
                pool.tell_all()
            self.tell_state()
            status = "failures" if self.status == "done" and self.n_failed else self.status
            self.emit(RunFinished(self.since(time.monotonic()), status))
            self._write()
            self.leave()

    def _tell_if_new(self, key: str, timeless: Event, event: Event) -> None:
        if self._told.get(key) != timeless:
            self._told[key] = timeless
            self.emit(event)

    def _begin(self, slots: Iterable[str]) -> None:
        """Write the first event, which says of places that are alike that they are."""
        if self._is_begun:
            return
        self._is_begun = True
        devices: dict[str, Mapping[str, Any]] = {}
        for slot in slots:
            kind = slot.partition(":")[0]
            devices[slot] = {"kind": kind, **({"name": "worker"} if kind == "cpu" else {})}
        facts = {"pid": self._pid}
        self._lines.insert(0, encode(RunStarted(0.0, self._name, self._unix_s, None, devices, facts)))

    def _write(self) -> None:
        content, self._lines = "".join(line + "\n" for line in self._lines).encode(), []
        try:
            while content and self._file is not None and self._file.is_open:
                content = content[os.write(self._file.fd, content) :]
        except OSError:  # the script goes on
            pass
        if content:
            self.leave()

    def leave(self) -> None:
        """Have the page end; in a forked child: have it not live as long as that does."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._alive.close()


@dataclass(slots=True)
class _Together:
    """Calls of one function that one worker has made, one soon after the other."""

    name: str
    begun_s: float
    over_s: float
    busy_s: float = 0.0
    n_items: int = 0


class PoolEvents:
    """The teller of one pool: turns what its team says into events.

    under_way  by function, what was not done when the team looked last
    """

    def __init__(self, page: ScriptPage):
        self._page = page
        self._together: dict[tuple[str, str], _Together] = {}
        self.under_way: Mapping[str, UnderWay] = {}

    def began(self, slot: str, worker: str, since_s: float) -> None:
        """A worker is ready, which was begun at ``since_s``."""
        now = time.monotonic()
        with self._page.lock:
            event = WorkerStarted(self._page.since(now), slot, worker, int(worker), max(0.0, now - since_s))
            self._page.emit(event)

    def ended(self, slot: str, worker: str, reason: str) -> None:
        """A worker is gone: "closed", or what killed it."""
        with self._page.lock:
            self._tell((slot, worker))
            self._page.emit(WorkerExited(self._page.since(time.monotonic()), slot, worker, reason))

    def lost(self, name: str, slot: str, worker: str, n_items: int, since_s: float) -> None:
        """A worker has died since it was given a task at ``since_s``."""
        start_s, stop_s = self._page.since(since_s), self._page.since(time.monotonic())
        with self._page.lock:
            self._page.emit(Span(name, slot, worker, -1, n_items, start_s, stop_s, stop_s - start_s, "lost"))

    def done(self, done: Done, worker: str, words: bytes = b"") -> None:
        """A task is done; ``words`` say why it failed, if it did: then it counts as one item."""
        key, busy_s = (done.slot, worker), done.over_s - done.begun_s
        with self._page.lock:
            one = self._together.get(key)
            if one is not None and (
                one.name != done.name or done.begun_s - one.over_s > GAP_S or busy_s >= ALONE_S or words
            ):
                self._tell(key)
                one = None
            if one is None:
                one = self._together[key] = _Together(done.name, done.begun_s, done.over_s)
            one.over_s, one.busy_s = done.over_s, one.busy_s + busy_s
            one.n_items += 1 if words else done.n_items
            if words or one.over_s - one.begun_s >= TOGETHER_S or busy_s >= ALONE_S:
                self._tell(key, words)

    def given_up(self, name: str, error: Exception) -> None:
        """A task was given up, whose workers died."""
        with self._page.lock:
            index = self._page.count(name, 1, 1)
            self._tell_failure(name, index, None, type(error).__name__, str(error), "")

    def tell_under_way(self, under_way: Mapping[str, UnderWay]) -> None:
        """Say what is under way now, and what was done."""
        with self._page.lock:
            self.under_way = under_way
            self.tell_all()
            self._page.tell_state()

    def tell_all(self) -> None:
        """Say of all workers what they have done so far."""
        for key in list(self._together):
            self._tell(key)

    def _tell(self, key: tuple[str, str], words: bytes = b"") -> None:
        one = self._together.pop(key, None)
        if one is None:
            return
        index = self._page.count(one.name, one.n_items, one.n_items if words else 0)
        start_s, stop_s = self._page.since(one.begun_s), self._page.since(one.over_s)
        status = "failed" if words else "ok"
        span = Span(one.name, *key, index, one.n_items, start_s, stop_s, one.busy_s, status)
        self._page.emit(span)
        if words:
            self._tell_failure(one.name, index, key[0], *failure_of(words))

    def _tell_failure(
        self, name: str, index: int, slot: str | None, error: str, message: str, trace: str
    ) -> None:
        if self._page.n_failed <= MOST_FAILURES:
            now_s = self._page.since(time.monotonic())
            self._page.emit(ItemFailed(now_s, name, index, f"call {index}", error, message, slot, trace))
