"""What a policy is asked and what it may answer.

A policy is an immutable value; ``init`` makes its state, ``step`` answers one device that is free:

    Ask(lane, lanes, now, n_left, ...) ──► step(state, ask) ──► (state, Take | Copy | Hold)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evenload.balance.policy.device_state import Lane
from evenload.balance.policy.in_flight import Flight

__all__ = ["Ask", "Copy", "Hold", "Policy", "Take"]


@dataclass(slots=True)
class Ask:
    """A free device asks for work.

    lane, lanes   the one that asks; all devices that are here
    n_ready       items that could go to this lane now
    n_left        items not dealt yet, those still to come included; None if nobody knows
    work_left     their work; the unit is an average item, so that this is n_left without size hints
    item_work     work of an average item now: 1, or near to it
    longest       work of the longest item that could be dealt, None without hints
    shortest      of the shortest
    may_repeat    an item may be dealt twice on purpose
    is_uniform    all items cost about the same
    version       counts the changes of the dealer's state
    n_in_flight   chunks that run anywhere
    """

    lane: Lane
    lanes: Sequence[Lane]
    now: float
    n_ready: int
    n_left: int | None
    work_left: float | None
    item_work: float = 1.0
    longest: float | None = None
    shortest: float | None = None
    may_repeat: bool = True
    is_uniform: bool = False
    version: int = 0
    n_in_flight: int = 0

    def speeds(self) -> dict[str, float]:
        """Work per second of each device: measured, or the prior in proportion to those that are measured."""
        rates = {lane.device: lane.rate for lane in self.lanes}
        measured = [(rate, lane.prior) for lane in self.lanes if (rate := rates[lane.device])]
        priors = sum(prior for _, prior in measured)
        scale = sum(rate for rate, _ in measured) / priors if priors else 1.0
        return {lane.device: rates[lane.device] or lane.prior * scale for lane in self.lanes}


@dataclass(frozen=True, slots=True)
class Take:
    """Take up to ``n`` items, of ``work`` in all, none above ``at_most`` (these two with size hints)."""

    n: int
    why: str
    work: float = float("inf")
    at_most: float = float("inf")


@dataclass(frozen=True, slots=True)
class Copy:
    """Run ``n`` of the items of ``flight`` here too, those that no copy of this round has, from its end."""

    flight: Flight
    n: int
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing for this device now; ask again at ``until`` at the latest."""

    why: str
    until: float | None = None


class Policy(Protocol):
    """How items are dealt."""

    def init(self) -> Any: ...

    def step(self, state: Any, ask: Ask) -> tuple[Any, Take | Copy | Hold]: ...
