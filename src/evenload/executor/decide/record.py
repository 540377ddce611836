"""The executor's events: with times on the run's clock, and not made without a log."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

from evenload._arguments import flag
from evenload._terminal import print_line
from evenload.errors import ConfigError, quoted
from evenload.events import Event, EventLog, Idle, Note, Span

P = ParamSpec("P")
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

    @property
    def listens(self) -> bool:
        """Whether events go anywhere."""
        return self._log is not None

    def tell(self, kind: Callable[Concatenate[float, P], Event], *fields: P.args, **named: P.kwargs) -> None:
        """Record an event of this ``kind``, which happens now; its fields are those after the time."""
        if self._log is not None:
            self._log.emit(kind(self._now(), *fields, **named))

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
                scattered(items),
                waited_s,
                cpu_s,
                tuple(suspects) or None,
            )
        )

    def idle(self, device: str, start_s: float, stop_s: float, why: str) -> None:
        if self._log is not None and stop_s - start_s >= SHORTEST_IDLE_S:
            self._log.emit(Idle(device, start_s + self._offset, stop_s + self._offset, why))

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


def scattered(items: "range | tuple[int, ...]") -> tuple[int, ...] | None:
    """Return the items if they do not follow one another, else None."""
    if isinstance(items, range) or all(b - a == 1 for a, b in itertools.pairwise(items)):
        return None
    return items
