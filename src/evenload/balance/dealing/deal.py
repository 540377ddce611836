"""What a dealer answers, and the note it keeps of why."""

from dataclasses import dataclass

__all__ = ["Deal", "Decision", "Wait"]


@dataclass(frozen=True, slots=True)
class Deal:
    """Run these items now. ``indices`` is a ``range`` whenever they are consecutive.

    ``duplicate``: the items already run elsewhere; whoever ends first wins.
    """

    chunk: int
    device: str
    indices: range | tuple[int, ...]
    why: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing for this device now: ask again when anything changes, or at ``until`` (clock of ``now``)."""

    why: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of the decision log. ``kind``: deal | copy | wait; ``n_items`` is 0 for a wait."""

    now: float
    device: str
    kind: str
    n_items: int
    why: str
