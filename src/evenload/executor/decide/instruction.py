"""The scheduler's instructions, what to do: values without behaviour."""

from typing import NamedTuple

Indices = range | tuple[int, ...]


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
