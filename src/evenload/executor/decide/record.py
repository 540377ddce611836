"""The executor's events: with times on the run's clock, and not made without a log."""

import itertools
import time
from collections.abc import Sequence

from evenload._arguments import flag
from evenload._terminal import print_line
from evenload.errors import ConfigError, quoted
from evenload.events import (
    Batched,
    EventLog,
    Idle,
    ItemFailed,
    Moved,
    Note,
    Queued,
    Restored,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)

SHORTEST_IDLE_S = 0.001  # a shorter rest is not worth an event
LOUD = ("warning", "error")


class Record:
    """A writer of the executor's events. It takes times of ``time.monotonic``.

    log      where events go; None for nowhere
    echo     print the workers' output, warnings and errors on stderr
    """

    def __init__(self, log: EventLog | None, echo: bool = True):
        if log is not None and not isinstance(log, EventLog):
            raise ConfigError(f"events={quoted(log)} is no EventLog", hint="give EventLog(sink)")
        self._log = log
        self._echo = flag("echo", echo)
        self._offset = log.now() - time.monotonic() if log is not None else 0.0

    def stage_started(self, stage: str, total: int | None) -> None:
        if self._log is not None:
            self._log.emit(StageStarted(self._now(), stage, total))

    def stage_finished(
        self, stage: str, bound_s: float | None, learned: str = "", result_bytes: int | None = None
    ) -> None:
        if self._log is not None:
            self._log.emit(StageFinished(self._now(), stage, bound_s, learned, result_bytes))

    def worker_started(
        self, device: str, worker: str, pid: int | None, startup_s: float, build_s: float | None = None
    ) -> None:
        if self._log is not None:
            self._log.emit(WorkerStarted(self._now(), device, worker, pid, startup_s, build_s))

    def worker_exited(self, device: str, worker: str, reason: str) -> None:
        if self._log is not None:
            self._log.emit(WorkerExited(self._now(), device, worker, reason))

    def span(
        self,
        stage: str,
        device: str,
        worker: str,
        items: "range | tuple[int, ...]",
        start_s: float,
        stop_s: float,
        busy_s: float,
        status: str,
        why: str,
        dealt_s: float,
        duplicate: bool,
        cost: float | None = None,
        waited_s: float = 0.0,
        cpu_s: float | None = None,
        suspects: Sequence[int] = (),
    ) -> None:
        if self._log is None:
            return
        add = self._offset
        self._log.emit(
            Span(
                stage,
                device,
                worker,
                items[0],
                len(items),
                start_s + add,
                stop_s + add,
                busy_s,
                status,
                why,
                dealt_s + add,
                duplicate,
                cost,
                _scattered(items),
                waited_s,
                cpu_s,
                tuple(suspects) or None,
            )
        )

    def batched(self, stage: str, device: str, n_items: int, most: int) -> None:
        if self._log is not None:
            self._log.emit(Batched(self._now(), stage, device, n_items, most))

    def idle(self, device: str, start_s: float, stop_s: float, why: str) -> None:
        if self._log is not None and stop_s - start_s >= SHORTEST_IDLE_S:
            self._log.emit(Idle(device, start_s + self._offset, stop_s + self._offset, why))

    def moved(self, source: str, target: str, n_items: int, imbalance: float) -> None:
        if self._log is not None:
            self._log.emit(Moved(self._now(), source, target, n_items, imbalance))

    def restored(self, stage: str, items: tuple[int, ...]) -> None:
        if self._log is not None:
            self._log.emit(Restored(self._now(), stage, items[0], len(items), _scattered(items)))

    @property
    def listens(self) -> bool:
        """Whether events go anywhere."""
        return self._log is not None

    def queued(
        self, stage: str, waiting: int | None, running: dict[str, int], queued: dict[str, int]
    ) -> None:
        if self._log is not None:
            self._log.emit(Queued(self._now(), stage, waiting, running, queued))

    def item_failed(
        self, stage: str, index: int, error: str, message: str, device: str | None, traceback: str
    ) -> None:
        if self._log is not None:
            self._log.emit(
                ItemFailed(self._now(), stage, index, str(index), error, message, device, traceback)
            )

    def said(self, device: str, line: str) -> None:
        """Record and print a line of a worker's output."""
        if self._log is not None:
            self._log.emit(Note(self._now(), "info", device, line))
        if self._echo:
            print_line(f"[{device}] {line}")

    def note(self, level: str, text: str) -> None:
        """Record a note of the executor itself, and print it if it is a warning or an error."""
        if self._log is not None:
            self._log.emit(Note(self._now(), level, "executor", text))
        if self._echo and level in LOUD:
            print_line(f"evenload: {level}: {text}")

    def _now(self) -> float:
        return time.monotonic() + self._offset


def _scattered(items: "range | tuple[int, ...]") -> tuple[int, ...] | None:
    """Return the items if they do not follow one another, else None."""
    if isinstance(items, range) or all(b - a == 1 for a, b in itertools.pairwise(items)):
        return None
    return items
