"""The live page of an executor's runs, for programs that the setting ``dash`` (``EVENLOAD_DASH=1``) asks."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from evenload._live_page import LivePage, is_left_to_command
from evenload.devices import DevicePool, current_device
from evenload.errors import EvenloadError, reason_of
from evenload.events import Event, EventFile, EventLog, RunFinished, RunStarted
from evenload.executor.finished_runs import FinishedRuns
from evenload.settings import resolve


class RunsPage:
    """A live page, from an executor's first run to its end; none in a task, or where a command has one.

    log  where the executor's events go: the given one, or one for the page. None: nowhere
    """

    def __init__(self, log: EventLog | None):
        self._is_wanted = resolve().dash and current_device() is None and not is_left_to_command()
        self.log = EventLog() if log is None and self._is_wanted else log
        self._opened: ExitStack | None = None
        self._file: EventFile | None = None
        self._lock = threading.Lock()

    def open(self, name: str, devices: DevicePool, note: Callable[[str, str], None]) -> None:
        """Open it if it is wanted, and is not open: ``name`` begins. What prevents it is only noted."""
        with self._lock:
            if not self._is_wanted or self.log is None:
                return
            self._is_wanted = False
            try:
                with ExitStack() as stack:
                    self._enter(stack, self.log, name, devices)
                    self._opened = stack.pop_all()
            except EvenloadError as error:
                note("warning", f"there is no live page: {error.message}; {error.hint}")
            except Exception as error:  # a program that is only watched goes on
                note("warning", f"there is no live page: {reason_of(error, with_path=True)}")

    def close(self, finished: FinishedRuns) -> None:
        """Show how the last of the ``finished`` runs ended, and close."""
        with self._lock:
            self._is_wanted = False
            opened, self._opened = self._opened, None
        if opened is not None and self._file is not None and self.log is not None:
            with opened, suppress(OSError, ValueError):  # a full disk
                self._file(RunFinished(self.log.now(), finished.status))

    def _enter(self, stack: ExitStack, log: EventLog, name: str, devices: DevicePool) -> None:
        # Not a TemporaryDirectory, which may go first at the program's end.
        folder = tempfile.mkdtemp(prefix="evenload-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "events.jsonl"
        stack.callback(LivePage(path).close)
        self._file = stack.enter_context(EventFile(path))
        self._file(RunStarted(log.now(), name, time.time(), None, devices.facts()))
        stack.callback(log.subscribe(self._add))

    def _add(self, event: Event) -> None:
        if self._file is not None and not isinstance(event, RunStarted | RunFinished):  # it has its own
            self._file(event)
