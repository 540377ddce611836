"""What each device has done for us: tasks running and done, and the seconds they took."""

import threading
from dataclasses import dataclass, replace

from evenload.errors import ConfigError

__all__ = ["TaskCounts", "TaskLedger"]


@dataclass(frozen=True, slots=True)
class TaskCounts:
    running: int = 0
    done: int = 0
    busy_s: float = 0.0

    @property
    def mean_task_s(self) -> float | None:
        """Mean seconds per finished task, None before the first."""
        return self.busy_s / self.done if self.done else None


class TaskLedger:
    """Counts per device id, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, TaskCounts] = {}

    def started(self, device: str) -> None:
        with self._lock:
            counts = self._counts.get(device, TaskCounts())
            self._counts[device] = replace(counts, running=counts.running + 1)

    def finished(self, device: str, busy_s: float) -> None:
        """Raises ConfigError if nothing runs there, or the time is negative."""
        with self._lock:
            counts = self._counts.get(device, TaskCounts())
            if not counts.running or not busy_s >= 0:
                raise ConfigError(
                    f"a task finished on {device} after {busy_s} s while {counts.running} were running there",
                    hint="report each task's start once, then its end once, with seconds of at least 0",
                )
            self._counts[device] = TaskCounts(counts.running - 1, counts.done + 1, counts.busy_s + busy_s)

    def counts(self, device: str) -> TaskCounts:
        with self._lock:
            return self._counts.get(device, TaskCounts())
