"""Where events go: a log hands each to its sinks and owns the run's clock."""

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evenload._closing import Closing
from evenload._private_files import plain_file
from evenload.errors import ConfigError
from evenload.events.json_lines import decode, encode
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


class EventFile(Closing):
    """A sink that appends events to ``events.jsonl``; flushed at least every ``flush_s`` and by ``close()``.

    A last line that a killed run left half-written is ended first: it costs no event of this one.
    ``is_new``: no earlier run has left events in it.
    ``is_alone``: another process that opens it so, while this one has it open, gets a ConfigError.
    ``error`` says why the file stops early (a full disk); None if it has all events.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        flush_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        is_alone: bool = False,
    ):
        self._file = Path(path).open("a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        if is_alone and not _lock(self._file):
            self._file.close()
            raise ConfigError(
                f"a run is under way in {Path(path).parent}: it writes its events there",
                hint="wait for it to end, or name another folder",
            )
        self.is_new = not self._file.tell()
        if _is_cut(Path(path)):
            self._file.write("\n")
        self.error: BaseException | None = None
        self._flush_s = flush_s
        self._clock = clock
        self._flushed = clock()

    def __call__(self, event: Event) -> None:
        try:
            self._file.write(encode(event) + "\n")
            now = self._clock()
            if now - self._flushed >= self._flush_s:
                self._file.flush()
                self._flushed = now
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Flush and close. A failure to write is not raised but kept in ``error``."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error


def _lock(file: io.TextIOWrapper) -> bool:
    """Lock a file until it is closed, also by the end of the process. False: another one has locked it."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a drive that knows no locks
        pass
    return True


def _is_cut(path: Path) -> bool:
    """Whether the last line of a file has no end."""
    with contextlib.suppress(OSError):
        if path.is_file() and (n_bytes := path.stat().st_size):
            with path.open("rb") as file:
                file.seek(n_bytes - 1)
                return file.read(1) != b"\n"
    return False


def read_events(path: str | Path) -> Iterator[Event]:
    """Yield the events of ``path`` (events.jsonl, or a run folder that has one) in bounded memory.

    Lines that are damaged, half-written or from a newer version are left out.
    Raises FileNotFoundError if there is no such file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "events.jsonl"
    with io.TextIOWrapper(plain_file(path), "utf-8", "replace") as lines:
        for line in lines:
            event = decode(line)
            if event is not None:
                yield event
