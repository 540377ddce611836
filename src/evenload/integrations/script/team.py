"""The workers of one pool of a script, and who of them gets which of its tasks.

    pool ──► put ──► Dealer ──► a worker's own pipe ──► the pool's own loop in the worker
    pool ◄── results ◄── Team's thread ◄── pipe ◄──┘

The script's pool makes, replaces and ends the processes, just as it would do alone; between it and them is a
team in the place of its two shared queues. So a worker that dies takes no lock and no task along: the task
that it was at is tried once more, and those that it had not begun go to others.
"""

import os
import pickle
import queue
import selectors
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from evenload.balance.dealing.deal import Deal
from evenload.balance.dealing.dealer import Dealer
from evenload.errors import WorkerLost
from evenload.integrations.script.measured_work import Done, MeasuredWork
from evenload.integrations.script.worker_ends import READY, TIMES, ResultWriter, TaskReader, begin

MOST_WAITING, MOST_WAITING_BYTES = 4096, 64 * 2**20  # before whoever puts tasks has to wait
MOST_DEATHS = 2  # of workers that were at a task, until it is given up
RESULT, FAULT = 0, 1

_teams: "weakref.WeakSet[Team]" = weakref.WeakSet()


class Work(NamedTuple):
    """What is known of a task beside its pickled ``body``.

    key      of the task, for its result: the number of its call, and its number in the call
    group    of tasks that are dealt together: the call, or None for calls of one task
    most     tasks of its group that a worker may be dealt at once
    n_items  of the script in the task
    of       the chunk in which the script's own pool would have sent it
    name     of the function
    """

    key: tuple[int, int]
    group: int | None
    most: int
    n_items: int
    of: int
    name: str
    total: int | None


@dataclass(slots=True)
class _Task:
    work: Work
    body: bytes
    put_s: float


@dataclass(slots=True)
class _Group:
    """Tasks that are dealt together, by their place in the group."""

    dealer: Dealer
    tasks: dict[int, _Task] = field(default_factory=dict)
    n_deaths: Counter[int] = field(default_factory=Counter)
    n_put: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A worker process. ``todo``: what it was dealt and has not answered; ``n_left``: tasks that it will do.

    chunk     the dealer's number of what it was dealt last
    is_ready  it waits for tasks, or has
    is_told   to leave
    is_read   nothing more comes from it
    """

    slot: str
    process: Any
    tasks: Connection
    results: Connection
    n_left: int | None
    todo: deque[int] = field(default_factory=deque)
    group: Any = None
    chunk: int = -1
    busy_s: float = 0.0
    is_ready: bool = False
    is_told: bool = False
    is_read: bool = False


class Team:
    """The workers of one pool.

    slots    names of the places of workers, and the environment of a worker in each
    kind     what the script calls its pool
    work     what was measured
    results  what came back: ``(kind, key, bytes or exception)``, key None for other words of a worker
    on_end   called with a member that has ended, though nobody has told it to
    lost     the error of a task that was given up
    """

    def __init__(
        self,
        slots: Mapping[str, Mapping[str, str]],
        kind: str,
        results: Any = None,
        on_end: Callable[[Member], None] | None = None,
        lost: type[WorkerLost] = WorkerLost,
    ):
        self.results = queue.SimpleQueue() if results is None else results
        self._on_end_of, self._lost = on_end, lost
        self.work = MeasuredWork(kind, tuple(slots))
        self._slots = slots
        self._members: list[Member] = []
        self._groups: dict[int | None, _Group] = {}
        self._n_waiting = self._n_bytes = 0
        self._changed = threading.Condition()
        self._is_closing = self._is_stopped = False
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._ours: set[Connection] = set()
        self._thread: threading.Thread | None = None
        _teams.add(self)

    # --- workers ------------------------------------------------------------------------------------

    def new_process(
        self, make: Callable[..., Any], target: Callable[..., Any], arguments: Sequence[Any], most: int | None
    ) -> Any:
        """Make the process of a worker that runs ``target(tasks, results, *arguments)``, by ``make``.

        It becomes a member when it is started. ``most``: tasks after which it leaves by itself.
        """
        with self._changed:
            taken = {member.slot for member in self._members}
            slot = next((one for one in self._slots if one not in taken), next(iter(self._slots)))
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        self._ours |= {ours_in, ours_out}
        reader = TaskReader(theirs_in, theirs_out)
        ends = (reader, ResultWriter(theirs_out, reader))
        process = make(target=begin, args=(self._slots[slot], target, *ends, *arguments))
        member = Member(slot, process, ours_out, ours_in, most)
        process.start = partial(self._start, member, (theirs_in, theirs_out))
        return process

    def _start(self, member: Member, theirs: Sequence[Connection]) -> None:
        del member.process.start  # the process is pickled where it is spawned
        try:
            member.process.start()
        finally:
            for end in theirs:
                end.close()
        with self._changed:
            self._members.append(member)
            if self._thread is not None and not self._is_stopped:
                self._watch(member)
        self._wake()

    def _watch(self, member: Member) -> None:
        self._selector.register(member.results, selectors.EVENT_READ, (self._on_result, member))
        self._selector.register(member.process.sentinel, selectors.EVENT_READ, (self._on_end, member))

    # --- tasks --------------------------------------------------------------------------------------

    def put(self, work: Work, task: Any) -> None:
        """Have ``task`` done. Waits while too many are waiting. Raises what pickling raises."""
        body = bytes(ForkingPickler.dumps(task))
        with self._changed:
            while self._is_full() and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped:
                return
            group = self._groups.get(work.group)
            if group is None:
                dealer = Dealer("measured", list(self._slots), repeatable=False, max_chunk=work.most)
                group = self._groups[work.group] = _Group(dealer)
                if work.total is not None and work.group is not None:
                    dealer.expect(work.total)
            if work.total is not None and work.group is None:
                group.dealer.expect(group.n_put + work.total)
            group.tasks[group.n_put] = task = _Task(work, body, time.monotonic())
            group.dealer.add_range(group.n_put, 1)
            group.n_put += 1
            self._count(task, 1)
            self._begin()
        self._wake()

    @property
    def n_waiting(self) -> int:
        """Tasks that no worker has."""
        return self._n_waiting

    def _is_full(self) -> bool:
        return self._n_waiting >= MOST_WAITING or self._n_bytes >= MOST_WAITING_BYTES

    def close(self) -> None:
        """Have the workers leave; every task is done."""
        with self._changed:
            self._is_closing = True
            self._begin()
        self._wake()

    def stop(self) -> None:
        """Deal no more, and read no more results: somebody ends the workers."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
            self._begin()
        self._wake()

    def _begin(self) -> None:
        """Start the team's thread: not before it is needed, as the first workers are forked before."""
        if self._thread is None:
            for member in self._members:
                self._watch(member)
            self._thread = threading.Thread(target=self._serve, name="evenload", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        try:
            os.write(self._wake_in, b"!")
        except OSError:
            pass  # it has been woken often enough, or is over

    # --- the team's thread --------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped or (self._is_closing and not self._members):
                    break
                pause_s = self._deal(time.monotonic())
            for key, _ in self._selector.select(pause_s):
                if key.data is None:
                    os.read(self._wake_out, 4096)
                    continue
                act, member = key.data
                with self._changed:
                    act(member)
        with self._changed:
            self.work.pause()  # pipes stay open: a worker that writes into one is ended by others
            self._selector.close()
            os.close(self._wake_out)
            wake, self._wake_in = self._wake_in, -1
            os.close(wake)

    def _deal(self, now: float) -> float | None:
        """Send free workers tasks. Returns after how many seconds to come again."""
        free = {
            one.slot: one for one in self._members if one.is_ready and not one.todo and one.n_left != 0
        }
        until: float | None = None
        for group in self._groups.values():
            if not free:
                break
            if not group.dealer.n_ready:
                continue
            for slot in group.dealer.fastest_first(free):
                answer = group.dealer.next(slot, now, most=free[slot].n_left)
                if isinstance(answer, Deal):
                    self._send(free.pop(slot), group, answer)
                elif answer.until is not None:
                    until = answer.until if until is None else min(until, answer.until)
        if self._is_closing:
            for member in self._members:
                if not (member.is_told or member.todo):
                    member.is_told = True
                    self._write(member, [None])
        return None if until is None else max(0.0, until - now)

    def _send(self, member: Member, group: _Group, deal: Deal) -> None:
        bodies = [group.tasks[index].body for index in deal.indices]
        member.todo.extend(deal.indices)
        member.group, member.chunk, member.busy_s = group, deal.chunk, 0.0
        if member.n_left is not None:
            member.n_left -= len(bodies)
        for index in deal.indices:
            self._count(group.tasks[index], -1)
        self._changed.notify_all()
        self.work.resume()
        self._write(member, bodies)

    @staticmethod
    def _write(member: Member, bodies: list[bytes | None]) -> None:
        try:
            member.tasks.send_bytes(pickle.dumps(bodies))
        except OSError:
            pass  # it has ended, which its sentinel says soon

    def _on_result(self, member: Member) -> None:
        """Take in a result of ``member``; at the end of what it has sent, look no longer."""
        if member.is_read:
            return  # it has ended, and this is news of before
        try:
            told = member.results.recv_bytes()
        except (EOFError, OSError):
            member.is_read = True
            self._unwatch(member.results)
            return
        if told == READY:
            member.is_ready = True
            return
        if not member.todo:
            self.results.put((RESULT, None, told))
            return
        begun_s, over_s = TIMES.unpack_from(told)
        group, index = member.group, member.todo.popleft()
        task = group.tasks.pop(index)
        work = task.work
        self.results.put((RESULT, work.key, told))
        member.busy_s += over_s - begun_s
        chunk = (work.group, work.of) if work.group is not None else work.key
        self.work.add(Done(work.name, member.slot, work.n_items, chunk, task.put_s, begun_s, over_s))
        if not member.todo:
            group.dealer.done(member.chunk, time.monotonic(), member.busy_s)
            self._tidy(work.group, group)

    def _on_end(self, member: Member) -> None:
        """A worker's process has ended: by itself, or in the midst of a task."""
        self._unwatch(member.process.sentinel)
        while not member.is_read and member.results.poll():
            self._on_result(member)
        self._let_go(member)
        is_planned = member.is_told or (member.n_left == 0 and not member.todo)
        if member.todo:
            self._take_over(member)
        if self._on_end_of is not None and not is_planned and not self._is_stopped:
            self._on_end_of(member)

    def _take_over(self, member: Member) -> None:
        """Have what a dead worker has not done be done by others; the first of it may have ended it."""
        group, now = member.group, time.monotonic()
        for deal in group.dealer.lost(member.slot, now):
            group.dealer.forget(set(deal.indices) - set(member.todo))  # they are answered
        at = member.todo.popleft()
        task = group.tasks[at]
        group.n_deaths[at] += 1
        self.work.n_deaths += 1
        if group.n_deaths[at] < MOST_DEATHS:
            group.dealer.requeue([at], alone=True)
            self._count(task, 1)
        else:
            del group.tasks[at]
            group.dealer.forget([at])
            self.results.put((FAULT, task.work.key, self._given_up(member, task.work)))
        group.dealer.requeue(member.todo)
        for index in member.todo:
            self._count(group.tasks[index], 1)
        member.todo.clear()
        self._tidy(task.work.group, group)

    def _given_up(self, member: Member, work: Work) -> WorkerLost:
        code = member.process.exitcode
        return self._lost(
            f"{MOST_DEATHS} workers ended while they were at {work.name}, the last one with exit code {code}",
            hint="without evenload the script would have ended here, or waited for ever",
        )

    def _count(self, task: _Task, n: int) -> None:
        """Count a task that waits (1), or does no longer (-1)."""
        self._n_waiting += n
        self._n_bytes += n * len(task.body)

    def _tidy(self, number: int | None, group: _Group) -> None:
        """Forget a group whose tasks are all done, and begin to pause when there are no more."""
        if not group.tasks:
            self._groups.pop(number, None)
        if not self._groups:
            self.work.pause()

    def _unwatch(self, end: Any) -> None:
        try:
            self._selector.unregister(end)
        except (KeyError, ValueError):
            pass  # it is looked at no longer

    def _let_go(self, member: Member) -> None:
        self._unwatch(member.results)
        member.is_read = True
        for connection in (member.tasks, member.results):
            self._ours.discard(connection)
            connection.close()
        self._members.remove(member)

    def close_in_child(self) -> None:
        """In a forked child: leave the pipes of the workers, whose ends must be this process's alone."""
        for connection in self._ours:
            connection.close()


def _pipe() -> tuple[Connection, Connection]:
    from multiprocessing import Pipe

    return Pipe(duplex=False)


def _leave_teams() -> None:
    for team in tuple(_teams):
        team.close_in_child()


os.register_at_fork(after_in_child=_leave_teams)
