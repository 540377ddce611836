"""Where events go: a log hands each to its sinks and owns the run's clock."""

import threading
import time
from collections.abc import Callable

from evenload.events.kinds import Event, Note


class EventLog:
    """A stream of events with a clock: hands each event to its sinks, in order, from any thread.

    A sink is a callable that takes one event. One that raises is removed, and its error is kept in
    ``sink_errors``: watching a run must never stop it. A sink may emit, subscribe and remove sinks. It must
    return soon: who emits waits for it.
    """

    def __init__(self, *sinks: Callable[[Event], None], clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._sinks = list(sinks)
        self._lock = threading.RLock()  # a sink may emit
        self.sink_errors: list[BaseException] = []

    def now(self) -> float:
        """Return the seconds since this log was made."""
        return self._clock() - self._began

    def subscribe(self, sink: Callable[[Event], None]) -> Callable[[], None]:
        """Add a sink; call the returned function to remove it."""
        with self._lock:
            self._sinks.append(sink)
        return lambda: self._remove(sink)

    def emit(self, event: Event) -> None:
        """Hand ``event`` to all sinks."""
        with self._lock:
            for sink in tuple(self._sinks):
                try:
                    sink(event)
                except KeyboardInterrupt:
                    raise  # it is not the sink's
                except BaseException as error:  # SystemExit would end a loop that others wait for
                    self._remove(sink)
                    self.sink_errors.append(error)

    def note(self, level: str, source: str, text: str) -> None:
        """Emit what ``source`` has to say now."""
        self.emit(Note(self.now(), level, source, text))

    def _remove(self, sink: Callable[[Event], None]) -> None:
        with self._lock:
            if sink in self._sinks:
                self._sinks.remove(sink)
