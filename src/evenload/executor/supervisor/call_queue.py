"""Functions that other threads have called in the thread of a loop."""

import threading
from collections import deque
from collections.abc import Callable


class CallQueue:
    """Functions that wait to be called by the thread of a loop. ``call`` and ``wake`` are for any thread.

    wake   interrupts the loop while it waits for news
    """

    def __init__(self, wake: Callable[[], None]):
        self._wake = wake
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_closing = self._is_over = False
        self._lock = threading.RLock()  # a signal handler may come in while its own thread holds it

    def __len__(self) -> int:
        return len(self._waiting)

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called in the loop's thread, soon; at once if the loop has ended.

        While the loop closes it is still called there: nothing is touched by two threads. Signal handlers
        may call this.
        """
        with self._lock:
            if not self._is_over:
                self._waiting.append(function)
                self.wake()
                return
        function()

    def wake(self) -> None:
        with self._lock:
            if not self._is_closing:
                self._wake()

    def run_waiting(self) -> None:
        """Call what waits; from the loop's thread."""
        while self._waiting:
            self._waiting.popleft()()

    def close(self) -> bool:
        """Wake the loop no more; what waits has still to be run. Returns False if it was closed before."""
        with self._lock:
            was_open, self._is_closing = not self._is_closing, True
        return was_open

    def run_last(self) -> None:
        """Call what came while the loop closed. From then on ``call`` does so itself."""
        while True:
            with self._lock:
                self._is_over = not self._waiting
                if self._is_over:
                    return
            self._waiting.popleft()()
