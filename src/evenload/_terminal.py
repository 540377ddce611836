"""Where lines leave the program: a filter on the streams, so that no line carries a stranger's sequences.

In a command, ``plain_streams`` filters all that it writes. In a program of the user, whose streams are not
ours, what writes for us filters its own lines: ``print_line``, ``log_of``, ``plain_console``.
"""

import codecs
import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from evenload._plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console


class PlainStream:
    """A text stream that writes to ``stream`` what ``plain`` leaves of a text.

    A reader who leaves early (``| head``) is no error: a command's exit code is its answer, and nothing is
    known of that yet. ``ends_with_reader``: it is one (BrokenPipeError), as the output is all that is wanted.
    ``own_codes`` gives the stream below, for lines that we have coloured ourselves.
    """

    def __init__(self, stream: TextIO):
        self.below = stream
        self.ends_with_reader = False
        self._is_left = False

    def write(self, text: str) -> int:
        shown = plain(text)
        try:
            self._do("write", shown)
        except UnicodeEncodeError:  # an encoding without these letters: better "?" than no line
            encoding = self.encoding or "ascii"
            self._do("write", shown.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        self._do("flush")

    def _do(self, what: str, *given: str) -> None:
        try:
            if not self._is_left:
                getattr(self.below, what)(*given)
        except BrokenPipeError:
            self._is_left = True
            if self.ends_with_reader:
                raise

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        # Of a stream in ASCII click would take the buffer, and write past the filter.
        if name == "buffer" and _is_ascii(self.below):
            raise AttributeError(name)
        return getattr(self.below, name)


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Filter ``sys.stdout`` and ``sys.stderr`` while the block runs.

    They stay filtered if it raises: then Python prints the error, which quotes who knows what. One that who
    started us has closed takes everything and shows nothing.
    """
    before, opened = (sys.stdout, sys.stderr), []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            opened.append(stream := open(os.devnull, "w"))  # noqa: SIM115
        if not isinstance(stream, PlainStream):
            setattr(sys, name, PlainStream(stream))
    yield
    sys.stdout, sys.stderr = before
    for stream in opened:
        stream.close()


def _is_ascii(stream: TextIO) -> bool:
    try:
        return codecs.lookup(stream.encoding).name == "ascii"
    except (LookupError, TypeError, AttributeError):
        return True


def end_with_reader() -> None:
    """End this command when nobody reads its standard output any more."""
    if isinstance(sys.stdout, PlainStream):
        sys.stdout.ends_with_reader = True


def own_codes(stream: Any) -> Any:
    """Return the stream below the filter, if there is one: what is written to it must be our own."""
    return stream.below if isinstance(stream, PlainStream) else stream


def print_line(line: str) -> None:
    """Print a line on standard error, plainly; nothing if that is closed or missing."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(plain(line) + "\n")


def log_of(module: str) -> logging.Logger:
    """Return the logger of ``module``, with records that are plain text."""
    log = logging.getLogger(module)
    log.addFilter(_make_plain)
    return log


def _make_plain(record: logging.LogRecord) -> bool:
    record.msg, record.args = plain(record.getMessage()), None
    return True


def plain_console(stream: Any, **options: Any) -> "Console":
    """Return rich's console on ``stream``, for which texts are plain and only rich's own codes are codes."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the whole program, and send its stdout to nowhere.
            raise

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for part in super().render(renderable, options):
                style = part.style.update_link(None) if part.style and part.style.link else part.style
                yield part if part.control else Segment(plain(part.text), style)

    return PlainConsole(file=own_codes(stream), **options)
