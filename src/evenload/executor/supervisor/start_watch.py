"""Which workers take too long to start, or to build a task, and are not waited for any longer.

To load a model takes minutes, to compile one an hour: no number of seconds tells that from a hang. But who
loads or compiles uses the processor, reads, or says something. So a worker is given up for silence, and for
time only after so long that nobody would wait.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from evenload.executor.supervisor.awake_clock import AwakeClock
from evenload.executor.supervisor.worker import Worker

TURN_S = 0.5  # from one look at the clock to the next
LOOK_S = 5.0  # from one look at a worker to the next
SIGN = 0.25  # of activity since the last sign of life; threads that only wait do less in ten minutes


@dataclass(frozen=True, slots=True)
class StartLimits:
    """The limits of a start, in seconds of a process that is awake.

    up_s     without a sign of life, for a worker that runs nobody's code yet
    build_s  without a sign of life, for one that builds a task
    most_s   for either, whatever is done meanwhile
    """

    up_s: float = 300.0
    build_s: float = 600.0
    most_s: float = 6 * 3600.0


class LateStart(NamedTuple):
    """A worker that takes long. ``is_over``: it is given up; else a person should know.

    how  in words that fit after "the worker"
    """

    worker: Worker
    how: str
    is_over: bool


@dataclass(slots=True)
class _Start:
    """What a worker has been doing since ``since_s``; its last sign of life came at ``sign_s``."""

    what: str
    since_s: float
    sign_s: float
    activity: float | None
    looked_s: float
    is_told: bool = False


class StartWatch:
    """A timer of workers that start or build a task.

    activity  what a worker has done so far, in seconds of a processor, MiB read and written and lines of
              output together; None if nobody can see
    """

    def __init__(self, limits: StartLimits, activity: Callable[[int], float | None]):
        self._limits, self._activity = limits, activity
        self._clock = AwakeClock()
        self._starts: dict[int, _Start] = {}
        self._due_s = -math.inf

    def look(self, workers: Iterable[Worker], now: float) -> list[LateStart]:
        """Look at those of ``workers`` that have something to build. Call it after their news was read."""
        if now < self._due_s:
            return []
        self._due_s = now + TURN_S
        self._clock.look(now)
        waiting = {worker.number: worker for worker in workers if not worker.is_up or worker.loading}
        self._starts = {number: start for number, start in self._starts.items() if number in waiting}
        late = (self._look_at(worker, now) for worker in waiting.values())
        return [one for one in late if one is not None]

    def _look_at(self, worker: Worker, now: float) -> LateStart | None:
        what = f"built {worker.loading.name}" if worker.is_up and worker.loading else "started"
        start = self._starts.get(worker.number)
        if start is None or start.what != what:
            activity = self._activity(worker.number)
            self._starts[worker.number] = _Start(what, now, now, activity, now)
            return None
        if self._clock.since(start.looked_s, now) < LOOK_S:
            return None
        start.looked_s = now
        activity = self._activity(worker.number)
        if activity is None or start.activity is None or abs(activity - start.activity) >= SIGN:
            start.activity, start.sign_s, start.is_told = activity, now, False
        return self._judged(worker, start, now)

    def _judged(self, worker: Worker, start: _Start, now: float) -> LateStart | None:
        limits = self._limits
        silent_s, total_s = self._clock.since(start.sign_s, now), self._clock.since(start.since_s, now)
        most_silent_s = limits.build_s if worker.is_up else limits.up_s
        if silent_s > most_silent_s:
            how = f"had not {start.what} and shown no sign of life for {silent_s:.0f} s"
            return LateStart(worker, how, True)
        if total_s > limits.most_s:
            return LateStart(worker, f"had not {start.what} after {total_s:.0f} s", True)
        if silent_s > most_silent_s / 5 and not start.is_told:
            start.is_told = True
            how = f"has not {start.what} yet, and has shown no sign of life for {silent_s:.0f} s"
            return LateStart(worker, how, False)
        return None
