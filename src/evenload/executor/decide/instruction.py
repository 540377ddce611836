"""What a scheduler is told (events), and what it answers (instructions): values without behaviour."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "Accept",
    "Answered",
    "Came",
    "Died",
    "Ended",
    "Event",
    "Fail",
    "Fed",
    "Free",
    "Indices",
    "Instruction",
    "Known",
    "Left",
    "Rest",
    "Send",
    "Spoilt",
    "Stuck",
    "Withdrawn",
]

Indices = range | tuple[int, ...]


class Fed(NamedTuple):
    """``n`` more items are there; ``costs`` are their size hints, all or none."""

    n: int
    costs: Sequence[float] | None = None


class Known(NamedTuple):
    """The results of these items, which were fed, are there from an earlier run."""

    items: Indices


class Ended(NamedTuple):
    """No more items will come."""


class Free(NamedTuple):
    """``device`` has a worker that is ready and has nothing to do, or is about to have nothing.

    ``bundle``: so many chunks may travel together; ``most``: so many items, if there is a limit.
    """

    device: str
    now: float
    bundle: int = 1
    most: int | None = None


class Answered(NamedTuple):
    """A chunk came back. ``no_memory``: positions that need more memory than the device has.

    ``skipped``: from this position on nothing was run, because it was told to drop the chunk.
    ``raised``: positions where the task raised something else, if that is ever tried again.
    """

    chunk: int
    now: float
    busy_s: float
    no_memory: tuple[int, ...] = ()
    skipped: int | None = None
    raised: tuple[int, ...] = ()


class Spoilt(NamedTuple):
    """A chunk came back without results: items or results could not be pickled or unpickled."""

    chunk: int
    now: float
    is_run: bool


class Died(NamedTuple):
    """The worker that held ``chunk`` has ended while it was at ``position`` of it (see ``place``).

    ``is_overtime``: it was killed because the item there had run for too long.
    """

    chunk: int
    device: str
    now: float
    position: int
    is_overtime: bool = False


class Stuck(NamedTuple):
    """The item at ``position`` takes very long: all that waits behind it shall run elsewhere meanwhile."""

    chunk: int
    device: str
    now: float
    position: int


class Left(NamedTuple):
    """``device`` gets no more work."""

    device: str
    now: float


class Came(NamedTuple):
    """``device`` is new, or back."""

    device: str
    now: float
    prior: float = 1.0
    is_helper: bool = False


class Withdrawn(NamedTuple):
    """This chunk was not sent after all: nobody wants its items any more."""

    chunk: int
    now: float


Event = Stuck | Withdrawn | Fed | Known | Ended | Free | Answered | Spoilt | Died | Left | Came


class Send(NamedTuple):
    """Run ``items`` on ``device``. ``singly``: keep them apart, one of them may bring workers down."""

    chunk: int
    device: str
    items: Indices
    why: str
    duplicate: bool
    singly: bool


class Rest(NamedTuple):
    """Nothing for ``device`` now: ask again when something has changed, or at ``until``."""

    device: str
    why: str
    until: float | None


class Accept(NamedTuple):
    """Of the chunk's answer, what stands at ``positions`` counts (None: all of it); the rest came second."""

    items: Indices
    positions: tuple[int, ...] | None


class Fail(NamedTuple):
    """These items are given up. ``why``: died | overtime | spoilt | unknown (began, must not run twice)."""

    items: tuple[int, ...]
    why: str


Instruction = Send | Rest | Accept | Fail
