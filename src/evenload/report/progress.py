"""Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere, or nothing.

The sink only counts; a thread of its own draws, at most ten times a second. Whatever goes wrong while drawing
ends the drawing, never the run.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from evenload._closing import Closing
from evenload._optional import is_installed
from evenload._plain_text import number_text, plain
from evenload._terminal import own_codes, plain_console
from evenload.errors import UnknownName
from evenload.events import Event, RunFinished
from evenload.report.pace import Pace, eta_text, pace_line

__all__ = ["Progress", "make_progress"]

MODES = ("auto", "always", "never")
LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.125


class _Drawing(Protocol):
    every_s: float

    def draw(self, pace: Pace) -> None: ...
    def finish(self, pace: Pace) -> None: ...


class Progress(Closing):
    """A sink with ``close()``. Drawing starts with the first event and stops with the last one of the run."""

    def __init__(self, drawing: _Drawing | None) -> None:
        self.pace = Pace()
        self.error: BaseException | None = None
        self._drawing = drawing
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if self._drawing is None:
            return
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="evenload-progress", daemon=True)
            self._thread.start()
        self.pace(event)
        if isinstance(event, RunFinished):
            self._stop.set()

    def close(self) -> None:
        """Draw what there is for the last time and leave the terminal as it was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            self._thread = None
            self._try(lambda drawing: drawing.finish(self.pace))
            self._drawing = None

    def _run(self) -> None:
        drawing = self._drawing
        while drawing is not None and not self._stop.wait(drawing.every_s):
            self._try(lambda one: one.draw(self.pace))
            drawing = self._drawing

    def _try(self, draw: Callable[[_Drawing], None]) -> None:
        try:
            if self._drawing is not None:
                draw(self._drawing)
        except Exception as error:
            # A closed pipe or a broken terminal; the run matters more than being watched.
            self.error, self._drawing = error, None


class _Lines:
    """A line now and then, for files and pipes."""

    every_s = LINE_EVERY_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    def draw(self, pace: Pace) -> None:
        line = pace_line(pace)
        if line != self._last:
            self._stream.write(plain(line) + "\n")
            self._stream.flush()
            self._last = line

    finish = draw


class _OneLine:
    """A line that is written over itself, for a terminal without rich."""

    every_s = 0.2

    def __init__(self, stream: TextIO) -> None:
        self._stream = own_codes(stream)

    def draw(self, pace: Pace) -> None:
        width = _width(self._stream)
        self._stream.write("\r" + plain(pace_line(pace)).replace("\n", "?")[: width - 1] + "\x1b[K")
        self._stream.flush()

    def finish(self, pace: Pace) -> None:
        self.draw(pace)
        self._stream.write("\n")
        self._stream.flush()


class _Bar:
    """The bar that rich draws: one line for the stage, one for the devices."""

    every_s = BAR_EVERY_S

    def __init__(self, stream: TextIO, is_forced: bool = False) -> None:
        self._stream = stream
        self._is_forced = is_forced
        self._live: Any = None

    def draw(self, pace: Pace) -> None:
        if self._live is None:
            self._live = self._started()
        self._live.update(self._picture(pace), refresh=True)

    def finish(self, pace: Pace) -> None:
        self.draw(pace)
        self._live.stop()

    def _started(self) -> Any:
        from rich.live import Live

        console = plain_console(self._stream, force_terminal=True if self._is_forced else None)
        # stdout is the result and stays untouched; what goes to stderr is printed above the bar.
        live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        live.start()
        return live

    def _picture(self, pace: Pace) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = pace.total
        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=total, completed=min(pace.n_done, total or 0), width=28, pulse=total is None)
        cells: list[Any] = [Text(pace.stage or pace.name or "starting", style="bold"), bar]
        cells.append(f"{pace.n_done}/{total}" if total is not None else str(pace.n_done))
        cells.append(f"{number_text(pace.items_per_s)}/s" if pace.items_per_s else "")
        cells.append(eta_text(pace) or pace.status)
        if pace.n_failed:
            cells.append(Text(f"✗ {pace.n_failed} failed", style="bold red"))
        row.add_row(*cells)
        return Group(row, self._loads(pace)) if pace.devices else row

    def _loads(self, pace: Pace) -> Any:
        from rich.text import Text

        line = Text(style="dim", overflow="ellipsis", no_wrap=True)
        for name, device in list(pace.devices.items())[:12]:
            line.append(f"{name} {_gauge(device.load)} {device.load:>4.0%}   ")
        line.append(f"imbalance {pace.imbalance:.2f}")
        return line


def _gauge(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * 6)
    return "▮" * full + "▯" * (6 - full)


def _width(stream: TextIO) -> int:
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80


def make_progress(mode: str = "auto", stream: TextIO | None = None) -> Progress:
    """A progress sink on ``stream`` (stderr).

    ``auto``: a bar on a terminal, lines elsewhere and on a dumb terminal; ``always``: a bar everywhere;
    ``never``: nothing. Raises UnknownName for another mode.
    """
    if mode not in MODES:
        raise UnknownName("progress mode", mode, MODES)
    stream = sys.stderr if stream is None else stream
    if mode == "never" or stream is None:
        return Progress(None)
    is_terminal = _is_terminal(stream)
    if mode == "auto" and not is_terminal:
        return Progress(_Lines(stream))
    if is_installed("rich"):
        return Progress(_Bar(stream, is_forced=not is_terminal))
    return Progress(_OneLine(stream))


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False
