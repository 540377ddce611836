"""What each device has done for us: tasks running and done, and the seconds they took."""

import threading
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Account:
    running: int = 0
    done: int = 0
    busy_s: float = 0.0


class TaskLedger:
    """Counts per device id, from any thread. An entry costs a microsecond: tasks may be that small."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def started(self, device: str) -> None:
        with self._lock:
            account = self._accounts.get(device)
            if account is None:
                account = self._accounts[device] = _Account()
            account.running += 1

    def finished(self, device: str, busy_s: float) -> None:
        """Raises ConfigError if nothing runs there, or the time is negative."""
        with self._lock:
            account = self._accounts.get(device)
            if account is None or not account.running or not busy_s >= 0:
                running = account.running if account is not None else 0
                raise ConfigError(
                    f"a task finished on {device} after {busy_s} s while {running} were running there",
                    hint="report each task's start once, then its end once, with seconds of at least 0",
                )
            account.running -= 1
            account.done += 1
            account.busy_s += busy_s

    def counts(self, device: str) -> TaskCounts:
        with self._lock:
            account = self._accounts.get(device, _Account())
            return TaskCounts(account.running, account.done, account.busy_s)
