"""The tasks of one stage that wait, and which of them go together: pure, by a clock that is given.

    add ──► stamp(now) ──► lead(now) ──► take ──► one batch

Tasks of equal key stand in one line, in the order in which they should run. A line is ripe when it has a
whole batch, when its first task to come has waited long enough, or when nothing more will come. A free worker
takes from the ripe line whose first task comes before those of the others. Where the stage's class says the
key, a worker is asked for it before.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from evenload.pipeline.dispatch.course.strand import StageTask

AHEAD = 8  # batches of tasks whose key is known, before no more are asked for
ASKED = 4  # batches of tasks that are asked for at once

Entry = tuple[float, float, int, StageTask]
"""Minus its priority, minus its size, its strand and itself: in the order in which tasks should run."""


def _equal_keys(task: StageTask) -> str | None:
    return ""


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The rule of which tasks of a stage run in one call.

    most        at most so many
    max_wait_s  seconds that the first of them may wait for others
    key_of      what must be equal in all of them; None: the task runs alone
    """

    most: int = 1
    max_wait_s: float = 0.0
    key_of: Callable[[StageTask], str | None] = _equal_keys


class Lead(NamedTuple):
    """The task that a batch begins with. ``key`` is that of its line, None if it runs alone.

    asks  its key is not known: a worker is to be asked for it, and for those of others
    """

    task: StageTask
    key: str | None
    asks: bool = False


@dataclass(slots=True)
class _Line:
    """Tasks that may go together: ``n`` of them, best first, and by when they came. Others are skipped."""

    n: int = 0
    heap: list[Entry] = field(default_factory=list)
    by_age: list[tuple[float, Entry]] = field(default_factory=list)


_UNASKED = "\0unasked"  # the line of tasks whose key a worker is to be asked for


class StageQueue:
    """The tasks of one stage that may run now.

    asks_keys  the stage's class says the key of a task
    """

    def __init__(self, rule: BatchRule, is_single: Callable[[StageTask], bool] = lambda task: False):
        self.rule, self.asks_keys = rule, False
        self._is_single = is_single
        self._entries: dict[StageTask, Entry] = {}
        self._lines: dict[str | None, _Line] = {}
        self._line_of: dict[StageTask, str | None] = {}
        self._order: list[Entry] = []
        self._keys: dict[StageTask, str | None] = {}  # as the stage's class said
        self._since_s: dict[StageTask, float] = {}
        self._new: list[StageTask] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[StageTask]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Let a task wait. Its time begins with the next ``stamp``, or has begun before it was asked for."""
        task = entry[-1]
        key = self._key(task)
        line = self._lines.setdefault(key, _Line())
        line.n += 1
        self._entries[task], self._line_of[task] = entry, key
        heapq.heappush(line.heap, entry)
        heapq.heappush(self._order, entry)
        if task in self._since_s:
            heapq.heappush(line.by_age, (self._since_s[task], entry))
        elif self.rule.max_wait_s:
            self._new.append(task)

    def stamp(self, now: float) -> None:
        """Say when those that were added since the last time began to wait."""
        for task in self._new:
            if task in self._entries:
                self._since_s[task] = now
                line = self._lines[self._line_of[task]]
                heapq.heappush(line.by_age, (now, self._entries[task]))
        self._new.clear()

    def learn(self, task: StageTask, key: str | None) -> None:
        """Take in what the stage's class said of a task that does not wait now; None: it runs alone."""
        self._keys[task] = key

    def ask_keys(self) -> None:
        """From now on the stage's class says the key of a task."""
        if not self.asks_keys:
            self.asks_keys = True
            for entry in self.discard(tuple(self._entries), runs=False):
                self.add(entry)

    # --- decisions --------------------------------------------------------------------------------

    def lead(self, now: float, most: int, *, is_growing: bool, may_ask: bool = True) -> Lead | None:
        """What a free worker should begin with; None: nothing waits, or what waits should go on waiting.

        most        tasks in one call of this worker
        is_growing  more tasks may come
        may_ask     the worker can say keys now, before there is a batch
        """
        if not self._entries:
            return None
        first = self._head(self._order)
        key = self._line_of[first[-1]]
        if most <= 1:
            return Lead(first[-1], None)
        if may_ask and _UNASKED in self._lines and self._must_ask(key, most):
            return Lead(self._head(self._lines[_UNASKED].heap)[-1], None, asks=True)
        if not self._is_ripe(key, now, most, is_growing=is_growing):
            ripe = [k for k in self._lines if self._is_ripe(k, now, most, is_growing=is_growing)]
            if not ripe:
                return None
            key = min(ripe, key=lambda one: self._head(self._lines[one].heap))
        task = self._head(self._lines[key].heap)[-1]
        return Lead(task, None if key == _UNASKED else key, asks=key == _UNASKED)

    def n_ripe(self, now: float, *, is_growing: bool) -> int:
        """How many tasks wait for nothing but a worker."""
        if not self.rule.max_wait_s or not is_growing:
            return len(self._entries)
        ripe = [k for k in self._lines if self._is_ripe(k, now, self.rule.most, is_growing=True)]
        return sum(self._lines[key].n for key in ripe)

    def wait_s(self, now: float) -> float | None:
        """Seconds until some task has waited long enough; None if none will."""
        if not self.rule.max_wait_s:
            return None
        lines = [line for key, line in self._lines.items() if key is not None]
        due = [self._oldest_s(line) + self.rule.max_wait_s - now for line in lines]
        return min((seconds for seconds in due if 0 < seconds < float("inf")), default=None)

    def take(self, lead: Lead, n_most: int) -> list[StageTask]:
        """Take out a batch that begins with ``lead``; those that are only asked for come back.

        Where a stage has no batches, these are tasks that a worker has in flight, each by itself.
        """
        line_key = _UNASKED if lead.asks else lead.key
        n_most = ASKED * self.rule.most if lead.asks else n_most
        tasks = [lead.task]
        self.discard(tasks, runs=not lead.asks)
        is_alone = line_key is None and (self.rule.most > 1 or self._is_single(lead.task))
        while len(tasks) < n_most and line_key in self._lines and not is_alone:
            task = self._head(self._lines[line_key].heap)[-1]
            if line_key is None and self._is_single(task):
                break
            tasks.append(task)
            self.discard(tasks[-1:], runs=not lead.asks)
        return tasks

    def discard(self, tasks: Iterable[StageTask], *, runs: bool = True) -> list[Entry]:
        """Take out those of ``tasks`` that wait. ``runs``: their time of waiting is over."""
        gone = [(task, self._entries.pop(task)) for task in tasks if task in self._entries]
        for task, _ in gone:
            key = self._line_of.pop(task)
            self._lines[key].n -= 1
            if not self._lines[key].n:
                del self._lines[key]
            if runs:
                self._since_s.pop(task, None)
        return [entry for _, entry in gone]

    def only(self, allows: Callable[[StageTask], bool]) -> "StageQueue":
        """Return a queue with those tasks that ``allows`` says; for a look, or for one ``take``."""
        some = StageQueue(self.rule, self._is_single)
        some.asks_keys, some._keys, some._since_s = self.asks_keys, self._keys, dict(self._since_s)
        for task, entry in self._entries.items():
            if allows(task):
                some.add(entry)
        return some

    # --- inside -----------------------------------------------------------------------------------

    def _key(self, task: StageTask) -> str | None:
        """Return the line of a task; None: it runs alone."""
        if self.rule.most <= 1 or self._is_single(task):
            return None
        key = self.rule.key_of(task)
        if key is None or not self.asks_keys:
            return key
        if task not in self._keys:
            return _UNASKED
        said = self._keys[task]
        return None if said is None else f"{key} {said}".strip()

    def _must_ask(self, first_key: str | None, most: int) -> bool:
        """Is it not known with whom the first task goes, or too little known to fill its batch?"""
        if first_key is None or first_key == _UNASKED:
            return first_key == _UNASKED
        n_known = len(self._entries) - self._lines[_UNASKED].n
        return self._lines[first_key].n < most and n_known < AHEAD * most

    def _is_ripe(self, key: str | None, now: float, most: int, *, is_growing: bool) -> bool:
        line, max_wait_s = self._lines[key], self.rule.max_wait_s
        if key is None or not is_growing or not max_wait_s or line.n >= most:
            return True
        return self._oldest_s(line) + max_wait_s <= now

    def _oldest_s(self, line: _Line) -> float:
        while line.by_age and self._entries.get(line.by_age[0][1][-1]) is not line.by_age[0][1]:
            heapq.heappop(line.by_age)
        return line.by_age[0][0] if line.by_age else float("inf")

    def _head(self, heap: list[Entry]) -> Entry:
        """Return the first of a heap that still waits; there must be one."""
        while self._entries.get(heap[0][-1]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0]
