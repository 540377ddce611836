"""What a back end tells the executor. Small values, the same from every back end."""

import signal
from typing import NamedTuple

from evenload.executor.task.failure import Failure
from evenload.executor.task.task import Answer

__all__ = ["Answered", "Gone", "Loaded", "Message", "Refused", "Said", "Spoilt", "Up", "Warned"]


class Up(NamedTuple):
    """The worker's process runs; it has no task yet."""

    worker: int
    pid: int | None = None


class Loaded(NamedTuple):
    """The worker has built ``task``, in ``seconds``."""

    worker: int
    task: int
    seconds: float


class Refused(NamedTuple):
    """The worker could not build ``task``: its import or its constructor raised."""

    worker: int
    task: int
    failure: Failure


class Answered(NamedTuple):
    """A chunk has come back. ``n_bytes`` is what its results take."""

    worker: int
    chunk: int
    answer: Answer
    n_bytes: int = 0


class Spoilt(NamedTuple):
    """A chunk has come back without results. ``is_run`` is False if not one of its items was begun."""

    worker: int
    chunk: int
    failure: Failure
    is_run: bool


class Said(NamedTuple):
    """A line that the worker has written to its stdout or stderr."""

    worker: int
    line: str


class Warned(NamedTuple):
    """Something about how the worker is reached that a person should know, once."""

    worker: int
    text: str


class Gone(NamedTuple):
    """The worker's process has ended, by itself or because it was killed.

    exit_code   negative for a signal; None if nobody knows
    position    where it was in the first chunk that it held: see ``place``
    last_words  its last lines of output
    cause       how it ended, where an exit code does not say it
    """

    worker: int
    exit_code: int | None
    position: int
    last_words: str = ""
    cause: str = ""

    @property
    def reason(self) -> str:
        """How it ended, in words that fit after "the worker"."""
        if self.cause or self.exit_code is None:
            return self.cause or "was lost"
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        try:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"was killed by signal {-self.exit_code}"


Message = Up | Loaded | Refused | Answered | Spoilt | Said | Warned | Gone
