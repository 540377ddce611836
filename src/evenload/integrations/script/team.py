"""The workers of one pool of a script, and who of them gets which of its tasks.

    pool ──► put ──► Dealer ──► a worker's own pipe ──► the pool's own loop in the worker
    pool ◄── results ◄── Team's thread ◄── pipe ◄──┘

The script's pool makes, replaces and ends the processes, just as it would do alone; between it and them is a
team in the place of its two shared queues. So a worker that dies takes no lock and no task along: the task
that it was at is tried once more, and those that it had not begun go to others.

Calls that the script makes one at a time, and that were measured short, are not dealt. They wait in a line,
a socket of datagrams at which every worker reads: first come, first served, as in the script's own pool, and
without a lock. With each result a worker says which call it has taken from there, or that it is free. Whoever
is free gets what is still in the line from the team, which reads at the same socket.
"""

import math
import os
import pickle
import queue
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from evenload.balance.dealing.dealer import Deal, Dealer
from evenload.errors import WorkerLost
from evenload.integrations.script.dealt_tasks import Member, PutTask, TaskGroup, Work, under_way
from evenload.integrations.script.measured_work import Done, MeasuredWork
from evenload.integrations.script.worker_ends import (
    BETWEEN,
    MOST_BYTES,
    NONE,
    NUMBER,
    READY,
    TIMES,
    ResultWriter,
    TaskReader,
    begin,
)

if TYPE_CHECKING:
    from evenload.integrations.script.script_page import PoolEvents

MOST_WAITING, MOST_WAITING_BYTES = 4096, 64 * 2**20  # before whoever puts tasks has to wait
MOST_IN_LINE = 64  # calls
LATEST = 4  # calls, which say how long the next one takes
HELD_S, MOST_HELD = 1.0, 10.0  # seconds, and usual times of a task, for which a free worker is left without
CLAIM_S = 1.0  # after a worker's death, for the others to say what they have taken from the line
LOOK_S = 0.5  # between two looks at what waits, for a live page
MOST_DEATHS = 2  # of workers that were at a task, until it is given up
RESULT, FAULT = 0, 1

_teams: "weakref.WeakSet[Team]" = weakref.WeakSet()


class Team:
    """The workers of one pool.

    slots      names of the places of workers, and the environment of a worker in each
    kind       what the script calls its pool
    timeout_s  a worker that is at one task longer is killed
    results    what came back: ``(kind, key, bytes or exception)``, key None for other words of a worker
    on_end     called with a member that has ended, though nobody has told it to; False: the script did it
    lost       the error of a task that was given up
    dumps      pickles a task, and a result (None: as multiprocessing does)
    events     is told all of it, for a live page
    work       what was measured
    is_closing  the workers are to leave
    totals     tasks of calls, where somebody knows how many there will be
    item_s     seconds that an item of a function has taken lately, by its name
    """

    def __init__(
        self,
        slots: Mapping[str, Mapping[str, str]],
        kind: str,
        timeout_s: float | None = None,
        results: Any = None,
        on_end: Callable[[Member], bool] | None = None,
        lost: type[WorkerLost] = WorkerLost,
        dumps: tuple[Callable[[Any], Any], Callable[[Any], Any] | None] = (ForkingPickler.dumps, None),
        events: "PoolEvents | None" = None,
    ):
        self.results = queue.SimpleQueue() if results is None else results
        self.work = MeasuredWork(kind, tuple(slots))
        self.totals: dict[int, int] = {}
        self.item_s: dict[str, float] = {}
        self.n_waiting = self._n_bytes = 0  # tasks that no worker has
        self._slots, self._timeout_s, self._on_end_of, self._lost = slots, timeout_s, on_end, lost
        self._dumps, self._dumps_result = dumps
        self._events, self._look_s = events, 0.0  # when it is told next what is under way
        self._members: list[Member] = []
        self._groups: dict[int | None, TaskGroup] = {}
        self._calls: TaskGroup | None = (
            None  # calls of one task, when there were none left: what was measured
        )
        self._changed = threading.Condition()
        self.is_closing = self._is_stopped = False
        self._wake_out, self._wake_in = Pipe(duplex=False)
        os.set_blocking(self._wake_in.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._ours: set[Connection] = set()
        self._thread: threading.Thread | None = None
        here, there = socket.socketpair(type=socket.SOCK_DGRAM)
        self._line_in, self._line_out = Connection(here.detach()), Connection(there.detach())
        for end in (self._line_in, self._line_out):
            os.set_blocking(end.fileno(), False)
        self._ours.add(self._line_in)
        self._in_line: dict[int, tuple[TaskGroup, int]] = {}  # that no worker is known to have
        self._n_in_line = 0  # so far
        self._unclear_s: float | None = None  # until when workers may say which of those they have
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
        reader = TaskReader(theirs_in, theirs_out, self._line_out if most is None else None)
        ends = reader, ResultWriter(theirs_out, reader, self._dumps_result)
        process = make(target=begin, args=(self._slots[slot], target, *ends, *arguments))
        member = Member(slot, process, ours_out, ours_in, most)
        process.start = partial(self._start, member, (theirs_in, theirs_out))
        return process

    def _start(self, member: Member, theirs: Sequence[Connection]) -> None:
        del member.process.start  # the process is pickled where it is spawned
        member.since_s = time.monotonic()
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
        new = PutTask(work, bytes(self._dumps(task)), time.monotonic())
        with self._changed:
            while not self._is_stopped and (
                self.n_waiting >= MOST_WAITING or self._n_bytes >= MOST_WAITING_BYTES
            ):
                self._changed.wait()
            if self._is_stopped:
                return
            group = self._groups.get(work.group) or (self._calls if work.group is None else None)
            if group is None:
                dealer = Dealer("measured", list(self._slots), repeatable=False, max_chunk=work.most)
                group = TaskGroup(dealer)
            self._groups[work.group] = group
            group.tasks[group.n_put] = new
            if group.line or group.is_short:
                group.line.append(group.n_put)
            else:
                if work.n_left is not None:
                    group.dealer.expect(group.dealer.counters.n_added + work.n_left)
                group.dealer.add_range(group.n_put, 1)
            group.n_put += 1
            group.n_to_come = work.n_items * ((work.n_left or 1) - 1)
            self.work.n_put += 1
            self._count(new, 1)
            if self._thread is not None and self._deal(new.put_s) is None:
                return  # the team's thread has no time to keep that it does not know of
        self._wake()

    def resize(self, slots: Mapping[str, Mapping[str, str]]) -> None:
        """Have workers in ``slots`` from now on; those in other places leave when they are free."""
        with self._changed:
            self._slots, self._calls = slots, None
            if self.work.slots != tuple(slots):
                self.work = MeasuredWork(self.work.kind, tuple(slots))
        self._wake()

    def leave_last(self) -> None:
        """Have the worker in the last place leave when it is free."""
        with self._changed:
            self._slots, self._calls = dict(list(self._slots.items())[:-1]), None
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
                    self._look(math.inf)
                    return self._selector.close()  # pipes stay open: others end whoever writes into one
                pause_s = self._look(time.monotonic(), self._deal(time.monotonic()))
            for key, _ in self._selector.select(pause_s):
                if key.data is None:
                    os.read(self._wake_out.fileno(), 4096)
                    continue
                act, member = key.data
                with self._changed:
                    act(member)

    def _look(self, now: float, pause_s: float | None = None) -> float | None:
        """Tell a live page what is under way, if it is time. Returns when to come again, as ``_deal``."""
        if self._events is None:
            return pause_s
        if now >= self._look_s:
            self._look_s = now + LOOK_S
            self._events.tell_under_way(under_way(self._groups.values(), self._members))
        return min(self._look_s - now, LOOK_S if pause_s is None else pause_s)

    def _deal(self, now: float) -> float | None:
        """Send free workers tasks. Returns after how many seconds to come again."""
        times, free = self._clear_up(now), {}
        for member in self._members:
            if member.todo or member.is_told:
                continue
            if self.is_closing or member.slot not in self._slots:
                member.is_told = True
                self._write(member, [None])
            elif member.is_ready and member.n_left != 0:
                free[member.slot] = member
        while free and (back := self._take_back()) is not None:
            self._send(free.pop(next(iter(free))), *back, NONE, now)
        for group in self._groups.values():
            while free and group.line:
                self._send(free.pop(next(iter(free))), group, (group.line.popleft(),), NONE, now)
            for slot in group.dealer.fastest_first(free) if free and group.dealer.n_ready else ():
                answer = group.dealer.next(slot, now, most=free[slot].n_left)
                if isinstance(answer, Deal):
                    self._send(free.pop(slot), group, answer.indices, answer.chunk, now)
                    continue
                if not group.dealer.n_ready:
                    break
                until_s = self._held_until(free[slot], group, now)
                if now < until_s:
                    times.append(until_s if answer.until is None else min(answer.until, until_s))
                elif waiting := self._waiting(group)[:1]:
                    group.dealer.forget(waiting)
                    self._send(free.pop(slot), group, waiting, NONE, now)
        for member in free.values():
            if member.held is not None and not member.held[0].dealer.n_ready:
                member.held = None
        if not free:
            self._fill_line()
        if self._timeout_s:  # behind what was sent just now, too: nothing else may ever wake the thread
            times += [self._kill_if_late(one, now) for one in self._members if one.todo]
        return max(0.0, min(times) - now) if times else None

    def _held_until(self, member: Member, group: TaskGroup, now: float) -> float:
        """Return when a free worker gets the first task that waits, though the dealer gives it none.

        The dealer may leave the last tasks to faster workers, which may be at calls that wait for a later
        one.
        """
        if member.held is None or member.held[0] is not group:
            member.held = group, now
        work = next(iter(group.tasks.values())).work
        usual_s = self.item_s.get(work.name, 0.0) * work.n_items
        return member.held[1] + HELD_S + MOST_HELD * usual_s

    def _waiting(self, group: TaskGroup) -> list[int]:
        """Return the tasks of a group that the dealer has, and no worker."""
        begun = {at for member in self._members if member.group is group for at in member.todo}
        begun |= {at for one, at in self._in_line.values() if one is group} | {*group.line}
        return [at for at in group.tasks if at not in begun]

    def _kill_if_late(self, member: Member, now: float) -> float:
        """Kill a worker that is at one task for too long. Returns when to look again."""
        late_s = member.since_s + (self._timeout_s or 0.0)
        if now >= late_s:
            member.is_late = True
            with suppress(ProcessLookupError):
                if member.process.exitcode is None:  # processes of loky have no kill()
                    os.kill(member.process.pid, signal.SIGKILL)
            late_s = now + 1.0
        return late_s

    def _fill_line(self) -> None:
        """Have short calls wait where each worker takes the next one by itself; none waits longer for it."""
        for group in self._groups.values():
            while group.line and self._has_line(group):
                body = group.tasks[group.line[0]].body
                if len(body) > MOST_BYTES:
                    return
                try:
                    os.write(self._line_in.fileno(), NUMBER.pack(self._n_in_line) + body)
                except OSError:  # it is full
                    return
                self._in_line[self._n_in_line] = group, group.line.popleft()
                self._n_in_line += 1
            if group.line or group.dealer.n_ready:
                return

    def _has_line(self, group: TaskGroup) -> bool:
        """Whether calls of the group may stand in the line: of workers each of which may go on for ever."""
        return (
            group.is_short
            and len(self._in_line) < MOST_IN_LINE
            and self._unclear_s is None
            and all(one.n_left is None and one.slot in self._slots for one in self._members)
        )

    def _take_back(self) -> tuple[TaskGroup, tuple[int, ...]] | None:
        """Take the first call out of the line again, unless a worker was there before."""
        try:
            (number,) = NUMBER.unpack_from(os.read(self._line_out.fileno(), NUMBER.size + MOST_BYTES))
        except OSError:  # the line is empty
            return None
        group, index = self._in_line.pop(number)
        return group, (index,)

    def _empty_line(self) -> None:
        """Take back what is in the line when a worker has died: what is missing then may be what it had."""
        backs = []
        while (back := self._take_back()) is not None:
            backs.append(back)
        for group, (index,) in reversed(backs):
            group.line.appendleft(index)
        if self._in_line and self._unclear_s is None:
            self._unclear_s = time.monotonic() + CLAIM_S

    def _clear_up(self, now: float) -> list[float]:
        """Have calls be made that a worker had taken from the line when it died, before it could say so.

        Returns when to look again.
        """
        if self._unclear_s is None:
            return []
        if self._in_line and now < self._unclear_s:
            return [self._unclear_s]
        for group, index in reversed(self._in_line.values()):
            group.line.appendleft(index)
        self._in_line, self._unclear_s = {}, None
        return []

    def _send(self, member: Member, group: TaskGroup, indices: Sequence[int], chunk: int, now: float) -> None:
        tasks = self._assign(member, group, indices, chunk, now)
        self._write(member, [task.body for task in tasks])

    def _assign(
        self, member: Member, group: TaskGroup, indices: Sequence[int], chunk: int, now: float
    ) -> list[PutTask]:
        """Note that ``member`` is at these tasks from now on, and return them."""
        tasks = [group.tasks[index] for index in indices]
        member.todo.extend(indices)
        member.group, member.chunk, member.busy_s, member.since_s = group, chunk, 0.0, now
        member.held = None
        if member.n_left is not None:
            member.n_left -= len(tasks)
        for task in tasks:
            self._count(task, -1)
        self._changed.notify_all()
        return tasks

    @staticmethod
    def _write(member: Member, bodies: Sequence[bytes | None]) -> None:
        with suppress(OSError):  # it has ended, which its sentinel says soon
            member.tasks.send_bytes(pickle.dumps(bodies))

    def _count(self, task: PutTask, n: int) -> None:
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
            if self._events is not None:
                self._events.began(member.slot, member.worker, member.since_s)
            self._begun_s = self._begun_s or time.monotonic()
        elif TIMES.unpack_from(told)[0] == BETWEEN:
            member.is_told = True
            self.results.put((RESULT, None, told))
        else:
            self._on_done(member, told)
        return None

    def _on_done(self, member: Member, told: bytes) -> None:
        begun_s, over_s, taken, _ = TIMES.unpack_from(told)
        group, index = member.group, member.todo.popleft()
        done = None if index == NONE else self._take_in(member, group, index, told, begun_s, over_s)
        if taken in self._in_line:
            group_taken, at = self._in_line.pop(taken)
            self._assign(member, group_taken, (at,), NONE, member.since_s)
        elif taken != NONE:  # others were given it meanwhile
            member.group, member.chunk = None, NONE
            member.todo.append(NONE)
        if done is not None:
            self._tidy(done.group, group)

    def _take_in(
        self, member: Member, group: TaskGroup, index: int, told: bytes, begun_s: float, over_s: float
    ) -> Work:
        """Pass on the result of a task, and remember how long it took."""
        work, _, put_s = group.tasks.pop(index)
        self.results.put((RESULT, work.key, told))
        member.busy_s += over_s - begun_s
        member.since_s = time.monotonic()
        chunk = (work.key[0], work.chunk)
        put_s = max(put_s, self._begun_s)
        done = Done(work.name, member.slot, work.n_items, chunk, put_s, begun_s, over_s)
        self.work.add(done)
        if self._events is not None:
            n_words = TIMES.unpack_from(told)[-1]
            self._events.done(done, member.worker, told[len(told) - n_words :])
        item_s = (over_s - begun_s) / max(1, work.n_items)
        self.item_s[work.name] = _nearer(self.item_s.get(work.name), item_s)
        if work.most == 1:
            self._learn(group, over_s - begun_s)
        if not member.todo and member.chunk != NONE:
            group.dealer.done(member.chunk, member.since_s, member.busy_s)
        return work

    def _learn(self, group: TaskGroup, seconds: float) -> None:
        """Have calls that turn out to be short stand in the line, and be no longer the dealer's."""
        group.mean_s = _nearer(group.mean_s, seconds)
        if group.is_short and group.dealer.n_ready:
            waiting = self._waiting(group)
            group.dealer.forget(waiting)
            group.line.extend(waiting)

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
        self._empty_line()
        is_planned = member.is_told or (member.n_left == 0 and not member.todo)
        is_lost = not member.is_told  # else it has said that it leaves, at the time when it was sent more
        if self._events is not None:
            self._events.ended(member.slot, member.worker, "closed" if is_planned else member.end)
        if self._on_end_of is not None and not is_planned and not self._is_stopped:
            is_lost = self._on_end_of(member) and is_lost
        if member.todo:
            self._take_over(member, is_lost)

    def _take_over(self, member: Member, is_lost: bool) -> None:
        """Have others do what a worker has not done; ``is_lost``: it has died, maybe of the first of it."""
        group, (at, *others) = member.group, member.todo
        if at == NONE:
            return
        work = group.tasks[at].work
        group.n_deaths[at] += is_lost
        if self._events is not None and is_lost:
            self._events.lost(work.name, member.slot, member.worker, work.n_items, member.since_s)
        self.work.n_deaths += is_lost
        redo = [at] if group.n_deaths[at] < MOST_DEATHS else []
        if member.chunk == NONE:
            group.line.extendleft(redo)
        else:
            group.dealer.failed(member.chunk, time.monotonic(), redo, alone=True, later=others)
            group.dealer.requeue(others)
        for index in (*redo, *others):
            self._count(group.tasks[index], 1)
        if not redo:
            del group.tasks[at]
            error = self._given_up(member, work)
            if self._events is not None:
                self._events.given_up(work.name, error)
            self.results.put((FAULT, work.key, error))
        self._tidy(work.group, group)

    def _given_up(self, member: Member, work: Work) -> WorkerLost:
        self.work.give_up(time.monotonic())
        if member.is_late:
            return self._lost(
                f"{work.name} took longer than {self._timeout_s:g} s, {MOST_DEATHS} times",
                hint="raise --timeout, or leave it out",
            )
        return self._lost(
            f"{MOST_DEATHS} workers ended while they were at {work.name}, the last one with {member.end}",
            hint="without evenload the script would have ended here, or waited for ever",
        )

    def _tidy(self, number: int | None, group: TaskGroup) -> None:
        """Forget a group whose tasks are all done; when there is none, the work pauses."""
        if not group.tasks:
            self._groups.pop(number, None)
            self._calls = group if number is None else self._calls
            self.totals.pop(-1 if number is None else number, None)
        if not self._groups:
            self.work.pause()

    def _watch(self, member: Member) -> None:
        self._selector.register(member.results, selectors.EVENT_READ, (self._on_result, member))
        self._selector.register(member.process.sentinel, selectors.EVENT_READ, (self._on_end, member))

    def _unwatch(self, end: Any) -> None:
        with suppress(KeyError, ValueError, OSError):  # it is looked at no longer
            self._selector.unregister(end)


def _nearer(mean_s: float | None, seconds: float) -> float:
    """Return a mean of the latest calls when one more took ``seconds``."""
    return seconds if mean_s is None else mean_s + (seconds - mean_s) / LATEST


def _leave_teams() -> None:
    for team in tuple(_teams):
        team.close_in_child()


os.register_at_fork(after_in_child=_leave_teams)
