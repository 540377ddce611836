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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from evenload.balance.dealing.dealer import Deal, Dealer
from evenload.errors import WorkerLost
from evenload.integrations.script.measured_work import Done, MeasuredWork
from evenload.integrations.script.worker_ends import BETWEEN, READY, TIMES, ResultWriter, TaskReader, begin

MOST_WAITING, MOST_WAITING_BYTES = 4096, 64 * 2**20  # before whoever puts tasks has to wait
MOST_DEATHS = 2  # of workers that were at a task, until it is given up
RESULT, FAULT = 0, 1

_teams: "weakref.WeakSet[Team]" = weakref.WeakSet()


class Work(NamedTuple):
    """A description of a task.

    key      of its result: the number of its call, and its number in the call
    group    of tasks that are dealt together: the call, or None for calls of one task
    most     tasks of its group that a worker may be dealt at once
    n_items  of the script in the task
    chunk    the chunk of the call in which the script's own pool would have sent it
    name     of the function
    n_left   tasks of the group that are to be put, this one included; None if that is not known
    """

    key: tuple[int, int]
    group: int | None
    most: int
    n_items: int
    chunk: int
    name: str
    n_left: int | None


class _Task(NamedTuple):
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
    """A worker process.

    n_left    tasks that it will still take before it leaves by itself; None if it does not
    group     of what it was dealt last, by the dealer's number ``chunk``
    todo      what of that it has not answered
    since_s   when it was sent that, or has answered last
    is_ready  it waits for tasks, or has
    is_told   to leave, or has said that it does
    is_read   nothing more comes from it
    """

    slot: str
    process: Any
    tasks: Connection
    results: Connection
    n_left: int | None
    group: Any = None
    chunk: int = -1
    todo: deque[int] = field(default_factory=deque)
    busy_s: float = 0.0
    since_s: float = 0.0
    is_ready: bool = False
    is_told: bool = False
    is_read: bool = False


class Team:
    """The workers of one pool.

    slots      names of the places of workers, and the environment of a worker in each
    kind       what the script calls its pool
    timeout_s  a worker that is at one task longer is killed
    results    what came back: ``(kind, key, bytes or exception)``, key None for other words of a worker
    on_end     called with a member that has ended, though nobody has told it to
    lost       the error of a task that was given up
    dumps      pickles a task, and a result (None: as multiprocessing does)
    work       what was measured
    is_closing  the workers are to leave
    totals     tasks of calls, where somebody knows how many there will be
    """

    def __init__(
        self,
        slots: Mapping[str, Mapping[str, str]],
        kind: str,
        timeout_s: float | None = None,
        results: Any = None,
        on_end: Callable[[Member], None] | None = None,
        lost: type[WorkerLost] = WorkerLost,
        dumps: tuple[Callable[[Any], Any], Callable[[Any], Any] | None] = (ForkingPickler.dumps, None),
    ):
        self.results = queue.SimpleQueue() if results is None else results
        self.work = MeasuredWork(kind, tuple(slots))
        self.totals: dict[int, int] = {}
        self.n_waiting = self._n_bytes = 0  # tasks that no worker has
        self._slots, self._timeout_s, self._on_end_of, self._lost = slots, timeout_s, on_end, lost
        self._dumps, self._dumps_result = dumps
        self._members: list[Member] = []
        self._groups: dict[int | None, _Group] = {}
        self._changed = threading.Condition()
        self.is_closing = self._is_stopped = False
        self._wake_out, self._wake_in = Pipe(duplex=False)
        os.set_blocking(self._wake_in.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._ours: set[Connection] = set()
        self._thread: threading.Thread | None = None
        self._begun_s = 0.0  # when the first worker was ready: what was put before has waited for no other
        _teams.add(self)

    # --- for the pool -------------------------------------------------------------------------------

    def new_process(
        self, make: Callable[..., Any], target: Callable[..., Any], arguments: Sequence[Any], most: int | None
    ) -> Any:
        """Make the process of a worker that runs ``target(tasks, results, *arguments)``, by ``make``.

        It becomes a member when it is started. ``most``: tasks after which it leaves by itself.
        """
        with self._changed:
            taken = {member.slot for member in self._members if member.process.exitcode is None}
            slot = next((one for one in self._slots if one not in taken), next(iter(self._slots)))
        (theirs_in, ours_out), (ours_in, theirs_out) = Pipe(duplex=False), Pipe(duplex=False)
        self._ours |= {ours_in, ours_out}
        reader = TaskReader(theirs_in, theirs_out)
        ends = reader, ResultWriter(theirs_out, reader, self._dumps_result)
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

    def put(self, work: Work, task: Any) -> None:
        """Have ``task`` done. Waits while too many are waiting. Raises what pickling raises."""
        new = _Task(work, bytes(self._dumps(task)), time.monotonic())
        with self._changed:
            while not self._is_stopped and (
                self.n_waiting >= MOST_WAITING or self._n_bytes >= MOST_WAITING_BYTES
            ):
                self._changed.wait()
            if self._is_stopped:
                return
            group = self._groups.get(work.group)
            if group is None:
                dealer = Dealer("measured", list(self._slots), repeatable=False, max_chunk=work.most)
                group = self._groups[work.group] = _Group(dealer)
            if work.n_left is not None:
                group.dealer.expect(group.n_put + work.n_left)
            group.tasks[group.n_put] = new
            group.dealer.add_range(group.n_put, 1)
            group.n_put += 1
            self._count(new, 1)
        self._wake()

    def resize(self, slots: Mapping[str, Mapping[str, str]]) -> None:
        """Have workers in ``slots`` from now on; those in other places leave when they are free."""
        with self._changed:
            self._slots = slots
            if self.work.slots != tuple(slots):
                self.work = MeasuredWork(self.work.kind, tuple(slots))
        self._wake()

    def leave_last(self) -> None:
        """Have the worker in the last place leave when it is free."""
        with self._changed:
            self._slots = dict(list(self._slots.items())[:-1])
        self._wake()

    def close(self) -> None:
        """Have the workers leave; every task is done."""
        self.is_closing = True
        self._wake()

    def stop(self) -> None:
        """Deal no more, and read no more results: somebody ends the workers."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._wake()

    def close_in_child(self) -> None:
        """In a forked child: leave the pipes of the workers, whose ends must be this process's alone."""
        for connection in self._ours:
            connection.close()

    # --- the team's thread --------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have the thread look; start it, which comes with the first task: workers are forked before."""
        with self._changed:
            if self._thread is None and (self._groups or self.is_closing or self._is_stopped):
                for member in self._members:
                    self._watch(member)
                self._thread = threading.Thread(target=self._serve, name="evenload", daemon=True)
                self._thread.start()
        with suppress(OSError):  # it has been woken often enough
            os.write(self._wake_in.fileno(), b"!")

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped or (self.is_closing and not self._members):
                    return self._selector.close()  # pipes stay open: others end whoever writes into one
                pause_s = self._deal(time.monotonic())
            for key, _ in self._selector.select(pause_s):
                if key.data is None:
                    os.read(self._wake_out.fileno(), 4096)
                    continue
                act, member = key.data
                with self._changed:
                    act(member)

    def _deal(self, now: float) -> float | None:
        """Send free workers tasks. Returns after how many seconds to come again."""
        able = (one for one in self._members if one.is_ready and one.n_left != 0 and not one.is_told)
        free = {one.slot: one for one in able if not one.todo and one.slot in self._slots}
        times = []
        for group in self._groups.values():
            for slot in group.dealer.fastest_first(free) if group.dealer.n_ready else ():
                answer = group.dealer.next(slot, now, most=free[slot].n_left)
                if isinstance(answer, Deal):
                    self._send(free.pop(slot), group, answer, now)
                elif answer.until is not None:
                    times.append(answer.until)
        # Behind what was sent just now, too: nothing else may ever wake the thread.
        times += [self._kill_if_late(one, now) for one in self._members if one.todo and self._timeout_s]
        for member in self._members:
            is_over = self.is_closing or member.slot not in self._slots
            if is_over and not (member.is_told or member.todo):
                member.is_told = True
                self._write(member, [None])
        return max(0.0, min(times) - now) if times else None

    def _kill_if_late(self, member: Member, now: float) -> float:
        """Kill a worker that is at one task for too long. Returns when to look again."""
        late_s = member.since_s + (self._timeout_s or 0.0)
        if now >= late_s:
            member.process.kill()
            late_s = now + 1.0
        return late_s

    def _send(self, member: Member, group: _Group, deal: Deal, now: float) -> None:
        tasks = [group.tasks[index] for index in deal.indices]
        member.todo.extend(deal.indices)
        member.group, member.chunk, member.busy_s, member.since_s = group, deal.chunk, 0.0, now
        if member.n_left is not None:
            member.n_left -= len(tasks)
        for task in tasks:
            self._count(task, -1)
        self._changed.notify_all()
        self._write(member, [task.body for task in tasks])

    @staticmethod
    def _write(member: Member, bodies: Sequence[bytes | None]) -> None:
        with suppress(OSError):  # it has ended, which its sentinel says soon
            member.tasks.send_bytes(pickle.dumps(bodies))

    def _count(self, task: _Task, n: int) -> None:
        """Count a task that waits (1), or does no longer (-1)."""
        self.n_waiting += n
        self._n_bytes += n * len(task.body)

    def _on_result(self, member: Member) -> None:
        """Take in what ``member`` has sent; at the end of it, look no longer."""
        try:
            told = b"" if member.is_read else member.results.recv_bytes()
        except (EOFError, OSError):
            member.is_read = True
            return self._unwatch(member.results)
        if told == READY:
            member.is_ready = True
            self._begun_s = self._begun_s or time.monotonic()
        elif TIMES.unpack_from(told)[0] == BETWEEN:
            member.is_told = True
            self.results.put((RESULT, None, told))
        else:
            self._on_done(member, told)
        return None

    def _on_done(self, member: Member, told: bytes) -> None:
        begun_s, over_s = TIMES.unpack_from(told)
        group, now = member.group, time.monotonic()
        work, _, put_s = group.tasks.pop(member.todo.popleft())
        self.results.put((RESULT, work.key, told))
        member.busy_s += over_s - begun_s
        member.since_s = now
        chunk = (work.key[0], work.chunk)
        put_s = max(put_s, self._begun_s)
        self.work.add(Done(work.name, member.slot, work.n_items, chunk, put_s, begun_s, over_s))
        if not member.todo:
            group.dealer.done(member.chunk, now, member.busy_s)
            self._tidy(work.group, group)

    def _on_end(self, member: Member) -> None:
        """A worker's process has ended: by itself, or in the midst of a task."""
        while not member.is_read and member.results.poll():
            self._on_result(member)
        member.is_read = True
        for end in (member.process.sentinel, member.results):
            self._unwatch(end)
        for connection in (member.tasks, member.results):
            self._ours.discard(connection)
            connection.close()
        self._members.remove(member)
        is_planned = member.is_told or (member.n_left == 0 and not member.todo)
        if member.todo:
            self._take_over(member)
        if self._on_end_of is not None and not is_planned and not self._is_stopped:
            self._on_end_of(member)

    def _take_over(self, member: Member) -> None:
        """Have what a dead worker has not done be done by others; the first of it may have ended it.

        It has not where the worker has said that it leaves, at the time when it was sent more.
        """
        group, (at, *others) = member.group, member.todo
        work = group.tasks[at].work
        group.n_deaths[at] += not member.is_told
        self.work.n_deaths += not member.is_told
        redo = [at] if group.n_deaths[at] < MOST_DEATHS else []
        group.dealer.failed(member.chunk, time.monotonic(), redo, alone=True, later=others)
        group.dealer.requeue(others)
        for index in (*redo, *others):
            self._count(group.tasks[index], 1)
        if not redo:
            del group.tasks[at]
            self.results.put((FAULT, work.key, self._given_up(member, work)))
        self._tidy(work.group, group)

    def _given_up(self, member: Member, work: Work) -> WorkerLost:
        member.process.join(1.0)  # a moment after its sentinel it has an exit code
        code = member.process.exitcode
        return self._lost(
            f"{MOST_DEATHS} workers ended while they were at {work.name}, the last one with exit code {code}",
            hint="without evenload the script would have ended here, or waited for ever",
        )

    def _tidy(self, number: int | None, group: _Group) -> None:
        """Forget a group whose tasks are all done; when there is none, the work pauses."""
        if not group.tasks:
            self._groups.pop(number, None)
            self.totals.pop(-1 if number is None else number, None)
        if not self._groups:
            self.work.pause()

    def _watch(self, member: Member) -> None:
        self._selector.register(member.results, selectors.EVENT_READ, (self._on_result, member))
        self._selector.register(member.process.sentinel, selectors.EVENT_READ, (self._on_end, member))

    def _unwatch(self, end: Any) -> None:
        with suppress(KeyError, ValueError, OSError):  # it is looked at no longer
            self._selector.unregister(end)


def _leave_teams() -> None:
    for team in tuple(_teams):
        team.close_in_child()


os.register_at_fork(after_in_child=_leave_teams)
