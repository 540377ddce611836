"""The thread that an executor's engine runs in: started when it is needed, ended with the workers."""

import threading
from collections.abc import Callable
from functools import partial

from evenload.devices.fork_guard import ForkGuard
from evenload.executor.loop.engine import RunEngine, serve
from evenload.executor.run.calls import CallSource
from evenload.executor.run.run import Run
from evenload.executor.supervisor.reading_watch import LOOK_S

GRACE_S = 1.0  # for workers to end what they are at
KEEP_S = 30.0  # for a journal to keep what is finished


class EngineThread:
    """The thread of ``engine``; there is none where the backend works in the caller's own.

    at_end  called when the engine is closed, maybe more than once
    It holds on to no executor: one that is forgotten ends its workers.
    """

    def __init__(self, engine: RunEngine, at_end: Callable[[], None]):
        self._engine, self._at_end = engine, at_end
        self._is_needed = engine.backend.is_threaded
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._guard = ForkGuard("this executor", "make an executor of the child's own")

    def asks(self) -> bool:
        """Does this very thread ask, in a future's callback, an event sink or a policy?"""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._lock:
            if self._is_needed and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="evenload", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        try:
            serve(self._engine)
        finally:
            self._at_end()

    def shut_down(self) -> None:
        """End the workers; also when an executor was forgotten, and at the interpreter's end."""
        thread = self._thread
        if self._guard.is_child:  # it has no such thread, no workers of its own, and locks that may be held
            return
        if thread is None:
            self._engine.close(GRACE_S)
            self._at_end()
        elif thread.is_alive():
            self._engine.call(partial(self._engine.close, GRACE_S))
            if not self.asks():  # a future's callback may close the executor
                self._wait_until(lambda seconds: thread.join(seconds) or not thread.is_alive())

    def cancel(self, run: Run, status: str, over_s: float) -> None:
        """The receiver is through with ``run``, whether that is over or not."""
        journal = run.journal
        if not run.is_over:
            if journal is not None and not self._is_needed:
                return self._engine.cancel(run)  # nobody else would, and the journal stay locked
            self._engine.call(partial(self._engine.cancel, run))
        if journal is None or not self._is_needed or self.asks():
            return None
        if threading.current_thread() is not journal.thread:
            journal.is_closed.wait(KEEP_S)  # what is finished is kept, and the journal free for the next run
        return None

    def wait_for(self, calls: CallSource) -> None:
        """Until every submitted call is done."""
        if not self._is_needed:
            while calls.why_over is None and not self._engine.is_closed:
                self._engine.step()
        elif self._thread is not None and self._thread.is_alive():
            self._wait_until(calls.is_over.wait)

    def _wait_until(self, is_so: Callable[[float], bool]) -> None:
        """Wait; but not for results that cannot be read. The workers end with the program then."""
        while not is_so(LOOK_S):
            if self._engine.reading.look():
                return
