"""Progress of a search for a plan on the terminal, and the end of its time."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from evenload._plain_text import seconds_text

if TYPE_CHECKING:
    from evenload.pipeline.planning.planner import SearchState

QUIET_S = 2.0  # before anything is shown


class PlanningProgress:
    """A watch over the search for a plan: a line on a terminal after two seconds, and an end of its time.

    limit_s  seconds that the search may take; it ends with the best plan so far. None: no limit
    shows    write progress if ``stream`` is a terminal
    """

    def __init__(
        self,
        limit_s: float | None = None,
        *,
        shows: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._limit_s, self._clock, self._began_s = limit_s, clock, clock()
        self._stream = sys.stderr if stream is None else stream
        self._shows, self._width = shows and self._stream.isatty(), 0

    def __call__(self, state: "SearchState") -> bool:
        """Tell how far the search is; True once its time is over."""
        took_s = self._clock() - self._began_s
        if state.is_over:
            self.close()
        elif self._shows and took_s >= QUIET_S:
            self._write(_text(state, took_s))
        return self._limit_s is not None and took_s >= self._limit_s

    def close(self) -> None:
        """Take the line away."""
        if self._width:
            self._write("")

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)


def _text(state: "SearchState", took_s: float) -> str:
    said = f"planning for {took_s:.0f} s: {state.n_tried} ways tried"
    if state.best_s is None or not state.bound_s:
        return said
    best = seconds_text(state.best_s, 4)
    return f"{said}, the best takes {best}, {state.best_s / state.bound_s:.3f}x the least possible"
