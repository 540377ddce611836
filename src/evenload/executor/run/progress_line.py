"""A line on the terminal that says how far a map is, from its second second on."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from evenload._plain_text import number_text
from evenload.devices import current_device
from evenload.settings import resolve

FIRST_S = 1.0  # a shorter map shows nothing
EVERY_S = 0.1


class ProgressLine:
    """A line that is written over again: items done, items a second, seconds left. It is gone at the end."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._began_s, self._shown_s, self._width = clock(), 0.0, 0

    def show(self, n_done: int, total: int | None) -> None:
        """Take in that ``n_done`` items have ended, of ``total`` if that is known."""
        now = self._clock()
        spent_s = now - self._began_s
        if spent_s < FIRST_S or now - self._shown_s < EVERY_S:
            return
        self._shown_s = now
        text = f"{n_done} of {total} done" if total is not None else f"{n_done} done"
        text += f", {number_text(n_done / spent_s)} items/s"
        if total is not None and n_done:
            text += f", about {(total - n_done) * spent_s / n_done:.0f} s left"
        self._write(f"\r{text:<{self._width}}")
        self._width = len(text)

    def close(self) -> None:
        """Take the line away."""
        if self._width:
            self._write(f"\r{'':<{self._width}}\r")
            self._width = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream was closed
            self._width = 0


def progress_line(asked: bool | None) -> ProgressLine | None:
    """Return a line on standard error if it is ``asked`` for; None: the setting says, or a person can see it.

    That is so at a terminal and in a notebook, and never in a worker.
    """
    if asked is None:
        settings = resolve({})
        is_told = settings.source("progress") != "default"
        asked = bool(settings.progress) and (is_told or _is_seen(sys.stderr))
    return ProgressLine(sys.stderr) if asked and sys.stderr is not None and current_device() is None else None


def _is_seen(stream: TextIO | None) -> bool:
    try:
        return "ipykernel" in sys.modules or (stream is not None and stream.isatty())
    except ValueError:  # a stream that was closed
        return False
