"""Says whose results hold up the thread that reads them.

To unpickle a result runs the result's own code (its ``__setstate__``, its constructor) in the thread that all
workers are served by. Code that does not return there holds up all of them, and cannot be ended from outside.
"""

import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from evenload.executor.decide.record import Record
from evenload.executor.worker.replies import message_of

LOOK_S = 20.0  # what is read for so long is told; to be looked at as often


class ReadingWatch:
    """A watch over the thread that reads results, for those who wait for it: they call ``look``.

    name_of    the worker with this number, for people
    thread_id  of that thread, once it runs
    """

    def __init__(self, name_of: Callable[[int], str], record: Record):
        self.thread_id: int | None = None
        self._name_of, self._record = name_of, record
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0
        self._is_told = False

    def look(self) -> bool:
        """Warn, once, if the same results are being read for ``LOOK_S`` seconds; returns if so."""
        frames = _frames_of(self.thread_id)
        at = next((at for at, frame in enumerate(frames) if frame.f_code is message_of.__code__), None)
        if at is None:
            self._seen = None
            return False
        given, now = frames[at].f_locals, time.monotonic()
        seen = given["worker"], given["frame"].chunk
        if seen != self._seen:
            self._seen, self._since_s, self._is_told = seen, now, False
        seconds = now - self._since_s
        if seconds >= LOOK_S and not self._is_told:
            self._is_told = True
            name, code = self._name_of(seen[0]), frames[0].f_code
            text = f"results of {name} have been read for {seconds:.0f} s, in {code.co_qualname} "
            text += f"({code.co_filename}:{frames[0].f_lineno}): nothing else goes on before that returns"
            self._record.note("warning", text)
        return seconds >= LOOK_S


def _frames_of(thread_id: int | None) -> list[FrameType]:
    """The frames of a thread, the innermost first; none if it does not run."""
    frame = sys._current_frames().get(thread_id) if thread_id is not None else None
    return [] if frame is None else [one for one, _ in traceback.walk_stack(frame)]
