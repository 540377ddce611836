"""What a back end tells the executor. Small values, the same from every back end."""

from typing import NamedTuple

from .failure import Failure
from .task import Answer

__all__ = ["Answered", "Gone", "Loaded", "Message", "Refused", "Said", "Spoilt", "Up"]


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


class Gone(NamedTuple):
    """The worker's process has ended, by itself or because it was killed.

    exit_code   negative for a signal
    position    where it was in the first chunk that it held: see ``place``
    last_words  its last lines of output
    """

    worker: int
    exit_code: int
    position: int
    last_words: str = ""


Message = Up | Loaded | Refused | Answered | Spoilt | Said | Gone
