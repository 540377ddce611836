"""The file ``events.jsonl`` of a run: written as events come, and read back."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evenload._closing import Closing
from evenload._private_files import plain_file
from evenload.events.json_lines import decode, encode
from evenload.events.kinds import Event


class EventFile(Closing):
    """A sink that appends events to ``events.jsonl``; flushed at least every ``flush_s`` and by ``close()``.

    A last line that a killed run left half-written is ended first: it costs no event of this one.
    ``is_new``: no earlier run has left events in it.
    ``error`` says why the file stops early (a full disk); None if it has all events.
    """

    def __init__(
        self, path: str | Path, *, flush_s: float = 0.5, clock: Callable[[], float] = time.monotonic
    ):
        self._file = Path(path).open("a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self.is_new = not self._file.tell()
        if _is_cut(Path(path)):
            self._file.write("\n")
        self.error: BaseException | None = None
        self._flush_s, self._clock, self._flushed = flush_s, clock, clock()

    def __call__(self, event: Event) -> None:
        try:
            self._file.write(encode(event) + "\n")
            now = self._clock()
            if now - self._flushed >= self._flush_s:
                self._file.flush()
                self._flushed = now
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Flush and close. A failure to write is not raised but kept in ``error``."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error


def _is_cut(path: Path) -> bool:
    """Whether the last line of a file has no end."""
    with contextlib.suppress(OSError):
        if path.is_file() and (n_bytes := path.stat().st_size):
            with path.open("rb") as file:
                file.seek(n_bytes - 1)
                return file.read(1) != b"\n"
    return False


def read_events(path: str | Path) -> Iterator[Event]:
    """Yield the events of ``path`` (events.jsonl, or a run folder that has one) in bounded memory.

    Lines that are damaged, half-written or from a newer version are left out.
    Raises FileNotFoundError if there is no such file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "events.jsonl"
    with io.TextIOWrapper(plain_file(path), "utf-8", "replace") as lines:
        for line in lines:
            if (event := decode(line)) is not None:
                yield event
