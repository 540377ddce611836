"""Finds workers that take too long, asks them where they are, and says which are to be ended.

    HangWatch ──► verdict ──► the worker's stack is asked for ──► note (slow) | (instruction to end it, stack)

A worker shows its stack without doing anything for it: a signal has its threads printed in C.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from evenload.executor.decide.record import Record
from evenload.executor.supervisor.supervisor import Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker, HangWatch, SlowWork
from evenload.pipeline.dispatch.item_flow import StageTask

STACK_WAIT_S = 2.0  # for the stack of a worker; then it is told, or ended, without
SETTLED_S = 0.4  # without another line of a stack, it is whole
LOOK_S, LEAST_LOOK_S = 0.1, 0.01  # from one look at all that runs to the next
LOOKS_PER_LIMIT = 5  # of a short time limit
MOST_LINES = 12
MOST_NAMES = 5
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
OWN_FRAMES = (
    "/evenload/executor/",
    "/evenload/pipeline/worker/",
    "/evenload/pipeline/stage.py",
    '"<string>"',
    "/threading.py",
)


@dataclass(slots=True)
class _StackRequest:
    """A stack that was asked for: when, how many lines of it have come, and since when there are so many."""

    since_s: float
    n_lines: int = 0
    changed_s: float = 0.0


class SlowWorkers:
    """The watch over a run's workers.

    name_of  a task's stage and item, for people
    limit_s  the shortest time limit of the run's items: a wait for a stack is no longer
    poll_s   how soon to look again although nothing has happened
    """

    def __init__(
        self,
        watch: HangWatch,
        supervisor: Supervisor,
        dispatcher: GroupScheduler,
        record: Record,
        name_of: Callable[[StageTask], str],
        limit_s: float = inf,
    ):
        self.poll_s = max(LEAST_LOOK_S, limit_s / LOOKS_PER_LIMIT)
        self._stack_s, self._settled_s = min(STACK_WAIT_S, limit_s), min(SETTLED_S, limit_s)
        self._watch, self._supervisor, self._dispatcher = watch, supervisor, dispatcher
        self._record, self._name_of = record, name_of
        self._looked_s = -inf
        self._requests: dict[int, _StackRequest] = {}
        self._told: set[tuple[int, StageTask | int]] = set()

    def look(self, now: float) -> Iterator[tuple[Worker, EndWorker, str]]:
        """Name what is slow, and give the workers that are to be ended now, each with its stack."""
        if now - self._looked_s < min(LOOK_S, self.poll_s):
            return
        self._looked_s = now
        groups, workers = tuple(self._dispatcher.groups.values()), self._supervisor.workers
        for verdict in self._watch.look(now, groups, self._dispatcher.n_ready(now)):
            worker = workers.get(verdict.group)
            if worker is None:
                continue
            if isinstance(verdict, SlowWork):
                self._tell(worker, verdict, now)
                continue
            stack = self._stack(worker, now)
            if stack is not None:
                if verdict.later:
                    self._watch.made_way(verdict.later)
                yield worker, verdict, stack

    def gone(self, group: str) -> None:
        """Forget a worker that is no more."""
        self._watch.forget(group)

    def tell_end(self, worker: Worker, order: EndWorker, stack: str) -> None:
        """Note that ``worker`` was ended as ``order`` says, because of which items."""
        tasks = (*order.failed, *order.alone, *order.later)
        items = f" ({', '.join(map(self._name_of, tasks[:MOST_NAMES]))})" if tasks else ""
        where = f"; it was at:\n{stack}" if stack else ""
        self._record.note("warning", f"worker {worker.name} {order.why}{items}{where}")

    def _tell(self, worker: Worker, slow: SlowWork, now: float) -> None:
        what: StageTask | int = slow.stage if slow.task is None else slow.task
        if (worker.number, what) in self._told:
            return
        stack = self._stack(worker, now)
        if stack is None:
            return
        self._told.add((worker.number, what))
        if slow.task is None:
            said = f"{self._dispatcher.stages[slow.stage]} is being loaded on {slow.group}"
            limit = "load_timeout_s"
        else:
            said = f"{self._name_of(slow.task)} is running on {slow.group}"
            limit = "timeout_s"
        where = f"; it is at:\n{stack}" if stack else ""
        self._record.note(
            "warning", f"{said} for {slow.seconds:.0f} s now; set {limit} if it may hang{where}"
        )

    def _stack(self, worker: Worker, now: float) -> str | None:
        """Where the worker is; None while it is being asked."""
        request = self._requests.get(worker.number)
        if request is None:
            self._requests[worker.number] = _StackRequest(now)
            self._supervisor.ask_stack(worker)
            return None
        lines = worker.stack or []
        if len(lines) != request.n_lines:
            request.n_lines, request.changed_s = len(lines), now
        is_whole = bool(lines) and now - request.changed_s >= self._settled_s
        if not is_whole and now - request.since_s < self._stack_s:
            return None
        del self._requests[worker.number]
        return shown_stack(lines)


def shown_stack(lines: list[str]) -> str:
    """Return a few frames of each thread that runs code of a stage, the innermost first."""
    shown: list[str] = []
    for thread in THREAD.split("\n".join(lines))[1:]:
        frames = [line for line in thread.splitlines()[1:] if line]
        users = [n for n, frame in enumerate(frames) if not any(own in frame for own in OWN_FRAMES)]
        if users:
            shown += [frame.rstrip() for frame in frames[: users[-1] + 1]][:MOST_LINES]
    return "\n".join(shown)
