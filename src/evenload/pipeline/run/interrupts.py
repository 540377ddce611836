"""Ctrl-C and SIGTERM during a run: both end the work, neither what is written after it."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass(slots=True)
class _State:
    """What a signal does now; one for all that are within one another."""

    is_held: bool = False
    is_deferred: bool = False
    is_due: bool = False


class Interrupts:
    """A context in which SIGTERM does what Ctrl-C does; after ``hold()`` neither does anything.

    Only in the main thread, where Python handles signals, and only for signals that nobody else handles. One
    within another holds that one too: a command goes on to print what the run gave.
    """

    def __init__(self) -> None:
        self._state = _State()
        self._previous: dict[signal.Signals, Any] = {}

    def hold(self) -> None:
        """From now on results are written: an impatient second Ctrl-C must not cost them."""
        self._state.is_held = True

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within this, the first signal is kept for ``check``, and raised at the end at the latest.

        An exception out of nowhere would leave behind pipes, threads and workers that are being made. A
        second signal is raised at once: somebody does not want to wait any more.
        """
        state = self._state
        state.is_deferred = True
        try:
            yield
            self.check()
        finally:
            state.is_deferred = state.is_due = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was deferred."""
        if self._state.is_due:
            self._state.is_due = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Hear Ctrl-C and SIGTERM again in a part after ``hold()``: they raise KeyboardInterrupt."""
        self._state.is_held = False
        try:
            yield
        finally:
            self._state.is_held = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                present = signal.getsignal(number)
                around = getattr(present, "__self__", None)
                if isinstance(around, Interrupts):
                    self._state = around._state
                elif present == default:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        state = self._state
        if state.is_held:
            return
        if not state.is_deferred or state.is_due:
            raise KeyboardInterrupt
        state.is_due = True
