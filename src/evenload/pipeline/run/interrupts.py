"""Ctrl-C and SIGTERM during a run: both end the work, neither what is written after it."""

import signal
import threading
from types import FrameType
from typing import Any, Self

__all__ = ["Interrupts"]

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupts:
    """A context in which SIGTERM does what Ctrl-C does; after ``hold()`` neither does anything.

    Only in the main thread, where Python handles signals, and only for signals that nobody else handles. One
    within another holds that one too: a command goes on to print what the run gave.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._outer: Interrupts | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def hold(self) -> None:
        """From now on results are written: an impatient second Ctrl-C must not cost them."""
        self._is_held = True
        if self._outer is not None:
            self._outer.hold()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                present = signal.getsignal(number)
                around = getattr(present, "__self__", None)
                if isinstance(around, Interrupts):
                    self._outer = around
                elif present == default:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_held:
            raise KeyboardInterrupt
