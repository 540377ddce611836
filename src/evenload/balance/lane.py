"""What a dealer knows of one device: its estimate, what it runs, whether it is here."""

from dataclasses import dataclass, field

from .estimate import Estimate

__all__ = ["Flight", "Lane"]


@dataclass(slots=True, eq=False)
class Flight:
    """A chunk that a device was given and has not answered for.

    ``work`` is the sum of the items' size hints (their number without hints); ``began_s`` when the device
    could begin it, ``is_copied`` whether a duplicate of it was ever dealt.
    """

    chunk: int
    device: str
    indices: range | tuple[int, ...]
    work: float
    began_s: float
    duplicate: bool = False
    is_copied: bool = False
    is_struck: bool = False

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(slots=True, eq=False)
class Lane:
    """One device as the dealer sees it. Policies read it and never change it.

    prior         relative speed before anything is measured, from a score
    ceiling       most items that one chunk may hold, None without limit
    last_n        items in the last chunk that came back
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
        return cost.rate if cost else None

    @property
    def launch_s(self) -> float:
        cost = self.estimate.cost
        return cost.launch_s if cost else 0.0

    def busy_s_left(self, now: float) -> float:
        """Expected seconds until it is free; a chunk that is overdue is taken to need half as long again."""
        left = 0.0
        for flight in self.flights.values():
            elapsed = max(0.0, now - flight.began_s)
            expected = self.estimate.cost.seconds(flight.work) if self.estimate.cost else 0.0
            left += max(expected - elapsed, 0.5 * elapsed)
        return left
