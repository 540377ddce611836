"""What a team knows of its tasks and workers, and which of the tasks are not done yet."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from evenload.balance.dealing.dealer import Dealer
from evenload.integrations.script.worker_ends import NONE

SHORT_S = 0.01  # a call that may stand in the line


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


class PutTask(NamedTuple):
    """A task that the script's pool has put: what it is, as it is sent, and when that was."""

    work: Work
    body: bytes
    put_s: float


@dataclass(slots=True)
class TaskGroup:
    """Tasks that are dealt together, by their place in the group.

    n_to_come  items that are still to be put, as far as that is known
    line    those of them that wait, and are not the dealer's to deal, in the order of their calls
    mean_s  of the latest calls; None where it does not matter
    """

    dealer: Dealer
    tasks: dict[int, PutTask] = field(default_factory=dict)
    n_deaths: Counter[int] = field(default_factory=Counter)
    n_put: int = 0
    n_to_come: int = 0
    line: deque[int] = field(default_factory=deque)
    mean_s: float | None = None

    @property
    def is_short(self) -> bool:
        return self.mean_s is not None and self.mean_s < SHORT_S


@dataclass(slots=True, eq=False)
class Member:
    """A worker process.

    n_left    tasks that it will still take before it leaves by itself; None if it does not
    group     of what it was dealt last, by the dealer's number ``chunk``, or as one call, NONE
    todo      what of that it has not answered
    since_s   when it was started, was sent that, or has answered last
    is_ready  it waits for tasks, or has
    is_told   to leave, or has said that it does
    is_read   nothing more comes from it
    is_late   it was killed, as it was at one task for too long
    held      the group whose dealer has nothing for it while tasks wait there, and since when
    """

    slot: str
    process: Any
    tasks: Connection
    results: Connection
    n_left: int | None
    group: Any = None
    chunk: int = NONE
    todo: deque[int] = field(default_factory=deque)
    busy_s: float = 0.0
    since_s: float = 0.0
    is_ready: bool = False
    is_told: bool = False
    is_read: bool = False
    is_late: bool = False
    held: "tuple[TaskGroup, float] | None" = None

    @property
    def worker(self) -> str:
        """The name that the worker has on the live page."""
        return str(self.process.pid)

    @property
    def end(self) -> str:
        """The way in which the worker's process, which is at its end, has ended."""
        self.process.join(1.0)  # a moment after its sentinel it has an exit code
        return f"exit code {self.process.exitcode}"


@dataclass(slots=True)
class UnderWay:
    """Items of one function that are not done: those that no worker has, and by place those of workers."""

    n_waiting: int = 0
    running: Counter[str] = field(default_factory=Counter)
    queued: Counter[str] = field(default_factory=Counter)

    @property
    def n_open(self) -> int:
        """All of them."""
        return self.n_waiting + self.running.total() + self.queued.total()


def under_way(groups: Iterable[TaskGroup], members: Iterable[Member]) -> dict[str, UnderWay]:
    """Return what is not done, by function; of what a worker was sent, the first runs."""
    found: defaultdict[str, UnderWay] = defaultdict(UnderWay)
    for group in groups:
        works = [task.work for task in group.tasks.values()]
        for work in works:
            found[work.name].n_waiting += work.n_items
        for work in works[-1:]:
            found[work.name].n_waiting += group.n_to_come
    for member in members:
        for place, index in enumerate(member.todo):
            if index != NONE:
                work = member.group.tasks[index].work
                one = found[work.name]
                one.n_waiting -= work.n_items
                (one.queued if place else one.running)[member.slot] += work.n_items
    return found
