"""The tasks that may run now, in their order, and which of them go together: pure, by a clock that is given.

    add ──► stamp(now) ──► lead(now) ──► take ──► one batch

Tasks of a stage with equal key stand in one line, the highest priority and the longest first. A line is ripe
when it has a whole batch, when its first task to come has waited long enough, or when nothing more will come.
A free worker takes from the ripe line whose first task comes before those of the others. Where the stage's
class says the key, a worker is asked for it before.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenload.executor.decide.attempts import Losses
from evenload.pipeline.dispatch.strand import StageTask

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


class Suspects:
    """The tasks of a run that are run alone, last or no more, because of what they did to a worker.

    once       stages whose tasks may be run once only
    separate   has tasks run alone in their workers from now on
    is_single  whether nothing else may run in a task's worker
    """

    def __init__(self, once: Collection[int] = ()) -> None:
        self._once = frozenset(once)
        self._losses = Losses()
        self.separate, self.is_single = self._losses.suspect, self._losses.is_suspect
        self._held: list[StageTask] = []

    def after_loss(
        self, running: Iterable[StageTask], saving: Iterable[StageTask], *, blames: bool = True
    ) -> tuple[list[StageTask], list[StageTask]]:
        """Count a worker that ended while it ran ``running``; returns the tasks to run again, and the others.

        saving  tasks that were computed there, and lost before their files were on disk
        blames  False: its machine was lost, which says little against what ran there

        Of several that ran together, one may have ended it: nothing is counted, and each runs alone next.
        """
        running = list(running)
        if blames and len(running) > 1:
            self.separate(running)
            return self.after_end((*saving, *running))
        again, given_up = self.after_end(saving)
        for task in running:
            is_over = self._losses.blame(task) if blames else not self._losses.excuse([task])
            (given_up if is_over or self.is_once_only(task) else again).append(task)
        return again, given_up

    def after_end(self, tasks: Iterable[StageTask]) -> tuple[list[StageTask], list[StageTask]]:
        """Return those of a worker that was ended from outside that may run again, and the others."""
        tasks = list(tasks)
        given_up = [task for task in tasks if self.is_once_only(task)]
        return [task for task in tasks if not self.is_once_only(task)], given_up

    def is_once_only(self, task: StageTask) -> bool:
        """Whether it may not be run a second time."""
        return task.stage in self._once

    def hold(self, tasks: Iterable[StageTask]) -> None:
        """Keep these until nothing else waits."""
        self._held += tasks

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands`` that were held, and return them."""
        gone = [task for task in self._held if task.strand in strands]
        self._held = [task for task in self._held if task.strand not in strands]
        return gone

    def release(self) -> list[StageTask]:
        """What was held; it may run now."""
        held, self._held = self._held, []
        return held


class Waiting:
    """The tasks that may run now: a queue for each stage.

    rules        stage -> which of its tasks go together; without one, none do
    avoid        task -> groups where it did not fit
    priority_of  strand -> number; the highest goes first, the longest of equals, then in order
    is_single    tasks that run alone
    """

    def __init__(
        self,
        n_stages: int,
        priority_of: Callable[[int], float] | None = None,
        rules: Mapping[int, BatchRule] | None = None,
        is_single: Callable[[StageTask], bool] = lambda task: False,
    ):
        self.avoid: dict[StageTask, set[str]] = {}
        self._priority_of = priority_of
        given = rules or {}
        self._queues = [StageQueue(given.get(stage, BatchRule()), is_single) for stage in range(n_stages)]
        self._costs: dict[int, float] = {}

    def add(self, tasks: Iterable[StageTask], costs: Mapping[int, float] | None = None) -> None:
        """``costs``: strand -> size in any unit; kept for its later stages."""
        self._costs.update(costs or {})
        for task in tasks:
            first = -self._priority_of(task.strand) if self._priority_of is not None else 0.0
            self._queues[task.stage].add((first, -self._costs.get(task.strand, 0.0), task.strand, task))

    def __getitem__(self, stage: int) -> StageQueue:
        """The tasks of ``stage``."""
        return self._queues[stage]

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[StageTask]:
        return (task for queue in self._queues for task in queue)

    def has_for(self, group: str, stage: int) -> bool:
        """Does a task of ``stage`` wait that ``group`` may run?"""
        return any(group not in self.avoid.get(task, ()) for task in self._queues[stage])

    @property
    def is_by_priority(self) -> bool:
        return self._priority_of is not None

    @property
    def order(self) -> str:
        """What comes first, in words."""
        if self.is_by_priority:
            return "highest priority first"
        return "longest first" if self._costs else "next in line"

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands``, and return them."""
        gone = [task for task in self if task.strand in strands]
        for task in gone:
            self._queues[task.stage].discard([task])
        return gone

    # --- what goes together -----------------------------------------------------------------------

    def stamp(self, now: float) -> None:
        """Say when those that came since the last time began to wait."""
        for queue in self._queues:
            queue.stamp(now)

    def wait_s(self, now: float) -> float | None:
        """Seconds until some task has waited long enough for others; None if none does."""
        return min((s for queue in self._queues if (s := queue.wait_s(now)) is not None), default=None)

    def lead(
        self, group: str, stage: int, now: float, most: int, *, is_growing: bool, may_ask: bool
    ) -> Lead | None:
        """What ``group`` should begin a batch of ``stage`` with; see ``StageQueue.lead``."""
        return self._queue(group, stage).lead(now, most, is_growing=is_growing, may_ask=may_ask)

    def take(self, group: str, stage: int, lead: Lead, n_most: int) -> list[StageTask]:
        """Take out a batch that ``group`` may run, and that begins with ``lead``."""
        queue = self._queue(group, stage)
        tasks = queue.take(lead, n_most)
        self._queues[stage].discard(tasks, runs=not lead.asks)
        return tasks

    def _queue(self, group: str, stage: int) -> StageQueue:
        """Return the tasks of ``stage`` that ``group`` may run."""
        if not self.avoid:
            return self._queues[stage]
        return self._queues[stage].only(lambda task: group not in self.avoid.get(task, ()))
