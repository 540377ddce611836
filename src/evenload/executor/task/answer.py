"""The outcome of a chunk of items, and whether one that came from a worker can be believed."""

import math
from dataclasses import dataclass
from typing import Any

from evenload.executor.task.failure import Failure

MOST_S = 1e8  # of a chunk, three years
MOST_CEILING = 1 << 40  # items in one call


@dataclass(slots=True)
class Answer:
    """The outcome of a chunk: values in order (None where an item failed) and failures by position.

    ``skipped``: items from this position on were not begun, as the chunk was dropped; None: all were.
    ``waited_s`` and ``cpu_s``: see ``events.Span``.
    """

    values: list[Any]
    failures: dict[int, Failure]
    start_s: float
    stop_s: float
    busy_s: float
    ceiling: int | None = None
    skipped: int | None = None
    waited_s: float = 0.0
    cpu_s: float | None = None

    def fault(self, n_items: int) -> str:
        """What is wrong with it as the answer to a chunk of ``n_items``, in words that fit after "it sent".

        "" if nothing is. A worker may send anything: nothing of it is believed before.
        """
        n_run = n_items if self.skipped is None else self.skipped
        if not _is_count(n_run, n_items) or len(self.values) != n_run:
            return f"{len(self.values)} results for {n_items} items"
        if not all(_is_count(at, n_run - 1) for at in self.failures):
            return "failures of items that it was not given"
        if not all(type(one) is Failure and one.is_sound for one in self.failures.values()):
            return "failures that are none"
        if self.ceiling is not None and not (_is_count(self.ceiling, MOST_CEILING) and self.ceiling):
            return "a number of items for a call that cannot be"
        return ""

    def bound_times(self, dealt_s: float, now_s: float) -> None:
        """Where its times cannot be, have them be those of dealing it and now.

        A task may have moved the clock of its process: tests freeze it.
        """
        if not (0 <= self.busy_s <= MOST_S and math.isfinite(self.start_s + self.stop_s)):
            self.start_s, self.stop_s, self.busy_s = dealt_s, now_s, now_s - dealt_s
        self.waited_s, self.cpu_s = checked_waits(self.busy_s, self.waited_s, self.cpu_s)


def checked_waits(busy_s: float, waited_s: Any, cpu_s: Any) -> tuple[float, float | None]:
    """Return what a worker says of ``busy_s`` seconds: waited, and of processors; without what cannot be."""
    waited_s = min(waited_s, busy_s) if _is_time(waited_s) else 0.0
    return waited_s, cpu_s if _is_time(cpu_s) else None


def _is_time(seconds: Any) -> bool:
    return type(seconds) in (int, float) and 0 <= seconds <= MOST_S


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 <= number <= most
