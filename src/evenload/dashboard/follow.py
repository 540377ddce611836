"""Reading an events file that may still grow, be replaced, or not be there yet."""

import os
from pathlib import Path

from evenload._private_files import open_own, open_plain
from evenload.errors import ConfigError
from evenload.events import Event
from evenload.report.source import MOST_LINE, RunClock, Sieve

PIECE_BYTES = 1 << 20


class Follower:
    """A reader of an events file that grows: ``read()`` gives the events since the last call, at most about
    ``PIECE_BYTES`` of them.

    ``is_behind``: there is more to read at once. A line without its end is kept until the rest is written.
    Only a plain file is read; with ``only_own`` one of this user's, and none that a link leads to.
    """

    def __init__(self, path: Path, *, only_own: bool = False):
        self.path = path
        self._only_own = only_own
        self.is_behind = False
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._rest = b""
        self._skips = False
        self._clock = RunClock()
        self.size = 0
        self.changed_s = 0.0  # Unix time of the last write
        self.sieve = Sieve()

    @property
    def share(self) -> float:
        """How much of the file was read, 0..1."""
        return self._offset / self.size if self.size else 1.0

    def read(self) -> list[Event] | None:
        """The next events in order, on one clock. None: the file was replaced, what was read is void."""
        self.is_behind = False
        try:
            with open(self._open(), "rb") as file:
                facts = os.fstat(file.fileno())
                file_id = (facts.st_dev, facts.st_ino)
                if self._file_id not in (None, file_id) or facts.st_size < self._offset:
                    self._begin()
                    self.is_behind = True
                    return None
                self._file_id, self.size, self.changed_s = file_id, facts.st_size, facts.st_mtime
                if facts.st_size == self._offset:
                    return []
                file.seek(self._offset)
                piece = file.read(PIECE_BYTES)
        except (OSError, ConfigError):  # not there, or nothing that may be read
            return []
        self._offset += len(piece)
        self.is_behind = self._offset < self.size
        return self._events(piece)

    def _open(self) -> int:
        if self._only_own:
            return open_own(self.path, "events of a job", is_trusted=False)
        return open_plain(self.path)

    def faults(self, is_over: bool) -> list[str]:
        """What could not be read; half a line at the end is a fault once the run ``is_over``."""
        said = self.sieve.faults()
        if self.size and not self.sieve.n_events and not self.is_behind:
            said.insert(0, f"{self.path.name} holds no event that this version can read.")
        if is_over and self._rest.strip():
            said.append("The last line is half-written, and left out.")
        return said

    def _events(self, piece: bytes) -> list[Event]:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if self._skips and lines:
            del lines[0]
            self._skips = False
        if len(self._rest) > MOST_LINE:
            # No event is as long: what is left of this line is passed over.
            self.sieve.n_damaged += not self._skips
            self._rest, self._skips = b"", True
        events = (self.sieve.take(line.decode("utf-8", "replace")) for line in lines)
        return [self._clock.place(event) for event in events if event is not None]
