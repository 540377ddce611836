"""Counts of the tasks that each device runs and has done, and their seconds."""

import threading
from dataclasses import dataclass

from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The tasks of one device: running and done, and the busy seconds of the latter."""

    running: int = 0
    done: int = 0
    busy_s: float = 0.0

    @property
    def mean_task_s(self) -> float | None:
        """Mean seconds per finished task; None before the first."""
        return self.busy_s / self.done if self.done else None


@dataclass(slots=True)
class _MutableCounts:
    running: int = 0
    done: int = 0
    busy_s: float = 0.0


class TaskCounter:
    """A counter of tasks per device id, for any thread. A call takes a microsecond: tasks may be small."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, _MutableCounts] = {}

    def started(self, device: str) -> None:
        with self._lock:
            counts = self._counts.get(device)
            if counts is None:
                counts = self._counts[device] = _MutableCounts()
            counts.running += 1

    def finished(self, device: str, busy_s: float) -> None:
        """Count the end of a task. Raises ConfigError if none runs there, or the time is negative."""
        with self._lock:
            counts = self._counts.get(device)
            if counts is None or not counts.running or not busy_s >= 0:
                running = counts.running if counts is not None else 0
                raise ConfigError(
                    f"a task finished on {device} after {busy_s} s while {running} were running there",
                    hint="report each task's start once, then its end once, with seconds of at least 0",
                )
            counts.running -= 1
            counts.done += 1
            counts.busy_s += busy_s

    def counts(self, device: str) -> TaskCounts:
        with self._lock:
            counts = self._counts.get(device, _MutableCounts())
            return TaskCounts(counts.running, counts.done, counts.busy_s)
