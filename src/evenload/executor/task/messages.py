"""Messages of a backend to the executor, the same from every backend."""

import signal
from typing import NamedTuple

from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure

OVER_MEMORY = "was killed as it used"
"""How the ``cause`` of a worker's end begins that went over its limit of memory."""


class Up(NamedTuple):
    """The worker's process has started; it has no task yet."""

    worker: int
    pid: int | None = None


class Loaded(NamedTuple):
    """The worker has built ``task``, in ``seconds``."""

    worker: int
    task: int
    seconds: float


class TaskRefused(NamedTuple):
    """The worker could not build ``task``: its import or its constructor raised."""

    worker: int
    task: int
    failure: Failure


class Answered(NamedTuple):
    """A chunk came back. ``n_bytes``: size of its results."""

    worker: int
    chunk: int
    answer: Answer
    n_bytes: int = 0


class Spoilt(NamedTuple):
    """A chunk came back without results. ``is_run`` is False if none of its items was begun."""

    worker: int
    chunk: int
    failure: Failure
    is_run: bool


class Said(NamedTuple):
    """A line of the worker's stdout or stderr."""

    worker: int
    line: str


class Warned(NamedTuple):
    """A warning about the connection to the worker, for the user."""

    worker: int
    text: str


class Untrue(NamedTuple):
    """The worker sent what cannot be true. ``why``: what, in words that fit after "it sent"."""

    worker: int
    why: str


class Gone(NamedTuple):
    """The worker's process has ended, by itself or because it was killed.

    exit_code   negative for a signal; None if not known
    position    its position in the first chunk that it held; see ``progress_cell``
    last_words  its last lines of output
    cause       how it ended, where the exit code does not say it
    is_cut_off  its machine, or what connects us with it, was lost: that says nothing of what it ran
    """

    worker: int
    exit_code: int | None
    position: int
    last_words: str = ""
    cause: str = ""
    is_cut_off: bool = False

    @property
    def reason(self) -> str:
        """How it ended, as the end of a sentence that begins with "the worker"."""
        if self.cause or self.exit_code is None:
            return self.cause or "was lost"
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        try:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"was killed by signal {-self.exit_code}"


Message = Up | Loaded | TaskRefused | Answered | Spoilt | Said | Warned | Untrue | Gone
