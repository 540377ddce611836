"""The scheduler's events (what has happened) and its instructions (what to do): values without behaviour."""

from collections.abc import Sequence
from typing import NamedTuple

Indices = range | tuple[int, ...]


class ItemsRead(NamedTuple):
    """The event that ``n`` more items were read; ``costs`` are their size hints, for all of them or None."""

    n: int
    costs: Sequence[float] | None = None


class ItemsRestored(NamedTuple):
    """The results of these items, which were read, come from an earlier run's journal."""

    items: Indices


class InputEnded(NamedTuple):
    """All items have been read."""


class DeviceFree(NamedTuple):
    """A worker of ``device`` is ready and has nothing to do, or is about to have nothing.

    bundle    the most chunks that may be sent as one
    most      the most items to send; None for no limit
    may_copy  whether it may run items that another device has
    """

    device: str
    now: float
    bundle: int = 1
    most: int | None = None
    may_copy: bool = True


class ChunkAnswered(NamedTuple):
    """A chunk came back with results.

    no_memory  positions in the chunk that need more memory than the device has
    skipped    from this position on nothing was run, because the chunk was dropped; None: all was run
    raised     positions where the task raised something else and may be tried again
    """

    chunk: int
    now: float
    busy_s: float
    no_memory: tuple[int, ...] = ()
    skipped: int | None = None
    raised: tuple[int, ...] = ()


class ChunkUnreadable(NamedTuple):
    """A chunk came back without results: its items or results could not be pickled or unpickled.

    ``is_run`` is False if none of its items was begun.
    """

    chunk: int
    now: float
    is_run: bool


class WorkerDied(NamedTuple):
    """The worker that held ``chunk`` ended while it was at ``position`` of it (see ``progress_cell``).

    ``is_overtime``: it was killed because the item there ran for too long.
    """

    chunk: int
    device: str
    now: float
    position: int
    is_overtime: bool = False


class WorkerStuck(NamedTuple):
    """The item at ``position`` takes very long; run elsewhere what waits behind it."""

    chunk: int
    device: str
    now: float
    position: int


class DeviceLeft(NamedTuple):
    """The event that ``device`` gets no more work."""

    device: str
    now: float


class DeviceJoined(NamedTuple):
    """The event that ``device`` is new, or back. ``prior`` is its score, ``is_helper`` as in the dealer."""

    device: str
    now: float
    prior: float = 1.0
    is_helper: bool = False


class ChunkWithdrawn(NamedTuple):
    """The chunk was not sent after all: its items are not wanted any more."""

    chunk: int
    now: float


Event = (
    ItemsRead
    | ItemsRestored
    | InputEnded
    | DeviceFree
    | ChunkAnswered
    | ChunkUnreadable
    | ChunkWithdrawn
    | WorkerDied
    | WorkerStuck
    | DeviceLeft
    | DeviceJoined
)


class Send(NamedTuple):
    """An instruction to run ``items`` on ``device``. ``singly``: one by one, as one of them may bring
    workers down.
    """

    chunk: int
    device: str
    items: Indices
    why: str
    duplicate: bool
    singly: bool


class Rest(NamedTuple):
    """Send nothing to ``device`` now: ask again when something has changed, or at ``until``."""

    device: str
    why: str
    until: float | None


class Accept(NamedTuple):
    """An instruction to take the results at ``positions`` of the chunk (None: all); those of its other
    items came before.
    """

    items: Indices
    positions: tuple[int, ...] | None


class Fail(NamedTuple):
    """An instruction to give these items up. ``why``: died | overtime | spoilt | unknown (began, must not
    be run twice).
    """

    items: tuple[int, ...]
    why: str


class Renew(NamedTuple):
    """An instruction to replace the worker of ``device`` before it gets more of this run."""

    device: str


class Leave(NamedTuple):
    """An instruction to give ``device`` no more of this run. ``why``: in words that fit after a colon."""

    device: str
    why: str


Instruction = Send | Rest | Accept | Fail | Renew | Leave
