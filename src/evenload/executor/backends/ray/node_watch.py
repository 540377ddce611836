"""A thread that notices machines which join or leave a cluster."""

import threading
from collections.abc import Callable

LOOK_S = 1.0  # between two looks at Ray's list of machines: Ray itself tells nobody
LEAVE_S = 5.0  # for the thread to end; it may wait for a cluster that does not answer


class NodeWatch:
    """A watch over the machines of a cluster, until ``close``.

    look     returns Ray's ids of the machines that are alive
    changed  called in the watch's own thread when these are others than before
    """

    def __init__(self, look: Callable[[], frozenset[str]], changed: Callable[[], None]):
        self._look, self._changed = look, changed
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="evenload-machines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(LEAVE_S)

    def _watch(self) -> None:
        seen: frozenset[str] | None = None
        while not self._is_over.wait(0.0 if seen is None else LOOK_S):
            try:
                alive = self._look()
                if seen is not None and alive != seen and not self._is_over.is_set():
                    self._changed()
                seen = alive
            except Exception:
                # The cluster does not answer, or the executor is closing: the next look shows what is so.
                seen = seen or frozenset()
