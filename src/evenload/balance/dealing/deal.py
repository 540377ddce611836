"""Answers of a dealer, and its records of what it did."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deal:
    """Items that a device should run now. ``indices`` is a ``range`` whenever they are consecutive.

    ``duplicate``: whether the items already run elsewhere; the first result counts.
    """

    chunk: int
    device: str
    indices: range | tuple[int, ...]
    why: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """No items for a device now: ask again when anything changes, or at ``until`` (clock of ``now``)."""

    why: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of the log of decisions. ``kind``: deal | copy | wait; ``n_items`` is 0 for a wait."""

    now: float
    device: str
    kind: str
    n_items: int
    why: str


@dataclass(slots=True)
class Counters:
    """Counts of what a dealer has done so far."""

    n_added: int = 0
    n_done: int = 0
    n_forgotten: int = 0
    n_chunks: int = 0
    n_duplicates: int = 0
    n_moved: int = 0
