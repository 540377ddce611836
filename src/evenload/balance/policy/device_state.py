"""What a dealer knows of one device: its estimate, what it runs, whether it is here."""

from dataclasses import dataclass, field

from evenload.balance.policy.estimate import Estimate
from evenload.balance.policy.in_flight import Flight

__all__ = ["OVERDUE", "Lane"]

OVERDUE = 3.0
"""A chunk that has run for this many times its expected seconds cannot be counted on."""


@dataclass(slots=True, eq=False)
class Lane:
    """One device as the dealer sees it. Policies read it and never change it.

    prior         relative speed before anything is measured, from a score
    ceiling       most items that one chunk may hold, None without limit
    last_n        items in the last chunk that came back
    is_helper     much slower than others, probably: gets only what it surely ends in time
    is_here       takes work (False once it has left)
    is_up         has asked for work since it came (or came back)
    held_version  the dealer's version when this lane was last told to wait
    """

    device: str
    prior: float = 1.0
    estimate: Estimate = field(default_factory=Estimate)
    ceiling: int | None = None
    last_n: int = 0
    last_end_s: float = float("-inf")
    is_helper: bool = False
    is_here: bool = True
    is_up: bool = False
    held_version: int = -1
    flights: dict[int, Flight] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return bool(self.flights)

    @property
    def rate(self) -> float | None:
        """Units of work per second, launch not counted; None before the first result."""
        cost = self.estimate.cost
        return None if cost is None else cost.rate

    @property
    def launch_s(self) -> float:
        cost = self.estimate.cost
        return 0.0 if cost is None else cost.launch_s

    def is_overdue(self, now: float) -> bool:
        """True if what it runs takes far longer than its estimate."""
        cost = self.estimate.cost
        if cost is None:
            return False
        return any(now - f.began_s > OVERDUE * cost.seconds(f.work) for f in self.flights.values())
